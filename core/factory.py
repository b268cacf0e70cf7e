"""Makes processors and views from plain values; a loaded model is made once and shared.

A factory is an object of its own: whoever serves a model keeps one, and nothing is global.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.capabilities import ProcessorMode
from core.errors import BadConfigError
from core.processors import ChatView, DuplexView, HalfDuplexView, UnifiedProcessor
from core.schemas.duplex_calls import DuplexConfig

AnyView = ChatView | HalfDuplexView | DuplexView


class ProcessorConfig(BaseModel):
    """What a view is made from; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    mode: ProcessorMode = Field(ProcessorMode.CHAT, description="Which view.")
    model_path: str = Field(description="Checkpoint folder or hub id.")
    pt_path: str | None = Field(None, description="Weights applied over the checkpoint's.")
    device: str = Field("cuda", description="Where the model runs.")
    ref_audio_path: str | None = Field(None, description="Default voice, a sound file.")
    duplex_config: DuplexConfig | None = Field(
        None, description="Settings of duplex conversations that bring none."
    )
    seed: int | None = Field(None, description="Of every session's draws.")

    def processor_options(self) -> dict[str, Any]:
        """Return the arguments of the processor besides the two that name the weights."""
        # Any: arguments of several types under their names.
        return {
            "device": self.device,
            "ref_audio_path": self.ref_audio_path,
            "duplex_config": self.duplex_config,
            "seed": self.seed,
        }


class ProcessorFactory:
    """Loads each pair of checkpoint and overlay once, whichever thread asks first."""

    def __init__(self, build: Callable[..., UnifiedProcessor] = UnifiedProcessor) -> None:
        """Start empty.

        Args:
            build: makes a processor; takes what `UnifiedProcessor` takes.
        """
        self._build = build
        self._processors: dict[str, UnifiedProcessor] = {}
        self._lock = threading.Lock()

    def get_processor(
        self,
        model_path: str | Path,
        pt_path: str | Path | None = None,
        **options: Any,  # Any: further arguments of the processor, each of its own type
    ) -> UnifiedProcessor:
        """Return the processor of a checkpoint, loading it if need be.

        Args:
            model_path: checkpoint folder or hub id.
            pt_path: weights applied over the checkpoint's.
            **options: further arguments of `UnifiedProcessor`; only the first call's count.

        Raises:
            ModelError: the checkpoint or the device cannot be used.
        """
        key = f"{model_path}:{pt_path or ''}"
        with self._lock:
            processor = self._processors.get(key)
            if processor is None or not processor.is_ready():
                processor = self._build(model_path, pt_path, **options)
                self._processors[key] = processor
            return processor

    def create(
        self,
        mode: ProcessorMode | str,
        model_path: str | Path,
        pt_path: str | Path | None = None,
        **options: Any,  # Any: as in `get_processor`
    ) -> AnyView:
        """Return the view of a mode.

        Args:
            mode: the mode or its name.
            model_path: checkpoint folder or hub id.
            pt_path: weights applied over the checkpoint's.
            **options: further arguments of `UnifiedProcessor`; only the first call's count.

        Raises:
            BadConfigError: there is no such mode.
            ModelError: the checkpoint or the device cannot be used.
        """
        chosen = _mode(mode)
        processor = self.get_processor(model_path, pt_path, **options)
        if chosen is ProcessorMode.CHAT:
            return processor.set_chat_mode()
        if chosen is ProcessorMode.DUPLEX:
            return processor.set_duplex_mode()
        return processor.set_half_duplex_mode()

    def from_config(self, config: Mapping[str, object]) -> AnyView:
        """Return the view a configuration describes.

        Args:
            config: values by the names of `ProcessorConfig`.

        Raises:
            BadConfigError: a value is missing, unknown or of the wrong kind.
            ModelError: the checkpoint or the device cannot be used.
        """
        try:
            chosen = ProcessorConfig.model_validate(config)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            name = ".".join(str(part) for part in problem["loc"])
            raise BadConfigError(f"{name}: {problem['msg']}.") from error
        return self.create(
            chosen.mode, chosen.model_path, chosen.pt_path, **chosen.processor_options()
        )

    def release(self) -> None:
        """Free every processor."""
        with self._lock:
            for processor in self._processors.values():
                processor.release()
            self._processors.clear()


def create_processor(
    mode: ProcessorMode | str,
    model_path: str | Path,
    pt_path: str | Path | None = None,
    **options: Any,  # Any: as in `ProcessorFactory.get_processor`
) -> AnyView:
    """Load a checkpoint and return the view of a mode; nothing is shared with other calls.

    Args:
        mode: the mode or its name.
        model_path: checkpoint folder or hub id.
        pt_path: weights applied over the checkpoint's.
        **options: further arguments of `UnifiedProcessor`.

    Raises:
        BadConfigError: there is no such mode.
        ModelError: the checkpoint or the device cannot be used.
    """
    return ProcessorFactory().create(mode, model_path, pt_path, **options)


def _mode(mode: ProcessorMode | str) -> ProcessorMode:
    try:
        return ProcessorMode(mode)
    except ValueError as error:
        raise BadConfigError(f"There is no mode {mode!r}.") from error
