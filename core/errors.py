"""The project's exceptions with their wire codes, WebSocket close codes and HTTP statuses.

`describe_error` alone decides what a client may read. Imports only the standard library.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar


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
    SESSION_EXPIRED = "session_expired"
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
    DISK_FULL = "disk_full"
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
    REPLACED = 4001  # another socket of the same session took over; ours


VANISHED = 1006  # the connection was lost; never sent
RESTARTED = 1012  # sent by a proxy between client and server
LOST_CODES = frozenset({CloseCode.SHUTDOWN, VANISHED, CloseCode.INTERNAL, RESTARTED})
"""Close codes after which the peer may reconnect; any other code ends the session."""


class OmniError(Exception):
    """Base of the project's errors; the message may be shown to clients."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    close_code: ClassVar[CloseCode] = CloseCode.INTERNAL
    http_status: ClassVar[int] = 500

    def __init_subclass__(
        cls, code: ErrorCode | None = None, close: CloseCode | None = None, http: int | None = None
    ) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.close_code = close or cls.close_code
        cls.http_status = http or cls.http_status

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or InternalError.__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self)


class InternalError(OmniError):
    """Something went wrong on the server. Please start again."""


class QueueFullError(OmniError, code=ErrorCode.QUEUE_FULL, close=CloseCode.TRY_LATER, http=503):
    """The queue is full. Please try again later."""


class QueueCancelledError(
    OmniError, code=ErrorCode.QUEUE_CANCELLED, close=CloseCode.NORMAL, http=503
):
    """This place in the queue was cancelled."""


class NoWorkerError(OmniError, code=ErrorCode.NO_WORKER, close=CloseCode.TRY_LATER, http=503):
    """No worker is ready yet. Please try again later."""


class WorkerBusyError(NoWorkerError, http=429):
    """The worker is busy. Please try again later."""


class ShuttingDownError(
    OmniError, code=ErrorCode.SHUTTING_DOWN, close=CloseCode.SHUTDOWN, http=503
):
    """The server is shutting down. Please try again later."""


class WorkerUnreachableError(OmniError, code=ErrorCode.WORKER_UNREACHABLE, http=502):
    """The assigned worker could not be reached."""


class WorkerLostError(OmniError, code=ErrorCode.WORKER_LOST, http=502):
    """The connection to the worker was lost."""


class NotPreparedError(OmniError, code=ErrorCode.NOT_PREPARED, close=CloseCode.POLICY, http=409):
    """The session is not prepared yet: send `prepare` first."""


class AlreadyPreparedError(
    OmniError, code=ErrorCode.ALREADY_PREPARED, close=CloseCode.POLICY, http=409
):
    """The session is already prepared."""


class OutOfOrderError(OmniError, code=ErrorCode.OUT_OF_ORDER, close=CloseCode.POLICY, http=409):
    """This message is not expected now."""


class BadPayloadError(OmniError, code=ErrorCode.BAD_JSON, close=CloseCode.BAD_PAYLOAD, http=422):
    """The message could not be understood."""


class BadRequestError(BadPayloadError, http=400):
    """The request cannot be understood."""


class TooBigError(BadPayloadError, code=ErrorCode.TOO_BIG, close=CloseCode.TOO_BIG, http=413):
    """The message is too big."""


class BinaryMessageError(BadPayloadError, close=CloseCode.BINARY):
    """Messages are text: one JSON object each."""


class UnknownTypeError(BadPayloadError, code=ErrorCode.UNKNOWN_TYPE):
    """The message's type is not known here."""


class BadConfigError(BadPayloadError, code=ErrorCode.BAD_CONFIG):
    """The settings are not valid."""


class AudioError(BadPayloadError, code=ErrorCode.BAD_AUDIO, http=400):
    """The audio cannot be used."""


class AudioEmptyError(AudioError):
    """The audio holds no samples."""


class NotAudioError(AudioError):
    """The file holds no audio that can be read."""


class AudioTooLongError(AudioError, http=413):
    """The audio is too long."""


