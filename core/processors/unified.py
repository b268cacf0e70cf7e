"""`UnifiedProcessor`: one loaded model, and a view of it for every mode.

Choosing a mode only says which view is meant: all state is in the views' sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import torch

from core.audio import FloatArray
from core.capabilities import ProcessorCapabilities, ProcessorMode, get_capabilities
from core.engine.engine import Engine, InlineEngine
from core.engine.passes import PassRunner
from core.errors import AudioError, ModelError
from core.processors.chat import ChatView
from core.processors.content import duplex_settings, read_voice
from core.processors.duplex import DuplexView
from core.processors.half_duplex import HalfDuplexView
from core.processors.streaming import StreamingView
from core.processors.view import ViewContext, model_errors
from core.schemas.duplex_calls import DuplexConfig
from MiniCPMO45.checkpoint_source import find_checkpoint
from MiniCPMO45.modeling_minicpmo_unified import LoadOptions, UnifiedModel
from MiniCPMO45.settings import DuplexSettings, WindowSettings

logger = logging.getLogger(__name__)

DEFAULT_VOICE_FILE: Final = Path("assets") / "system_ref_audio.wav"  # of the checkpoint

OnProgress = Callable[[str, float | None], None]
"""Told what is being loaded, and the share of it that is there, 0 to 1, if known."""

DtypeName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ProcessorOptions:
    """How a processor was made; the fields are the arguments of `UnifiedProcessor`."""

    model_path: str | Path
    pt_path: str | Path | None = None
    device: str = "cuda"
    ref_audio_path: str | Path | None = None
    duplex_config: DuplexConfig | None = None
    window: WindowSettings = WindowSettings()
    seed: int | None = None
    dtype: DtypeName | None = None
    show_progress: bool = True
    slots: int = 1


@dataclass(frozen=True, eq=False)
class _Views:
    """One view per mode; streaming and half duplex are the same."""

    chat: ChatView
    half_duplex: HalfDuplexView
    duplex: DuplexView

    @classmethod
    def over(cls, context: ViewContext) -> _Views:
        """Make one view per mode."""
        return cls(ChatView(context), HalfDuplexView(context), DuplexView(context))

    def of(self, mode: ProcessorMode) -> ChatView | HalfDuplexView | DuplexView:
        """The view of a mode."""
        if mode is ProcessorMode.CHAT:
            return self.chat
        return self.duplex if mode is ProcessorMode.DUPLEX else self.half_duplex


class UnifiedProcessor:
    """A loaded model with its views.

    Attributes:
        options: how it was made.
    """

    def __init__(
        self,
        model_path: str | Path,
        pt_path: str | Path | None = None,
        device: str = "cuda",
        ref_audio_path: str | Path | None = None,
        duplex_config: DuplexConfig | None = None,
        *,
        window: WindowSettings | None = None,
        seed: int | None = None,
        dtype: DtypeName | None = None,
        show_progress: bool = True,
        slots: int = 1,
        engine: Engine | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Load a checkpoint.

        Args:
            model_path: checkpoint folder or hub id.
            pt_path: weights applied over the checkpoint's.
            device: where the model runs.
            ref_audio_path: default voice; None takes the checkpoint's own.
            duplex_config: settings of duplex conversations that bring none.
            window: when old units and rounds leave the cache.
            seed: of every session's draws; None takes a fresh seed for each.
            dtype: of the model; None takes bfloat16 on a GPU and float32 on a CPU.
            show_progress: draw progress bars while loading.
            slots: conversations at once that a GPU is made ready for; more take turns.
            engine: runs the steps of the views' coroutines. Without one they run on the calling
                thread, and the views' synchronous methods can be used everywhere.
            on_progress: told what is being loaded, and the share of it that is there, if known.

        Raises:
            ModelError: the checkpoint or the device cannot be used; the text says what to do.
            AudioError: the default voice cannot be read.
        """
        self.options = ProcessorOptions(
            model_path,
            pt_path,
            device,
            ref_audio_path,
            duplex_config,
            window or WindowSettings(),
            seed,
            dtype,
            show_progress,
            slots,
        )
        self._mode = ProcessorMode.CHAT
        self._views: _Views | None = self._load_views(engine, on_progress)

    @property
    def mode(self) -> ProcessorMode:
        """The mode chosen last; chat at first."""
        return self._mode

    @property
    def capabilities(self) -> ProcessorCapabilities:
        """What the chosen mode can do."""
        return get_capabilities(self.mode)

    @property
    def chat(self) -> ChatView:
        """The view of chat; the mode stays."""
        return self._loaded().chat

    @property
    def streaming(self) -> StreamingView:
        """The view of streaming, the same as of half duplex; the mode stays."""
        return self._loaded().half_duplex

    @property
    def half_duplex(self) -> HalfDuplexView:
        """The view of half duplex; the mode stays."""
        return self._loaded().half_duplex

    @property
    def duplex(self) -> DuplexView:
        """The view of full duplex; the mode stays."""
        return self._loaded().duplex

    @property
    def model(self) -> UnifiedModel:
        """The loaded model."""
        return self._loaded().chat.context.model

    @property
    def kv_cache_length(self) -> int:
        """Tokens in the cache of the chosen mode's conversation."""
        return 0 if self._views is None else self._views.of(self._mode).kv_cache_length

    def set_chat_mode(self) -> ChatView:
        """Choose chat."""
        self._mode = ProcessorMode.CHAT
        return self.chat

    def set_half_duplex_mode(self) -> HalfDuplexView:
        """Choose half duplex."""
        self._mode = ProcessorMode.HALF_DUPLEX
        return self.half_duplex

    def set_duplex_mode(self) -> DuplexView:
        """Choose full duplex."""
        self._mode = ProcessorMode.DUPLEX
        return self.duplex

    def is_ready(self) -> bool:
        """Say whether the model is loaded."""
        return self._views is not None

    def release(self) -> None:
        """Free every conversation and the model; harmless when called again."""
        if self._views is not None:
            self._release_resources()

    def _load_views(self, engine: Engine | None, on_progress: OnProgress | None) -> _Views:
        with model_errors():
            model = self._load_model(on_progress)
        voice = self._default_voice()
        if engine is not None:
            engine.use(PassRunner(model.executor))
        runs_steps = engine or InlineEngine(PassRunner(model.executor))
        return _Views.over(ViewContext(model, runs_steps, voice, self.options.seed))

    def _load_model(self, on_progress: OnProgress | None = None) -> UnifiedModel:
        options = self.options
        load_options = replace(_load_options(options), on_progress=on_progress)
        return UnifiedModel.from_checkpoint(options.model_path, load_options)

    def _release_resources(self) -> None:
        views, self._views = self._loaded(), None
        on_gpu = views.chat.context.model.executor.device.type == "cuda"
        for view in (views.chat, views.half_duplex, views.duplex):
            view.cleanup()
        del views, view
        if on_gpu:
            torch.cuda.empty_cache()

    def _loaded(self) -> _Views:
        if self._views is None:
            raise ModelError("The model was released.")
        return self._views

    def _default_voice(self) -> FloatArray | None:
        """The operator's voice, else the checkpoint's own, else none."""
        if self.options.ref_audio_path is not None:
            return read_voice(self.options.ref_audio_path)
        with model_errors():
            path = find_checkpoint(self.options.model_path) / DEFAULT_VOICE_FILE
        if not path.is_file():
            return None
        try:
            return read_voice(path)
        except AudioError as error:
            logger.warning("%s is no default voice: %s", path, error)
            return None


def _load_options(options: ProcessorOptions) -> LoadOptions:
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        raise ModelError(f"{options.device!r} is no device; try 'cuda' or 'cpu'.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("There is no CUDA device here; pass device='cpu' to run without one.")
    usual = LoadOptions.for_device(device)
    defaults = DuplexSettings(window=options.window)
    if options.duplex_config is not None:
        defaults = duplex_settings(options.duplex_config, defaults)
    return replace(
        usual,
        dtype=usual.dtype if options.dtype is None else _dtype(options.dtype),
        overlay=None if options.pt_path is None else Path(options.pt_path),
        duplex_defaults=defaults,
        show_progress=options.show_progress,
        slots=options.slots,
    )


def _dtype(name: DtypeName) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return known[name]
