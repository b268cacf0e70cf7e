"""Log-mel of whole clips: counts, padding, floors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from MiniCPMO45.processing.mel import (
    MIN_CLIP_SAMPLES,
    MelState,
    clip_mels,
    embedding_count,
    encoder_frame_count,
    push,
)
from tests.fakes.textbook_mel import textbook_log_mel

# samples: mel frames, encoder frames, embeddings
COUNTS = {
    800: (5, 3, 0),
    1600: (10, 5, 1),
    8000: (50, 25, 5),
    16_000: (100, 50, 10),
    16_480: (103, 52, 10),
    16_560: (104, 52, 10),
    32_000: (200, 100, 20),
    160_000: (1000, 500, 100),
    480_000: (3000, 1500, 300),
}


def _noise(n_samples: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(n_samples, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("n_samples", "counts"), COUNTS.items())
def test_counts_follow_the_table(n_samples: int, counts: tuple[int, int, int]) -> None:
    mel_frames, encoder_frames, embeddings = counts
    assert clip_mels(_noise(n_samples))[0].shape == (80, mel_frames)
    assert encoder_frame_count(mel_frames) == encoder_frames
    assert embedding_count(n_samples) == embeddings


def test_long_audio_counts_piece_by_piece() -> None:
    assert embedding_count(480_000 + 16_000) == 310
    assert embedding_count(2 * 480_000 + 800) == 600
    assert [mel.shape[1] for mel in clip_mels(_noise(480_000 + 801))] == [3000, 6]


def test_the_shortest_useful_clip_is_known() -> None:
    assert MIN_CLIP_SAMPLES == 1281
    assert embedding_count(MIN_CLIP_SAMPLES) == 1
    assert embedding_count(MIN_CLIP_SAMPLES - 1) == 0


def test_an_empty_clip_has_no_pieces() -> None:
    assert clip_mels(np.zeros(0, dtype=np.float32)) == []
    assert embedding_count(0) == 0


@pytest.mark.parametrize("n_samples", [1, 199, 201, 16_000, 16_561, 479_100, 479_999, 480_000])
def test_a_clip_counts_as_padded_to_thirty_seconds(n_samples: int) -> None:
    audio = _noise(n_samples)
    padded = torch.cat([audio, torch.zeros(480_000 - n_samples)])
    expected = textbook_log_mel(padded, has_fixed_floor=False)[:, : -(-n_samples // 160)]
    torch.testing.assert_close(clip_mels(audio)[0], expected, atol=1e-5, rtol=0)


def test_arrays_and_tensors_give_the_same() -> None:
    audio = _noise(4000)
    read_only = audio.numpy().copy()
    read_only.flags.writeable = False
    assert torch.equal(clip_mels(read_only)[0], clip_mels(audio)[0])


def test_silence_lies_on_the_lowest_value_under_both_floors() -> None:
    assert torch.all(clip_mels(torch.zeros(1600))[0] == -1.5)
    assert torch.all(push(MelState(), torch.zeros(16_480)) == -1.5)


def test_the_floor_of_a_stream_does_not_reach_a_later_clip() -> None:
    audio = _noise(20_000)
    audio[8000:] *= 1e-6
    before = clip_mels(audio)[0]
    push(MelState(), _noise(16_480))
    assert torch.equal(clip_mels(audio)[0], before)
    assert before.min() > -1.5, "the lowest value under a fixed floor"


def test_stereo_is_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        clip_mels(torch.zeros(2, 1600))
