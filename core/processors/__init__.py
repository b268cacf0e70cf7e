"""The model's conversations: one class per mode, over one loaded model."""

from __future__ import annotations

from core.processors.duplex import DuplexView
from core.processors.streaming import HalfDuplexView, StreamingView
from core.processors.turns import ChatView
from core.processors.unified import UnifiedProcessor
from core.processors.view import View, ViewContext

__all__ = [
    "ChatView",
    "DuplexView",
    "HalfDuplexView",
    "StreamingView",
    "UnifiedProcessor",
    "View",
    "ViewContext",
]
