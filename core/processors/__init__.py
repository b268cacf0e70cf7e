"""The model's methods as documented: one view per mode over one loaded model."""

from __future__ import annotations

from core.processors.base import AloneDriver, Driver, View, ViewContext
from core.processors.chat_view import ChatView
from core.processors.duplex_view import DuplexView
from core.processors.half_duplex_view import HalfDuplexView
from core.processors.results import SpokenPiece
from core.processors.streaming_view import StreamingView
from core.processors.unified import ProcessorOptions, UnifiedProcessor
from MiniCPMO45.unit_input import SeenPicture

__all__ = [
    "AloneDriver",
    "ChatView",
    "Driver",
    "DuplexView",
    "HalfDuplexView",
    "ProcessorOptions",
    "SeenPicture",
    "SpokenPiece",
    "StreamingView",
    "UnifiedProcessor",
    "View",
    "ViewContext",
]