class PictureError(BadPayloadError, code=ErrorCode.BAD_FRAME, http=400):
    """The picture cannot be used."""


class PictureTooLargeError(PictureError, http=413):
    """The picture or video is too large."""


class OneVoiceError(OmniError, code=ErrorCode.ONE_VOICE):
    """This model has one voice; the voice that was sent is not used."""


class VoiceCutError(OmniError, code=ErrorCode.VOICE_CUT):
    """The voice sample is longer than the model uses; it speaks with the beginning."""


class SessionInUseError(OmniError, code=ErrorCode.SESSION_IN_USE, close=CloseCode.POLICY, http=409):
    """This session id is already in use."""


class SessionExpiredError(
    OmniError, code=ErrorCode.SESSION_EXPIRED, close=CloseCode.POLICY, http=410
):
    """There is no session with this token."""


class InvalidSessionIdError(
    OmniError, code=ErrorCode.INVALID_SESSION_ID, close=CloseCode.POLICY, http=400
):
    """A session id has 1 to 64 characters out of A-Z, a-z, 0-9, _ and -."""


class SessionTimeoutError(OmniError, code=ErrorCode.TIMEOUT, close=CloseCode.NORMAL, http=504):
    """The session ended because no request was received in time."""


class ContextFullError(OmniError, code=ErrorCode.CONTEXT_FULL, close=CloseCode.NORMAL, http=413):
    """The conversation has reached the longest length the model can remember."""


class GenerationFailedError(OmniError, code=ErrorCode.GENERATION_FAILED):
    """The reply could not be generated."""


class TranscriptionFailedError(GenerationFailedError):
    """What was said could not be written down."""


class TranscriberBusyError(QueueFullError):
    """Too much audio waits to be transcribed. Please try again later."""


class NotAvailableError(OmniError, code=ErrorCode.NOT_AVAILABLE, close=CloseCode.POLICY, http=501):
    """This server does not offer that."""


class ModelError(OmniError):
    """The model could not be loaded."""


class RecordingStoppedError(OmniError, code=ErrorCode.RECORDING_STOPPED):
    """The recording was stopped; the conversation continues."""


class DiskFullError(OmniError, code=ErrorCode.DISK_FULL, http=507):
    """Nothing was stored: the disk is nearly full."""


class EndedByAdminError(OmniError, code=ErrorCode.ENDED_BY_ADMIN, close=CloseCode.POLICY, http=409):
    """An administrator ended this session."""


class NotSupervisedError(OmniError, code=ErrorCode.FORBIDDEN, http=409):
    """This worker was not started by the launcher, so nothing would start it again."""


class AppDisabledError(OmniError, code=ErrorCode.APP_DISABLED, close=CloseCode.POLICY, http=403):
    """This app is currently disabled."""


class OriginRefusedError(
    OmniError, code=ErrorCode.ORIGIN_REFUSED, close=CloseCode.POLICY, http=403
):
    """Pages of other sites may not use this server."""


class UnauthorizedError(OmniError, code=ErrorCode.UNAUTHORIZED, close=CloseCode.POLICY, http=401):
    """The administrator's token is missing or wrong."""


class ForbiddenError(OmniError, code=ErrorCode.FORBIDDEN, close=CloseCode.POLICY, http=403):
    """Only the owner or an administrator may do this."""


class RateLimitedError(OmniError, code=ErrorCode.RATE_LIMITED, close=CloseCode.TRY_LATER, http=429):
    """Too many requests or connections. Please try again later."""


class NotFoundError(OmniError, code=ErrorCode.NOT_FOUND, close=CloseCode.POLICY, http=404):
    """There is no such thing here."""


class StillWritingError(OmniError, code=ErrorCode.STILL_WRITING, close=CloseCode.POLICY, http=409):
    """The recording is still being written."""


def describe_error(error: BaseException) -> OmniError:
    """Return the error that a client is told of: an unknown exception becomes `InternalError`."""
    return error if isinstance(error, OmniError) else InternalError()
