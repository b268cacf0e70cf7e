"""The loaded model as a worker uses it. Importing this imports the model's libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from core.engine.engine import Engine
from core.errors import ModelError
from core.media_process import MediaProcesses
from core.processors import (
    ChatView,
    DuplexView,
    HalfDuplexView,
    StreamingView,
    UnifiedProcessor,
    ViewContext,
)
from core.processors.device import (
    cache_room,
    check_device,
    choose_device,
    context_tokens,
    memory_mb,
    release_memory,
    settle,
)
from core.processors.facts import model_facts
from core.processors.unified import DtypeName
from core.schemas.common import Message, Role
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingRequest
from core.schemas.worker import ModelFacts
from core.serving.backend import Report
from core.serving.session_threads import SessionThreads

# Shares of the whole loading, as a person waits for it.
WEIGHTS_SHARE: Final = 0.8
VOICE_SHARE: Final = 0.85
WARM_UP_SHARE: Final = 0.9
WARM_UP_TOKENS: Final = 12


@dataclass(frozen=True)
class ModelOptions:
    """What to load.

    Attributes:
        model_path: checkpoint folder or hub id.
        pt_path: weights applied over it.
        ref_audio_path: default voice; None takes the checkpoint's own.
        gpu_index: which GPU, as people count; without a GPU the CPU is taken.
        dtype: of the model; None takes what suits the device.
        seed: of every session's draws; None takes a fresh seed for each.
        slots: conversations at once that a GPU is made ready for.
        warms_up: speak once before the first session, so that nobody waits for lazy parts.
    """

    model_path: str
    pt_path: Path | None = None
    ref_audio_path: Path | None = None
    gpu_index: int | None = None
    dtype: DtypeName | None = None
    seed: int | None = None
    slots: int = 1
    warms_up: bool = True


class RealBackend:
    """Conversations with the real model.

    Attributes:
        options: what to load.
        media: decode pictures and videos.
    """

    def __init__(self, options: ModelOptions) -> None:
        """Load nothing yet."""
        self.options = options
        self._context: ViewContext | None = None
        self.media = MediaProcesses(keeps_spare=True)
        self._log = structlog.stdlib.get_logger("backend")

    @property
    def context(self) -> ViewContext:
        """What views work with.

        Raises:
            ModelError: nothing is loaded.
        """
        if self._context is None:
            raise ModelError("The model is not loaded.")
        return self._context

    @property
    def context_tokens(self) -> int | None:
        """Longest conversation the model has positions for."""
        return None if self._context is None else context_tokens(self._context.model)

    @property
    def cache_room(self) -> float:
        """How much of the memory for conversations is free."""
        return 1.0 if self._context is None else cache_room(self._context.model)

    def load(self, engine: Engine, report: Report) -> None:
        """Load the model, then speak once."""
        options, device = self.options, choose_device(self.options.gpu_index)
        processor = UnifiedProcessor(
            options.model_path,
            options.pt_path,
            device,
            None if options.ref_audio_path is None else str(options.ref_audio_path),
            seed=options.seed,
            dtype=options.dtype,
            show_progress=False,
            slots=options.slots,
            engine=engine,
            on_progress=lambda stage, share: report(stage, _whole_share(stage, share)),
        )
        self._context = processor.chat.context
        if options.warms_up:
            report("warming up", WARM_UP_SHARE)
            _warm_up(self._context)
        settle(self._context.model)
        self.media.make_ready()
        self._log.info("model_loaded", device=device, memory_mb=self.memory_mb())

    def open_streaming(self, threads: SessionThreads) -> StreamingView:
        """Return a fresh turn-based chat; here and below cheap, from any thread."""
        return StreamingView(replace(self.context, threads=threads))

    def open_half_duplex(self, threads: SessionThreads) -> HalfDuplexView:
        """Return a fresh voice chat."""
        return HalfDuplexView(replace(self.context, threads=threads))

    def open_duplex(self, threads: SessionThreads) -> DuplexView:
        """Return a fresh full-duplex conversation."""
        return DuplexView(replace(self.context, threads=threads))

    def open_chat(self, threads: SessionThreads) -> ChatView:
        """Return a fresh one-shot chat."""
        return ChatView(replace(self.context, threads=threads))

    def tidy(self) -> None:
        """Give unused memory back."""
        release_memory(self.context.model)

    def check(self) -> None:
        """Raise if the device cannot go on."""
        check_device(self.context.model)

    def memory_mb(self) -> tuple[float, float] | None:
        """Return used and total memory of the GPU."""
        return memory_mb(self.context.model)

    def close(self) -> None:
        """End what runs beside the model."""
        self.media.close()

    def facts(self) -> ModelFacts:
        """Say what is loaded."""
        return model_facts(self.context.model, self.options.model_path)


def _warm_up(context: ViewContext) -> None:
    """Speak once, so that no session waits for what is made at the first use."""
    duplex = DuplexView(context)
    duplex.prepare()
    duplex.prefill(np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32))
    duplex.generate(force_listen=True)
    duplex.finalize()
    duplex.cleanup()
    chat = StreamingView(context)
    hello = [Message(role=Role.USER, content="Hello")]
    chat.prefill(StreamingRequest(session_id="warm_up", messages=hello, is_last_chunk=True))
    for _ in chat.generate("warm_up", max_new_tokens=WARM_UP_TOKENS):
        pass
    chat.cleanup()


def _whole_share(stage: str, share: float | None) -> float | None:
    if share is not None:
        return share * WEIGHTS_SHARE
    return VOICE_SHARE if stage == "loading the voice" else 0.0
