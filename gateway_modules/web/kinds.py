"""The kinds of client sockets: what each may say and where its worker listens. A table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from core.schemas.queue import RequestType, duplex_request_type

COMMANDS: Final = frozenset({"stop", "heartbeat"})


class SocketKind(StrEnum):
    """What a path is for."""

    STREAMING = "streaming"
    CHAT = "chat"
    HALF_DUPLEX = "half_duplex"
    DUPLEX = "duplex"
    REALTIME = "realtime"
    LIVE = "live"

    @property
    def path(self) -> str:
        """The path at a worker, and of our own kinds at the gateway before the session's id."""
        return f"/ws/{self.value}"

    @property
    def has_turns(self) -> bool:
        """It queues for each turn; otherwise once, for the whole session."""
        return self in (SocketKind.STREAMING, SocketKind.CHAT)

    @property
    def has_events(self) -> bool:
        return self in (SocketKind.REALTIME, SocketKind.LIVE)

    def request_type(self, session_id: str) -> RequestType:
        match self:
            case SocketKind.STREAMING:
                return RequestType.STREAMING
            case SocketKind.CHAT:
                return RequestType.CHAT
            case SocketKind.HALF_DUPLEX:
                return RequestType.HALF_DUPLEX_AUDIO
            case SocketKind.DUPLEX:
                return duplex_request_type(session_id)
            case SocketKind.REALTIME:  # the same occupation of the engine, hence the same estimate
                return RequestType.HALF_DUPLEX_AUDIO
            case SocketKind.LIVE:
                return RequestType.AUDIO_DUPLEX


CLIENT_TYPES: Final[Mapping[SocketKind, frozenset[str]]] = MappingProxyType(
    {
        SocketKind.STREAMING: COMMANDS | {"prefill", "generate", "close"},
        SocketKind.CHAT: COMMANDS | {"prefill"},  # so the one request is called here
        SocketKind.HALF_DUPLEX: COMMANDS | {"prepare", "audio_chunk", "interrupt", "close"},
        SocketKind.DUPLEX: COMMANDS
        | {
            "prepare",
            "audio_chunk",
            "video_frame",
            "pause",
            "resume",
            "interrupt",
            "client_diagnostic",
            "close",
        },
    }
)
"""Types of messages a client may send."""


@dataclass(frozen=True)
class SizeLimits:
    """Longest messages of a client: `prepare`, `prefill` and the request of a chat; all others."""

    first_bytes: int
    other_bytes: int


def worker_query(session_id: str, request_type: RequestType) -> dict[str, str]:
    query = {"session_id": session_id}
    match request_type:
        case RequestType.OMNI_DUPLEX:
            query["variant"] = "omni"
        case RequestType.AUDIO_DUPLEX:
            query["variant"] = "audio"
    return query
