"""Views over the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core.processors import StreamingView, UnifiedProcessor
from core.processors.turns import TurnView
from core.schemas.common import Message, Role
from core.schemas.streaming import ReplyEnd, StreamingChunk, StreamingRequest


def load(checkpoint: Path) -> UnifiedProcessor:
    return UnifiedProcessor(checkpoint, device="cpu", seed=3, show_progress=False)


def clean(processor: UnifiedProcessor) -> None:
    """Close every conversation and check that its caches are freed."""
    for view in (processor.chat, processor.half_duplex, processor.duplex):
        view.cleanup()
    processor.half_duplex.init_ref_audio()
    executor = processor.model.executor
    assert not executor.llm_store.handles, "a view left a cache behind"
    assert not executor.tts_store.handles, "a view left a speech cache behind"


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def finish(
    view: TurnView, stream: Iterable[StreamingChunk]
) -> tuple[list[StreamingChunk], ReplyEnd]:
    pieces = list(stream)
    assert view.reply_end is not None
    return pieces, view.reply_end


def prefill(view: StreamingView, session_id: str, *texts: str, **fields: Any) -> str:
    messages = [user(text) for text in texts]
    return view.prefill(StreamingRequest(session_id=session_id, messages=messages, **fields))
