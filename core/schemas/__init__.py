"""Every message and setting on the wire, by name; the messages of one socket are in its module.

Importing this imports pydantic and nothing heavier.
"""

from __future__ import annotations

from core.schemas.chat import ChatRequest, ChatResponse, GatewayChatResponse
from core.schemas.common import (
    AudioContent,
    ContentItem,
    GenerationConfig,
    ImageConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
    TokenStats,
    TTSConfig,
    TTSMode,
    TTSSamplingParams,
    VideoContent,
    WireModel,
    parse_message,
)
from core.schemas.duplex_calls import (
    DuplexConfig,
    DuplexGenerateResult,
)
from core.schemas.half_duplex import HalfDuplexConfig, VadConfig
from core.schemas.queue import (
    ErrorMessage,
    Queued,
    QueueDone,
    QueueUpdate,
    RequestType,
    WarningMessage,
    check_session_id,
    duplex_request_type,
)
from core.schemas.streaming import (
    RollbackResult,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
)
from core.schemas.worker import (
    ActionResult,
    CacheStatus,
    StopRequest,
    WorkerHealth,
    WorkerStatus,
)

__all__ = [
    "ActionResult",
    "AudioContent",
    "CacheStatus",
    "ChatRequest",
    "ChatResponse",
    "ContentItem",
    "DuplexConfig",
    "DuplexGenerateResult",
    "ErrorMessage",
    "GatewayChatResponse",
    "GenerationConfig",
    "HalfDuplexConfig",
    "ImageConfig",
    "ImageContent",
    "Message",
    "QueueDone",
    "QueueUpdate",
    "Queued",
    "RequestType",
    "Role",
    "RollbackResult",
    "StopRequest",
    "StreamingChunk",
    "StreamingConfig",
    "StreamingRequest",
    "TTSConfig",
    "TTSMode",
    "TTSSamplingParams",
    "TextContent",
    "TokenStats",
    "VadConfig",
    "VideoContent",
    "WarningMessage",
    "WireModel",
    "WorkerHealth",
    "WorkerStatus",
    "check_session_id",
    "duplex_request_type",
    "parse_message",
]
