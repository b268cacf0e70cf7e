"""Every module has exactly the names and shapes of the published files.

The facts are in tests/golden/state_dict.json and state_dict_token2wav.json.
Source: docs/specification/model.md#2 and #9.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.loading.checkpoint import expected_shapes
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.token2wav.config import FlowConfig, HiFTConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig
from tests.goldens.places import COMMITTED

Shapes = dict[str, tuple[int, ...]]

TENSORS_PER_PART = {
    "llm": 399,
    "vpm": 437,
    "apm": 367,
    "audio_projection_layer": 4,
    "resampler": 13,
    "tts": 194,
}


def recorded(name: str) -> Any:
    return json.loads((COMMITTED / name).read_text(encoding="utf8"))


def to_shapes(values: dict[str, list[int]]) -> Shapes:
    return {name: tuple(shape) for name, shape in values.items()}


def require_equal(ours: Shapes, published: Shapes) -> None:
    """Say which names differ, not that two long mappings do."""
    assert sorted(published.keys() - ours.keys()) == []
    assert sorted(ours.keys() - published.keys()) == []
    assert {n: s for n, s in ours.items() if published[n] != s} == {}


def count_elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


@pytest.fixture(scope="module")
def model() -> MiniCPMOForConditionalGeneration:
    with torch.device("meta"):
        return MiniCPMOForConditionalGeneration(MiniCPMOConfig())


def test_full_size_model_has_the_published_tensors(model: MiniCPMOForConditionalGeneration) -> None:
    ours = expected_shapes(model)
    require_equal(ours, to_shapes(recorded("state_dict.json")))
    assert len(ours) == 1414
    assert count_elements(ours) == 9_371_787_666


def test_parts_have_the_published_number_of_tensors(
    model: MiniCPMOForConditionalGeneration,
) -> None:
    counts = {name: len(part.state_dict()) for name, part in model.named_children()}
    assert counts == TENSORS_PER_PART


def test_model_has_no_buffers_so_that_it_can_be_built_without_values(
    model: MiniCPMOForConditionalGeneration,
) -> None:
    assert [name for name, _ in model.named_buffers()] == []
    assert all(parameter.is_meta for parameter in model.parameters())


def test_unused_tensors_are_the_ones_the_specification_names() -> None:
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(MiniCPMOConfig())
    before = expected_shapes(model)
    model.drop_unused()
    dropped = before.keys() - expected_shapes(model).keys()
    assert len(dropped) == 5
    assert count_elements({name: before[name] for name in dropped}) == 28_313_088


@pytest.mark.parametrize(
    "make, file, n_tensors, n_elements",
    [
        (lambda: Flow(FlowConfig()), "assets/token2wav/flow.pt", 605, 155_802_352),
        (lambda: HiFT(HiFTConfig()), "assets/token2wav/hift.pt", 328, 20_821_295),
        (
            lambda: SpeechTokenizer(SpeechTokenizerConfig()),
            "assets/token2wav/speech_tokenizer_v2_25hz.onnx (converted names)",
            102,
            123_714_568,
        ),
    ],
    ids=["flow", "hift", "speech_tokenizer"],
)
def test_full_size_vocoder_has_the_published_tensors(
    make: Callable[[], nn.Module], file: str, n_tensors: int, n_elements: int
) -> None:
    with torch.device("meta"):
        ours = expected_shapes(make())
    require_equal(ours, to_shapes(recorded("state_dict_token2wav.json")[file]))
    assert len(ours) == n_tensors
    assert count_elements(ours) == n_elements
