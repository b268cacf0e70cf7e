"""The worker's backend for the real model: loading, warm-up, views, facts, and the device.

Importing it imports the model's libraries.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import torch
from PIL import Image
from pydantic import Field, ValidationError

from core.engine.engine import Engine
from core.engine.passes import free_share, run_together
from core.errors import ModelError
from core.media_process import MediaProcesses
from core.modes import Report, Threads
from core.processors import ChatView, DuplexView, StreamingView, UnifiedProcessor, ViewContext
from core.schemas.common import Message, Role, WireModel
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingRequest
from core.schemas.worker import (
    MODEL_NAME_MAX_CHARS,
    SUGGESTIONS_MAX,
    ModelFacts,
    ModelKind,
    Suggestion,
)
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.loading.checkpoint import TINY_VARIANT
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.settings import Weights

WARM_UP_TOKENS: Final = 12
ROUNDS: Final = 3  # the shortest counts: the first also initializes what is initialized lazily
PICTURE_SIZE: Final = (1280, 720)  # as the pages send
SECOND: Final = np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32)


def speak_once(context: ViewContext) -> None:
    """Run each mode once, so that no session waits for lazy initialization."""
    duplex = DuplexView(context)
    duplex.prepare()
    duplex.prefill(SECOND)
    duplex.generate(force_listen=True)
    duplex.finalize()
    duplex.cleanup()
    chat = StreamingView(context)
    hello = [Message(role=Role.USER, content="Hello")]
    chat.prefill(StreamingRequest(session_id="warm_up", messages=hello, is_last_chunk=True))
    for _ in chat.generate("warm_up", max_new_tokens=WARM_UP_TOKENS):
        pass
    chat.cleanup()


def measure_units(
    context: ViewContext, slots: int, now_s: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Return the seconds that a unit takes, by number of sessions: one, and all slots.

    Each session is fed a second of audio and a picture; every other one speaks.
    """
    views = [DuplexView(context) for _ in range(slots)]

    def round_s(count: int) -> float:
        began_s = now_s()
        units = [_unit(view, speaks=index % 2 == 0) for index, view in enumerate(views[:count])]
        run_together(context.model.executor, units)
        return now_s() - began_s

    try:
        for view in views:
            view.prepare()
        return {count: min(round_s(count) for _ in range(ROUNDS)) for count in (1, len(views))}
    finally:
        for view in views:
            view.cleanup()


def _unit(view: DuplexView, *, speaks: bool) -> Steps[None]:
    session, picture = view.session, Image.new("RGB", PICTURE_SIZE)
    yield from view.streaming_prefill(session, SECOND, [picture])
    yield from view.streaming_generate(session, not speaks, speaks)
    yield from view.close_unit(session)


BYTES_PER_MB = 1_000_000


def choose_device(gpu_index: int | None) -> str:
    """Return a model's device; an index beyond the visible GPUs wraps around."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{(gpu_index or 0) % torch.cuda.device_count()}"


logger = logging.getLogger(__name__)

CARD_FILE: Final = "model_card.json"  # ours, optional, in the checkpoint's folder
CARD_MAX_BYTES: Final = 65_536
NANO_VARIANT: Final = "nano"
PUBLISHED_MIN_PARAMETERS: Final = 5_000_000_000  # ours: far below the published 8 to 9 billion
TINY_NAME: Final = "Tiny random test model"


class ModelCard(WireModel):
    """A checkpoint's description of itself."""

    name: str = Field("", max_length=MODEL_NAME_MAX_CHARS)
    kind: ModelKind | None = None
    try_saying: tuple[Suggestion, ...] = Field((), max_length=SUGGESTIONS_MAX)


def model_facts(model: UnifiedModel, folder: Path) -> ModelFacts:
    card = read_card(folder)
    config = model.model.config
    parameters, weights = model.model.num_parameters(), model.model.weights
    dtype = str(model.executor.dtype).removeprefix("torch.")
    kind = kind_of(config.model_variant, parameters, card.kind)
    names = {ModelKind.TINY_RANDOM: TINY_NAME, ModelKind.FULL: f"MiniCPM-o {config.version}"}
    name = card.name or names.get(kind) or config.model_variant or folder.name
    device = model.executor.device
    device_name = device.type
    if device_name == "cuda":
        device_name = f"{device} ({torch.cuda.get_device_name(device)})"
    return ModelFacts(
        name=name[:MODEL_NAME_MAX_CHARS],
        kind=kind,
        parameters=parameters,
        device=device_name,
        dtype=dtype if weights is Weights.BF16 else weights.value,
        try_saying=card.try_saying,
    )


