"""`UnifiedProcessor`: a loaded model with one view per mode."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import torch

from core.audio import FloatArray
from core.engine.engine import Engine, InlineEngine
from core.engine.passes import run_pass
from core.errors import AudioError, ModelError
from core.modes import Report
from core.processors.content import override, read_voice
from core.processors.duplex import DuplexView
from core.processors.streaming import StreamingView
from core.processors.turns import ChatView
from core.processors.view import View, ViewContext, model_errors
from core.schemas.duplex_calls import DuplexConfig
from MiniCPMO45.loading.checkpoint_source import find_checkpoint
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.settings import CacheKind, DuplexSettings, LoadOptions, Weights, WindowSettings

logger = logging.getLogger(__name__)

DEFAULT_VOICE_FILE: Final = Path("assets") / "system_ref_audio.wav"  # in the checkpoint

WeightsName = Literal["bf16", "fp8", "int4"]
DtypeName = Literal["float32", "bfloat16", "float16"]
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ViewT = TypeVar("ViewT", bound=View)


class UnifiedProcessor:
    """A loaded model with one view per mode; streaming and half duplex share one."""

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
        weights: WeightsName = "bf16",
        show_progress: bool = True,
        slots: int = 1,
        cache: Literal["bf16", "int8"] = "bf16",
        tokens_each: int = LoadOptions.tokens_each,
        engine: Engine | None = None,
        on_progress: Report | None = None,
    ) -> None:
        """Load a checkpoint, a folder or a hub id, to a device.

        `pt_path` holds weights applied over the checkpoint's, and `ref_audio_path` the default
        voice, by default the checkpoint's own. Conversations in duplex have the settings of
        `duplex_config` unless they bring theirs, and `window` says when old units and rounds leave
        the cache. Without a `seed` each session takes a fresh one. `dtype` is that of the model,
        by default bfloat16 on a GPU and float32 on a CPU, and `weights` the quantization of the
        language model; "bf16" keeps its dtype. `cache` is as `CacheKind`. A GPU reserves memory for
        `slots` concurrent conversations of `tokens_each` on average. `engine` runs the views'
        steps, by default the calling thread. `on_progress` is called with the stage of loading and
        the share done, 0 to 1, or None.

        Raises:
            ModelError: the checkpoint or the device cannot be used; the text says what to do.
            AudioError: the default voice cannot be read.
        """
        defaults = DuplexSettings(window=window or WindowSettings())
        options = LoadOptions(
            *_usable(device, dtype),
            weights=Weights(weights),
            overlay=None if pt_path is None else Path(pt_path),
            duplex_defaults=override(defaults, duplex_config),
            show_progress=show_progress,
            slots=slots,
            text_cache=CacheKind(cache),
            tokens_each=tokens_each,
            on_progress=on_progress,
        )
        options.report("reading the checkpoint")
        with model_errors():
            self.folder = find_checkpoint(model_path)
            voice = _default_voice(self.folder, ref_audio_path)
            model = UnifiedModel.from_checkpoint(self.folder, options)
        run = partial(run_pass, model.executor)
        runner: InlineEngine = engine or InlineEngine(run)
        runner.run_pass = run
        context = ViewContext(model, runner, voice, seed)
        kinds: tuple[type[View], ...] = ChatView, StreamingView, DuplexView
        self._views = {kind: kind(context) for kind in kinds}

    @property
    def model(self) -> UnifiedModel:
        return self.chat.context.model

    @property
    def chat(self) -> ChatView:
        return self._view(ChatView)

    @property
    def streaming(self) -> StreamingView:
        return self._view(StreamingView)

    half_duplex = streaming

    @property
    def duplex(self) -> DuplexView:
        return self._view(DuplexView)

    def set_chat_mode(self) -> ChatView:
        return self.chat

    def set_half_duplex_mode(self) -> StreamingView:
        return self.half_duplex

    def set_duplex_mode(self) -> DuplexView:
        return self.duplex

    def release(self) -> None:
        """Free every conversation and the model; harmless when called again."""
        while self._views:
            self._views.popitem()[1].cleanup()
        torch.cuda.empty_cache()

    def _view(self, kind: type[ViewT]) -> ViewT:
        view = self._views.get(kind)
        if not isinstance(view, kind):
            raise ModelError("The model was released.")
        return view


def _usable(name: str, dtype: DtypeName | None) -> tuple[torch.device, torch.dtype]:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"{name!r} is not a device; try 'cuda' or 'cpu'.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("No CUDA device is available; pass device='cpu' to run without one.")
    usual: DtypeName = "float32" if device.type == "cpu" else "bfloat16"
    return device, DTYPES[dtype or usual]


def _default_voice(folder: Path, given: str | Path | None) -> FloatArray | None:
    if given is not None:
        return read_voice(given)
    path = folder / DEFAULT_VOICE_FILE
    if not path.is_file():
        return None
    try:
        return read_voice(path)
    except AudioError as error:
        logger.warning("%s cannot be used as the default voice: %s", path, error)
        return None
