"""The S3 tokenizer: names, counts, windows of long audio, code arithmetic."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from MiniCPMO45.token2wav.speech_tokenizer import (
    Quantizer,
    SpeechTokenizer,
    SpeechTokenizerConfig,
    window_ranges,
)
from tests.goldens.places import FULL

TINY = SpeechTokenizerConfig(n_mels=128, width=64, n_blocks=1)
PUBLISHED_TENSORS = 102
PUBLISHED_PARAMETERS = 123_714_568
NAMES = FULL.parent / "spec" / "state_dict_token2wav.json"


def _tokenizer(config: SpeechTokenizerConfig = TINY) -> SpeechTokenizer:
    torch.manual_seed(3)
    return SpeechTokenizer(config).eval()


def _published_shapes() -> dict[str, list[int]]:
    with torch.device("meta"):
        tokenizer = SpeechTokenizer(SpeechTokenizerConfig())
    return {name: list(tensor.shape) for name, tensor in tokenizer.state_dict().items()}


def test_published_sizes_give_the_published_counts() -> None:
    shapes = _published_shapes()
    assert len(shapes) == PUBLISHED_TENSORS
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == PUBLISHED_PARAMETERS


@pytest.mark.skipif(not NAMES.is_file(), reason="the list of names is not beside the repository")
def test_names_and_shapes_are_the_published_ones() -> None:
    lists = json.loads(NAMES.read_text(encoding="utf8"))
    expected = next(value for name, value in lists.items() if ".onnx" in name)
    assert _published_shapes() == expected


def test_sizes_are_read_off_the_tensors() -> None:
    for config in (TINY, SpeechTokenizerConfig(80, 128, 3, 5, 4)):
        weights = _tokenizer(config).state_dict()
        assert SpeechTokenizerConfig.from_tensors(weights) == config


def test_other_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="not a speech tokenizer"):
        SpeechTokenizerConfig.from_tensors({"conv.weight": torch.zeros(1)})


@pytest.mark.parametrize("n_frames", [1, 2, 3, 4, 5, 50, 101])
@torch.no_grad()
def test_four_mel_frames_make_a_code(n_frames: int) -> None:
    codes = _tokenizer().encode(torch.randn(128, n_frames))
    assert codes.shape == (math.ceil(n_frames / 4),)
    assert codes.dtype == torch.int64
    assert 0 <= int(codes.min()) <= int(codes.max()) < 3**8


@torch.no_grad()
def test_codes_are_base_three_digits_lowest_first() -> None:
    quantizer = Quantizer(TINY)
    weights = quantizer.state_dict()
    weights["_codebook.project_down.weight"].zero_()
    # 0, 1, 2, 1, … as digits: far below, at and far above zero.
    weights["_codebook.project_down.bias"].copy_(torch.tensor([-9.0, 0, 9, 0.1, -0.1, 0, 0, 9]))
    digits = [0, 1, 2, 1, 1, 1, 1, 2]
    expected = sum(digit * 3**place for place, digit in enumerate(digits))
    assert quantizer(torch.randn(2, 5, TINY.width)).unique().tolist() == [expected]


@given(n_frames=st.integers(1, 20_000))
def test_windows_cover_everything_and_overlap_by_four_seconds(n_frames: int) -> None:
    windows = window_ranges(n_frames)
    assert windows[0][0] == 0
    assert windows[-1][1] == n_frames
    for (start, stop), (next_start, _) in zip(windows, windows[1:], strict=False):
        assert stop - start == 3_000
        assert stop - next_start == 400
    assert len(windows) == 1 or windows[-1][1] - windows[-1][0] > 400


@pytest.mark.parametrize("n_frames", [3_000, 3_001, 3_250, 5_600, 5_777])
@torch.no_grad()
def test_long_audio_gives_every_code_once(n_frames: int) -> None:
    tokenizer = _tokenizer()
    mel = torch.randn(128, n_frames, generator=torch.Generator().manual_seed(1))
    codes = tokenizer.encode(mel)
    assert codes.numel() == math.ceil(n_frames / 4)
    first = tokenizer.quantizer(tokenizer.encoder(mel[None, :, :3_000]))[0]
    n_own = 750 if n_frames == 3_000 else 700
    assert torch.equal(codes[:n_own], first[:n_own])
    last = tokenizer.quantizer(tokenizer.encoder(mel[None, :, window_ranges(n_frames)[-1][0] :]))
    assert torch.equal(codes[-10:], last[0, -10:])


def test_no_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="no speech tokens"):
        window_ranges(0)
