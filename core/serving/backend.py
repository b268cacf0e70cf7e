"""What makes a worker's conversations: the model, or the fake. Only types; each is in its own file.

Both offer the same: `load`, one `open_…` for each mode that returns its view, and a few questions
about memory. A view's coroutines run on the event loop and wait for the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

Report = Callable[[str, float | None], None]
"""Takes what loading does now, and how much of it is done, 0 to 1, if that is known."""

if TYPE_CHECKING:  # they import the tensor library, which a worker without a model does not need
    from core.processors import ChatView, DuplexView, HalfDuplexView, StreamingView
    from core.processors.backend import RealBackend
    from core.serving.fake_backend import (
        FakeBackend,
        FakeChatView,
        FakeDuplexView,
        FakeHalfDuplexView,
        FakeStreamingView,
    )

Backend: TypeAlias = "RealBackend | FakeBackend"
AnyDuplexView: TypeAlias = "DuplexView | FakeDuplexView"
AnyStreamingView: TypeAlias = "StreamingView | FakeStreamingView"
AnyHalfDuplexView: TypeAlias = "HalfDuplexView | FakeHalfDuplexView"
AnyChatView: TypeAlias = "ChatView | FakeChatView"
AnyTurnView: TypeAlias = "AnyStreamingView | AnyHalfDuplexView | AnyChatView"
AnyView: TypeAlias = "AnyTurnView | AnyDuplexView"
