"""The project's exceptions: each knows its wire code, WebSocket close code and HTTP status.

`describe_error` alone decides what a client may read. Only the standard library is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar

INTERNAL_ERROR_TEXT = "Something went wrong on the server. Please start again."


class ErrorCode(StrEnum):
    """The `code` of an `error` or `warning` message."""

    QUEUE_FULL = "queue_full"
    QUEUE_CANCELLED = "queue_cancelled"
    NO_WORKER = "no_worker"
    SHUTTING_DOWN = "shutting_down"
    WORKER_UNREACHABLE = "worker_unreachable"
    WORKER_LOST = "worker_lost"
    NOT_PREPARED = "not_prepared"
    ALREADY_PREPARED = "already_prepared"
    OUT_OF_ORDER = "out_of_order"
    BAD_JSON = "bad_json"
    BAD_AUDIO = "bad_audio"
    BAD_FRAME = "bad_frame"
    BAD_CONFIG = "bad_config"
    TOO_BIG = "too_big"
    UNKNOWN_TYPE = "unknown_type"
    SESSION_IN_USE = "session_in_use"
    INVALID_SESSION_ID = "invalid_session_id"
    TIMEOUT = "timeout"
    LATE_CHUNK = "late_chunk"
    CONTEXT_NEARLY_FULL = "context_nearly_full"
    CONTEXT_FULL = "context_full"
    GENERATION_FAILED = "generation_failed"
    NOT_AVAILABLE = "not_available"
    ONE_VOICE = "one_voice"
    VOICE_CUT = "voice_cut"
    RECORDING_STOPPED = "recording_stopped"
    ENDED_BY_ADMIN = "ended_by_admin"
    APP_DISABLED = "app_disabled"
    ORIGIN_REFUSED = "origin_refused"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    RATE_LIMITED = "rate_limited"
    NOT_FOUND = "not_found"
    STILL_WRITING = "still_writing"
    INTERNAL = "internal"


class CloseCode(IntEnum):
    """WebSocket close codes in use. Source: RFC 6455, section 7.4.1, and its registry."""

    NORMAL = 1000
    SHUTDOWN = 1001
    BINARY = 1003
    BAD_PAYLOAD = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    TRY_LATER = 1013


class OmniError(Exception):
    """Base of every error this project raises on purpose; its text is fit for a client to read."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    close_code: ClassVar[CloseCode] = CloseCode.INTERNAL
    http_status: ClassVar[int] = 500

    def __init__(self, message: str = "") -> None:
        """Keep the sentence a client will read; without one, the class's own summary is used."""
        super().__init__(message or (type(self).__doc__ or INTERNAL_ERROR_TEXT).strip())

    @property
    def message(self) -> str:
        """The sentence for the client."""
        return str(self)


class InternalError(OmniError):
    """Something went wrong on the server. Please start again."""


class QueueFullError(OmniError):
    """The queue is full. Please try again later."""

    code = ErrorCode.QUEUE_FULL
    close_code = CloseCode.TRY_LATER
    http_status = 503


class QueueCancelledError(OmniError):
    """This place in the queue was cancelled."""

    code = ErrorCode.QUEUE_CANCELLED
    close_code = CloseCode.NORMAL
    http_status = 503


class NoWorkerError(OmniError):
    """No worker is ready yet. Please try again later."""

    code = ErrorCode.NO_WORKER
    close_code = CloseCode.TRY_LATER
    http_status = 503


class WorkerBusyError(NoWorkerError):
    """The worker is busy. Please try again later."""

    http_status = 429


class ShuttingDownError(OmniError):
    """The server is shutting down. Please try again later."""

    code = ErrorCode.SHUTTING_DOWN
    close_code = CloseCode.SHUTDOWN
    http_status = 503


class WorkerUnreachableError(OmniError):
    """The assigned worker could not be reached."""

    code = ErrorCode.WORKER_UNREACHABLE
    http_status = 502


class WorkerLostError(OmniError):
    """The connection to the worker was lost."""

    code = ErrorCode.WORKER_LOST
    http_status = 502


class NotPreparedError(OmniError):
    """The session is not prepared yet: send `prepare` first."""

    code = ErrorCode.NOT_PREPARED
    close_code = CloseCode.POLICY
    http_status = 409


class AlreadyPreparedError(OmniError):
    """The session is already prepared."""

    code = ErrorCode.ALREADY_PREPARED
    close_code = CloseCode.POLICY
    http_status = 409


class OutOfOrderError(OmniError):
    """This message is not expected now."""

    code = ErrorCode.OUT_OF_ORDER
    close_code = CloseCode.POLICY
    http_status = 409


class BadPayloadError(OmniError):
    """The message could not be understood."""

    code = ErrorCode.BAD_JSON
    close_code = CloseCode.BAD_PAYLOAD
    http_status = 422


class BadRequestError(BadPayloadError):
    """The request cannot be understood."""

    http_status = 400


