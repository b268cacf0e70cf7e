"""The four kinds of sockets a worker serves: what each accepts, and the limits it runs by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from core.images import FRAME_LIMITS, PictureLimits
from core.protocols.chat import ChatLimits
from core.protocols.duplex_units import DuplexLimits
from core.protocols.events import ClientMessage
from core.protocols.hearing import HalfDuplexLimits
from core.protocols.streaming import StreamingLimits
from core.schemas import half_duplex
from core.schemas.queue import RequestType, duplex_request_type
from core.serving import wire
from core.serving.sound_limits import SoundLimits
from core.serving.wire import Endpoint
from settings.sections import DuplexSettings, HalfDuplexSettings, LimitSettings

MS_PER_S: Final = 1_000
VARIANTS: Final = {"omni": RequestType.OMNI_DUPLEX, "audio": RequestType.AUDIO_DUPLEX}
"""What the gateway calls the two kinds of duplex in an address."""


class SocketKind(StrEnum):
    """What a path is for."""

    STREAMING = "streaming"
    CHAT = "chat"
    HALF_DUPLEX = "half_duplex"
    DUPLEX = "duplex"

    @property
    def path(self) -> str:
        """Where it is served."""
        return f"/ws/{self.value}"

    @property
    def is_live(self) -> bool:
        """It occupies the worker from the first moment to the last, not turn by turn."""
        return self in (SocketKind.HALF_DUPLEX, SocketKind.DUPLEX)

    def request_type(self, session_id: str, variant: str | None) -> RequestType:
        """Return what a session of this kind is called everywhere else.

        Args:
            session_id: Tells the kinds of duplex apart when nobody says which it is.
            variant: What the gateway says.
        """
        match self:
            case SocketKind.STREAMING:
                return RequestType.STREAMING
            case SocketKind.CHAT:
                return RequestType.CHAT
            case SocketKind.HALF_DUPLEX:
                return RequestType.HALF_DUPLEX_AUDIO
            case SocketKind.DUPLEX:
                return VARIANTS.get(variant or "") or duplex_request_type(session_id)


@dataclass(frozen=True)
class SessionRules:
    """What sessions may say and take.

    Attributes:
        endpoints: what each kind of socket accepts.
        sounds: how long sounds may be.
        frames: what a camera picture may be.
        streaming, chat, half_duplex, duplex: limits of the machines.
    """

    endpoints: dict[SocketKind, Endpoint]
    sounds: SoundLimits
    frames: PictureLimits
    streaming: StreamingLimits
    chat: ChatLimits
    half_duplex: HalfDuplexLimits
    duplex: DuplexLimits

    @classmethod
    def of(
        cls, limits: LimitSettings, duplex: DuplexSettings, half_duplex: HalfDuplexSettings
    ) -> SessionRules:
        """Take over what is configured."""
        chat_bytes = limits.chat_message_bytes
        live_bytes = (limits.prepare_bytes, limits.live_message_bytes)
        sounds = SoundLimits(limits.chunk_max_s, limits.reference_max_s, limits.chat_audio_max_s)
        turns = _with_defaults(wire.HALF_DUPLEX.parse, half_duplex)
        return cls(
            endpoints={
                kind: Endpoint(_with_limits(parse, sounds), *sizes)
                for kind, parse, sizes in (
                    (SocketKind.STREAMING, wire.STREAMING.parse, (chat_bytes, chat_bytes)),
                    (SocketKind.CHAT, wire.CHAT.parse, (chat_bytes, chat_bytes)),
                    (SocketKind.HALF_DUPLEX, turns, live_bytes),
                    (SocketKind.DUPLEX, wire.DUPLEX.parse, live_bytes),
                )
            },
            sounds=sounds,
            frames=replace(
                FRAME_LIMITS, max_bytes=limits.frame_max_bytes, max_side_px=limits.frame_max_side_px
            ),
            streaming=StreamingLimits(max_kv_tokens=duplex.max_kv_tokens),
            chat=ChatLimits(),
            half_duplex=HalfDuplexLimits(
                max_session_s=half_duplex.max_session_s, max_kv_tokens=duplex.max_kv_tokens
            ),
            duplex=DuplexLimits(
                pause_timeout_s=duplex.pause_timeout,
                max_session_s=duplex.max_session_s,
                max_kv_tokens=duplex.max_kv_tokens,
                max_backlog_chunks=duplex.max_backlog_chunks,
                max_frames_per_chunk=duplex.max_frames_per_chunk,
                frame_grace_s=duplex.frame_grace_ms / MS_PER_S,
            ),
        )

    def within(self, context_tokens: int | None) -> SessionRules:
        """Return the same for a model that may remember less than is configured."""
        if context_tokens is None:
            return self
        most = min(context_tokens, self.duplex.max_kv_tokens)
        return replace(
            self,
            streaming=replace(self.streaming, max_kv_tokens=most),
            half_duplex=replace(self.half_duplex, max_kv_tokens=most),
            duplex=replace(self.duplex, max_kv_tokens=most),
        )


def _with_limits(
    parse: Callable[[str], ClientMessage], sounds: SoundLimits
) -> Callable[[str], ClientMessage]:
    """Refuse messages with sounds that are longer than configured."""

    def parse_within_limits(text: str) -> ClientMessage:
        message = parse(text)
        sounds.check(message)
        return message

    return parse_within_limits


def _with_defaults(
    parse: Callable[[str], ClientMessage], defaults: HalfDuplexSettings
) -> Callable[[str], ClientMessage]:
    """Let a `prepare` take what it does not say from the configuration."""

    def parse_with_defaults(text: str) -> ClientMessage:
        message = parse(text)
        if not isinstance(message, half_duplex.Prepare):
            return message
        return message.model_copy(update={"config": filled_in(message.config, defaults)})

    return parse_with_defaults


def filled_in(
    config: half_duplex.HalfDuplexConfig, defaults: HalfDuplexSettings
) -> half_duplex.HalfDuplexConfig:
    """Return a client's settings with what it left out as configured.

    Args:
        config: As the client sent it.
        defaults: The operator's choice.
    """
    said = config.vad.model_dump(include=config.vad.model_fields_set)
    vad = defaults.vad.model_copy(update=said)
    session = config.session
    if "timeout_s" not in session.model_fields_set:
        session = half_duplex.SessionConfig(timeout_s=defaults.timeout_s)
    return config.model_copy(update={"vad": vad, "session": session})
