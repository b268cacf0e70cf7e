"""The model's conversations: one class per mode, over one loaded model."""

from __future__ import annotations

from core.processors.duplex import DuplexView as DuplexView
from core.processors.streaming import HalfDuplexView as HalfDuplexView
from core.processors.streaming import StreamingView as StreamingView
from core.processors.turns import ChatView as ChatView
from core.processors.unified import UnifiedProcessor as UnifiedProcessor
from core.processors.view import View as View
from core.processors.view import ViewContext as ViewContext
