"""The loaded model as a worker uses it. Importing this imports the model's libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from core.engine.engine import Engine
from core.engine.passes import PassRunner
from core.errors import ModelError
from core.media_process import MediaProcesses
from core.processors import (
    ChatView,
    Driver,
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
from core.schemas import streaming
from core.schemas.common import Message, Role
from core.schemas.duplex import Prepare
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.worker import ModelFacts
from core.serving.backend import Report, Signals
from core.serving.engine_driver import EngineDriver
from core.serving.media import SessionMedia
from core.serving.real_talks import (
    RealChatTalk,
    RealDuplexTalk,
    RealHalfDuplexTalk,
    RealStreamingTalk,
)

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
    """Conversations with the real model."""

    def __init__(self, options: ModelOptions) -> None:
        """Load nothing yet."""
        self.options = options
        self._engine: Engine | None = None
        self._context: ViewContext | None = None
        self._media = MediaProcesses(keeps_spare=True)
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
        self._engine = engine
        processor = UnifiedProcessor(
            options.model_path,
            options.pt_path,
            device,
            None if options.ref_audio_path is None else str(options.ref_audio_path),
            seed=options.seed,
            dtype=options.dtype,
            show_progress=False,
            slots=options.slots,
            make_driver=lambda executor: self._drive(PassRunner(executor)),
            on_progress=lambda stage, share: report(stage, _whole_share(stage, share)),
        )
        self._context = processor.chat.context
        if options.warms_up:
            report("warming up", WARM_UP_SHARE)
            self._warm_up()
        settle(self._context.model)
        self._media.make_ready()
        self._log.info("model_loaded", device=device, memory_mb=self.memory_mb())

    def open_streaming(self) -> RealStreamingTalk:
        """Return a fresh turn-based chat."""
        context, signals = self._session_context()
        return RealStreamingTalk(StreamingView(context), signals)

    def open_half_duplex(self) -> RealHalfDuplexTalk:
        """Return a fresh voice chat."""
        context, signals = self._session_context()
        return RealHalfDuplexTalk(HalfDuplexView(context), signals)

    def open_duplex(self) -> RealDuplexTalk:
        """Return a fresh full-duplex conversation."""
        context, signals = self._session_context()
        return RealDuplexTalk(DuplexView(context), signals)

    def open_chat(self) -> RealChatTalk:
        """Return a fresh one-shot chat."""
        context, signals = self._session_context()
        return RealChatTalk(ChatView(context), signals)

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
        self._media.close()

    def facts(self) -> ModelFacts:
        """Say what is loaded."""
        return model_facts(self.context.model, self.options.model_path)

    def _drive(self, passes: PassRunner) -> Driver:
        assert self._engine is not None
        self._engine.use(passes)
        return EngineDriver(self._engine)

    def _session_context(self) -> tuple[ViewContext, Signals]:
        """Let a session's work be given up without touching the others'."""
        assert self._engine is not None
        signals = Signals()
        driver = EngineDriver(self._engine, signals.give_up.is_set, lambda: signals.due_s)
        aside = EngineDriver(self._engine, signals.give_up.is_set)
        media = SessionMedia(self._media, signals.give_up.is_set)
        return replace(self.context, driver=driver, aside=aside, read_media=media), signals

    def _warm_up(self) -> None:
        duplex = self.open_duplex()
        duplex.prepare(Prepare())
        for _ in duplex.step(np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32), (), None, True):
            pass
        duplex.finalize()
        duplex.close()
        chat = self.open_streaming()
        hello = [Message(role=Role.USER, content="Hello")]
        chat.prefill(streaming.WorkerPrefill(messages=hello))
        for _ in chat.reply(streaming.Generate(max_new_tokens=WARM_UP_TOKENS)):
            pass
        chat.close()


def _whole_share(stage: str, share: float | None) -> float | None:
    if share is not None:
        return share * WEIGHTS_SHARE
    return VOICE_SHARE if stage == "loading the voice" else 0.0