class TooBigError(BadPayloadError):
    """The message is too big."""

    code = ErrorCode.TOO_BIG
    close_code = CloseCode.TOO_BIG
    http_status = 413


class BinaryMessageError(BadPayloadError):
    """Messages are text: one JSON object each."""

    close_code = CloseCode.BINARY


class UnknownTypeError(BadPayloadError):
    """The message's type is not known here."""

    code = ErrorCode.UNKNOWN_TYPE


class BadConfigError(BadPayloadError):
    """The settings are not valid."""

    code = ErrorCode.BAD_CONFIG


class AudioError(BadPayloadError):
    """The audio cannot be used."""

    code = ErrorCode.BAD_AUDIO
    http_status = 400


class AudioMissingError(AudioError):
    """There is no such audio file."""


class AudioEmptyError(AudioError):
    """The audio holds no samples."""


class AudioSilentError(AudioError):
    """The audio is silent."""


class AudioCorruptError(AudioError):
    """The audio is damaged."""


class NotAudioError(AudioError):
    """The file holds no audio that can be read."""


class AudioTooLongError(AudioError):
    """The audio is too long."""

    http_status = 413


class PictureError(BadPayloadError):
    """The picture cannot be used."""

    code = ErrorCode.BAD_FRAME
    http_status = 400


class PictureMissingError(PictureError):
    """There is no such picture or video file."""


class PictureTooLargeError(PictureError):
    """The picture or video is too large."""

    http_status = 413


class VideoError(PictureError):
    """The video cannot be used."""


class VoiceDetectorError(OmniError):
    """The voice activity detector could not be loaded."""


class SessionInUseError(OmniError):
    """This session id is already in use."""

    code = ErrorCode.SESSION_IN_USE
    close_code = CloseCode.POLICY
    http_status = 409


class InvalidSessionIdError(OmniError):
    """A session id has 1 to 64 characters out of A-Z, a-z, 0-9, _ and -."""

    code = ErrorCode.INVALID_SESSION_ID
    close_code = CloseCode.POLICY
    http_status = 400


class SessionTimeoutError(OmniError):
    """The session ended because nothing was heard for too long."""

    code = ErrorCode.TIMEOUT
    close_code = CloseCode.NORMAL
    http_status = 504


class ContextFullError(OmniError):
    """The conversation has reached the longest length the model can remember."""

    code = ErrorCode.CONTEXT_FULL
    close_code = CloseCode.NORMAL
    http_status = 413


class GenerationFailedError(OmniError):
    """The reply could not be generated."""

    code = ErrorCode.GENERATION_FAILED


class ModelError(OmniError):
    """The model could not be loaded."""


class RecordingStoppedError(OmniError):
    """The recording was stopped; the conversation goes on."""

    code = ErrorCode.RECORDING_STOPPED
    http_status = 507


class EndedByAdminError(OmniError):
    """An administrator ended this session."""

    code = ErrorCode.ENDED_BY_ADMIN
    close_code = CloseCode.POLICY
    http_status = 409


class NotSupervisedError(OmniError):
    """This worker was not started by the launcher, so nobody would start it again."""

    code = ErrorCode.FORBIDDEN
    http_status = 409


class AppDisabledError(OmniError):
    """This app is currently disabled."""

    code = ErrorCode.APP_DISABLED
    close_code = CloseCode.POLICY
    http_status = 403


class OriginRefusedError(OmniError):
    """Pages of other sites may not use this server."""

    code = ErrorCode.ORIGIN_REFUSED
    close_code = CloseCode.POLICY
    http_status = 403


class UnauthorizedError(OmniError):
    """The administrator's token is missing or wrong."""

    code = ErrorCode.UNAUTHORIZED
    close_code = CloseCode.POLICY
    http_status = 401


class ForbiddenError(OmniError):
    """Only the owner or an administrator may do this."""

    code = ErrorCode.FORBIDDEN
    close_code = CloseCode.POLICY
    http_status = 403


class RateLimitedError(OmniError):
    """Too many requests or connections. Please try again later."""

    code = ErrorCode.RATE_LIMITED
    close_code = CloseCode.TRY_LATER
    http_status = 429


class NotFoundError(OmniError):
    """There is no such thing here."""

    code = ErrorCode.NOT_FOUND
    close_code = CloseCode.POLICY
    http_status = 404


class StillWritingError(OmniError):
    """The recording is still being written."""

    code = ErrorCode.STILL_WRITING
    close_code = CloseCode.POLICY
    http_status = 409


@dataclass(frozen=True)
class ErrorFields:
    """What goes on the wire for one error: the message's fields and how the connection ends."""

    code: ErrorCode
    message: str
    close_code: CloseCode
    http_status: int


def describe_error(error: BaseException) -> ErrorFields:
    """Turn any exception into the fields of an `error` message.

    Args:
        error: One of ours, or anything else; of the latter nothing but "internal" is told.
    """
    known = error if isinstance(error, OmniError) else InternalError()
    return ErrorFields(known.code, known.message, known.close_code, known.http_status)