def kind_of(variant: str, parameters: int, card_kind: ModelKind | None) -> ModelKind:
    """Return a checkpoint's kind; no card turns random or small weights into the full model."""
    if variant == TINY_VARIANT:
        return ModelKind.TINY_RANDOM
    if card_kind is not None and card_kind is not ModelKind.FULL:
        return card_kind
    if variant == NANO_VARIANT:
        return ModelKind.NANO
    is_published = not variant and parameters >= PUBLISHED_MIN_PARAMETERS
    return ModelKind.FULL if is_published else ModelKind.UNKNOWN


def read_card(folder: Path) -> ModelCard:
    path = folder / CARD_FILE
    try:
        with path.open("rb") as file:
            return ModelCard.model_validate_json(file.read(CARD_MAX_BYTES))
    except FileNotFoundError:
        return ModelCard()
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be used: %s", path, error)
        return ModelCard()


# Shares of the total loading time.
WEIGHTS_SHARE: Final = 0.8
VOICE_SHARE: Final = 0.85
WARM_UP_SHARE: Final = 0.9

# Each operation of PyTorch releases the GIL; with Python's 5 ms the engine would wait that long to
# reacquire it while sockets are busy. Set after loading: Triton up to 3.6 may mix up two kernels'
# launchers if threads that start them are switched between.
SWITCH_INTERVAL_S: Final = 0.0005

Load = Callable[[Engine, Report], UnifiedProcessor]
"""Loads a model whose views an engine runs, and reports its progress."""


class RealBackend:
    own_transcriber: ClassVar[None] = None
    _device: torch.device  # once it is loaded, as the next
    _facts: ModelFacts

    def __init__(self, load: Load, *, warms_up: bool = True) -> None:
        self.media = MediaProcesses(keeps_spare=True)
        self._load = load
        # Empty without a GPU, where a worker has one slot unless configured otherwise.
        self.unit_s_by_sessions: dict[int, float] = {}
        self._warms_up = warms_up
        self._context: ViewContext | None = None

    @property
    def context(self) -> ViewContext:
        if self._context is None:
            raise ModelError("The model is not loaded.")
        return self._context

    @property
    def context_tokens(self) -> int | None:
        if self._context is None:
            return None
        tokens: int = self._context.model.executor.llm_store.shape.max_position_embeddings
        return tokens

    def count_tokens(self, text: str) -> int:
        return len(self.context.model.duplex.tokenizer.encode(text))

    def load(self, engine: Engine, report: Report) -> None:
        """Load the model and warm it up.

        What was loaded is permanent, so it is excluded from garbage collection. Toy tensors, and
        the small CPU tensors of a GPU worker, are slower with a second thread.
        """

        def report_part(stage: str, share: float | None) -> None:
            begin = VOICE_SHARE if stage == "loading the voice" else 0.0
            report(stage, begin if share is None else share * WEIGHTS_SHARE)

        processor = self._load(engine, report_part)
        self._context = context = processor.chat.context
        executor = context.model.executor
        self._device = executor.device
        self._facts = model_facts(context.model, processor.folder)
        engine.watch(partial(free_share, executor))
        if self._warms_up:
            report("warming up", WARM_UP_SHARE)
            speak_once(context)
            if self._device.type == "cuda":
                self.unit_s_by_sessions = measure_units(context, executor.options.slots)
                logger.info("unit durations, s by sessions: %s", self.unit_s_by_sessions)
        if processor.model.model.config.model_variant or self._device.type == "cuda":
            torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.tidy()
        gc.freeze()
        self.media.make_ready()
        logger.info("loaded the model to %s", self._device)

    def limit_windows(self, tokens: int | None) -> None:
        self.context.model.executor.llm_store.most_tokens = tokens

    def open_streaming(self, threads: Threads) -> StreamingView:
        return StreamingView(replace(self.context, threads=threads))

    def open_duplex(self, threads: Threads) -> DuplexView:
        return DuplexView(replace(self.context, threads=threads))

    def open_chat(self, threads: Threads) -> ChatView:
        return ChatView(replace(self.context, threads=threads))

    def tidy(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def check(self) -> None:
        """Run a small computation; raises `ModelError` if the device needs a new process."""
        try:
            torch.ones(1, device=self._device).sum().item()
        except RuntimeError as error:
            raise ModelError(f"The device has failed: {error}") from error

    def memory_mb(self) -> tuple[float, float] | None:
        if self._device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return (total - free) / BYTES_PER_MB, total / BYTES_PER_MB

    def close(self) -> None:
        """End the media processes; what was loaded can be collected again."""
        self.media.close()
        gc.unfreeze()  # or libraries built with nanobind report leaks at exit

    def facts(self) -> ModelFacts:
        return self._facts
