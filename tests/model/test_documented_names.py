"""The methods that the published documents name exist, and take the arguments they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from core.processors import DuplexView, HalfDuplexView, StreamingView, UnifiedProcessor
from MiniCPMO45.modeling_minicpmo_unified import DuplexCapability

DOCUMENTED: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (UnifiedProcessor.set_duplex_mode, ()),
    (UnifiedProcessor.set_half_duplex_mode, ()),
    (DuplexView.prepare, ("system_prompt", "ref_audio_path", "prompt_wav_path")),
    (DuplexView.prefill, ("audio_waveform", "frame_list")),
    (DuplexView.generate, ("force_listen",)),
    (DuplexView.finalize, ()),
    (DuplexView.set_break, ()),
    (DuplexView.clear_break, ()),
    (DuplexView.stop, ()),
    (DuplexView.cleanup, ()),
    (HalfDuplexView.init_ref_audio, ("ref_audio_path",)),
    (HalfDuplexView.init_ref_audio_from_data, ("ref_audio",)),
    (HalfDuplexView.prefill, ("request",)),
    (HalfDuplexView.generate, ("session_id",)),
    (HalfDuplexView.can_rollback, ()),
    (HalfDuplexView.rollback, ()),
    (HalfDuplexView.clear_rollback_point, ()),
    (StreamingView.prefill, ("request",)),
    (DuplexCapability.streaming_prefill, ("session", "audio_waveform", "frame_list")),
    (DuplexCapability.streaming_generate, ("session", "force_listen")),
)


@pytest.mark.parametrize(
    ("method", "names"), DOCUMENTED, ids=lambda it: getattr(it, "__qualname__", "")
)
def test_a_documented_method_takes_its_arguments_by_position_and_by_name(
    method: Callable[..., Any], names: tuple[str, ...]
) -> None:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    first = parameters[: len(names)]
    assert tuple(parameter.name for parameter in first) == names
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in first)
