"""Mel filters, the log-mels of whole clips, and those of streams."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.machine import tensor_bytes
from MiniCPMO45.processing.mel import (
    MIN_CLIP_SAMPLES,
    MelState,
    clip_mels,
    embedding_count,
    encoder_frame_count,
    mel_filter_bank,
    push,
)
from tests.fakes.textbook_mel import textbook_log_mel

# The front ends of this model: Whisper, speech tokenizer, vocoder prompt.
FRONT_ENDS = [
    (16_000, 400, 80, 0.0, 8000.0),
    (16_000, 400, 128, 0.0, 8000.0),
    (24_000, 1920, 80, 0.0, 8000.0),
]


def _hz(mel: float) -> float:
    """Slaney's scale written out: 15 mels of 66.7 Hz, then 27 steps per factor 6.4."""
    return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def _mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000, 6.4)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_filters_are_triangles_between_neighbouring_centres(
    front_end: tuple[int, int, int, float, float],
) -> None:
    rate, n_fft, n_mels, low, high = front_end
    step = (_mel(high) - _mel(low)) / (n_mels + 1)
    edges = [_hz(_mel(low) + i * step) for i in range(n_mels + 2)]
    expected = np.zeros((n_mels, n_fft // 2 + 1))
    for m in range(n_mels):
        left, centre, right = edges[m : m + 3]
        for k in range(n_fft // 2 + 1):
            hz = k * rate / n_fft
            if left < hz <= centre:
                expected[m, k] = (hz - left) / (centre - left)
            elif centre < hz < right:
                expected[m, k] = (right - hz) / (right - centre)
        expected[m] *= 2 / (right - left)
    np.testing.assert_allclose(mel_filter_bank(*front_end).numpy(), expected, atol=1e-8)


def test_wide_filters_have_unit_area() -> None:
    filters = mel_filter_bank(24_000, 4096, 40, 0.0, 12_000.0)
    areas = filters.sum(1) * 24_000 / 4096
    np.testing.assert_allclose(areas.numpy(), 1.0, atol=0.02)


def test_same_arguments_share_one_tensor() -> None:
    assert mel_filter_bank(*FRONT_ENDS[0]) is mel_filter_bank(*FRONT_ENDS[0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 8001.0), (500.0, 500.0), (-1.0, 8000.0)])
def test_an_impossible_band_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="mel band"):
        mel_filter_bank(16_000, 400, 80, low, high)


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


def _quiet_noise(n_samples: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(n_samples, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("n_samples", "counts"), COUNTS.items())
def test_counts_follow_the_table(n_samples: int, counts: tuple[int, int, int]) -> None:
    mel_frames, encoder_frames, embeddings = counts
    assert clip_mels(_quiet_noise(n_samples))[0].shape == (80, mel_frames)
    assert encoder_frame_count(mel_frames) == encoder_frames
    assert embedding_count(n_samples) == embeddings


def test_long_audio_counts_piece_by_piece() -> None:
    assert embedding_count(480_000 + 16_000) == 310
    assert embedding_count(2 * 480_000 + 800) == 600
    assert [mel.shape[1] for mel in clip_mels(_quiet_noise(480_000 + 801))] == [3000, 6]


def test_the_shortest_useful_clip_is_known() -> None:
    assert MIN_CLIP_SAMPLES == 1281
    assert embedding_count(MIN_CLIP_SAMPLES) == 1
    assert embedding_count(MIN_CLIP_SAMPLES - 1) == 0


def test_an_empty_clip_has_no_pieces() -> None:
    assert clip_mels(np.zeros(0, dtype=np.float32)) == []
    assert embedding_count(0) == 0


@pytest.mark.parametrize("n_samples", [1, 199, 201, 16_000, 16_561, 479_100, 479_999, 480_000])
def test_a_clip_counts_as_padded_to_thirty_seconds(n_samples: int) -> None:
    audio = _quiet_noise(n_samples)
    padded = torch.cat([audio, torch.zeros(480_000 - n_samples)])
    expected = textbook_log_mel(padded, has_fixed_floor=False)[:, : -(-n_samples // 160)]
    torch.testing.assert_close(clip_mels(audio)[0], expected, atol=1e-5, rtol=0)


def test_arrays_and_tensors_give_the_same() -> None:
    audio = _quiet_noise(4000)
    read_only = audio.numpy().copy()
    read_only.flags.writeable = False
    assert torch.equal(clip_mels(read_only)[0], clip_mels(audio)[0])


def test_silence_lies_on_the_lowest_value_under_both_floors() -> None:
    assert torch.all(clip_mels(torch.zeros(1600))[0] == -1.5)
    assert torch.all(push(MelState(), torch.zeros(16_480)) == -1.5)


def test_the_floor_of_a_stream_does_not_reach_a_later_clip() -> None:
    audio = _quiet_noise(20_000)
    audio[8000:] *= 1e-6
    before = clip_mels(audio)[0]
    push(MelState(), _quiet_noise(16_480))
    assert torch.equal(clip_mels(audio)[0], before)
    assert before.min() > -1.5, "the lowest value under a fixed floor"


def test_stereo_is_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        clip_mels(torch.zeros(2, 1600))


FIRST_SAMPLES = 16_480
UNIT_SAMPLES = 16_000

# unit: frames out, buffer after, frames of the buffer, stable frames, base
TRACE = {
    0: (102, 16_480, 103, 102, 0),
    1: (104, 32_480, 203, 202, 0),
    3: (104, 64_480, 403, 402, 0),
    4: (104, 80_480, 503, 502, 0),
    28: (104, 464_480, 2903, 2902, 0),
    29: (104, 320_480, 2003, 3002, 1000),
    39: (104, 320_480, 2003, 4002, 2000),
}


@dataclass
class WholeBuffer:
    """The plain way: keep all audio, transform all of it on every push."""

    buffer: Tensor = field(default_factory=lambda: torch.zeros(0))
    last: int = 0
    base: int = 0

    def push(self, samples: Tensor, is_last: bool = False) -> Tensor:
        self.buffer = torch.cat([self.buffer, samples])
        if len(self.buffer) >= 480_000:
            dropped = min(160_000, len(self.buffer) - 16_000) // 160
            self.buffer = self.buffer[dropped * 160 :]
            self.base += dropped
        n = len(self.buffer)
        if n <= 200:
            return torch.zeros(80, 0)
        mel = textbook_log_mel(self.buffer, has_fixed_floor=n < 80_000)
        stable = self.base + min(n // 160, (n - 200) // 160 + 1)
        if stable < self.last + 102 and not is_last:
            return torch.zeros(80, 0)
        start, stop = max(0, self.last - 2 - self.base), max(0, self.last + 102 - self.base)
        self.last += 100
        return mel[:, start:stop]


def _noise(n_samples: int, seed: int = 0) -> Tensor:
    """Noise whose loudness wanders over eight orders of magnitude, so that the floor matters."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n_samples, generator=generator)
    exponents = -6 * torch.rand(n_samples // 4000 + 1, generator=generator)
    return noise * (10**exponents).repeat_interleave(4000)[:n_samples]


def _duplex_pieces(audio: Tensor) -> list[Tensor]:
    rest = audio[FIRST_SAMPLES:]
    return [audio[:FIRST_SAMPLES], *rest.split(UNIT_SAMPLES)]


def _assert_same_as_whole_buffer(pieces: list[Tensor]) -> None:
    plain, state = WholeBuffer(), MelState()
    for piece in pieces:
        expected = plain.push(piece)
        torch.testing.assert_close(push(state, piece), expected, atol=1e-5, rtol=0)
        assert state.core_end == plain.last
        assert state.base_frames == plain.base
        assert torch.equal(state.samples, plain.buffer)
    expected = plain.push(torch.zeros(0), is_last=True)
    last = push(state, torch.zeros(0), is_last=True)
    torch.testing.assert_close(last, expected, atol=1e-5, rtol=0)


def test_a_stream_follows_the_recorded_trace() -> None:
    state = MelState()
    audio = _noise(FIRST_SAMPLES + 39 * UNIT_SAMPLES)
    for unit, piece in enumerate(_duplex_pieces(audio)):
        mel = push(state, piece)
        assert state.core_end == unit * 100 + 100
        if unit in TRACE:
            seen = (
                mel.shape[1],
                len(state.samples),
                state.full_frames,
                state.base_frames + state.stable_frames,
                state.base_frames,
            )
            assert seen == TRACE[unit]


def test_units_equal_the_whole_buffer_across_both_drops() -> None:
    _assert_same_as_whole_buffer(_duplex_pieces(_noise(FIRST_SAMPLES + 41 * UNIT_SAMPLES, seed=1)))


@given(
    sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=12), seed=st.integers(0, 1 << 16)
)
def test_random_pieces_equal_the_whole_buffer(sizes: list[int], seed: int) -> None:
    _assert_same_as_whole_buffer(list(_noise(sum(sizes), seed).split(sizes)))


@pytest.mark.parametrize(
    "sizes",
    [
        [150, 60, 1, 16_269],  # begins with less than a window
        [479_999, 1, 0, 0, 16_000],  # drops while far behind
        [470_000, 9_999, 160_001, 16_000],
        [700_000, 16_000, 0, 0],  # more than the buffer holds, dropped in two goes
        [250_000, *[0] * 14, *[16_000] * 16],  # lags behind, catches up, drops
        [80_000 - 1, 1, 160, 40],  # the floor switches between two pushes
    ],
)
def test_odd_pieces_equal_the_whole_buffer(sizes: list[int]) -> None:
    _assert_same_as_whole_buffer(list(_noise(sum(sizes), seed=2).split(sizes)))


@pytest.mark.parametrize("burst_at", [100, 159_990, 160_010, 160_300])
def test_a_burst_lifts_the_floor_until_it_is_dropped(burst_at: int) -> None:
    audio = 1e-6 * _noise(FIRST_SAMPLES + 30 * UNIT_SAMPLES, seed=3)
    audio[burst_at : burst_at + 20] = 1.0
    _assert_same_as_whole_buffer(_duplex_pieces(audio))


def test_frames_of_a_stream_are_those_of_the_whole_signal() -> None:
    audio = _noise(FIRST_SAMPLES + 3 * UNIT_SAMPLES, seed=4)  # below 5 s: one constant floor
    whole = textbook_log_mel(audio, has_fixed_floor=True)
    state = MelState()
    for unit, piece in enumerate(_duplex_pieces(audio)):
        mel = push(state, piece)
        start = max(0, unit * 100 - 2)
        torch.testing.assert_close(mel, whole[:, start : unit * 100 + 102], atol=1e-5, rtol=0)


def test_nothing_comes_out_before_a_unit_is_stable() -> None:
    state = MelState()
    audio = _noise(FIRST_SAMPLES)
    assert push(state, audio[:-121]).shape == (80, 0)  # one sample short of frame 102
    assert push(state, audio[-121:]).shape == (80, 102)


def test_the_last_push_hands_out_what_there_is() -> None:
    state = MelState()
    assert push(state, _noise(8000), is_last=True).shape == (80, 50)


def test_a_clone_goes_its_own_way() -> None:
    audio = _noise(FIRST_SAMPLES + 2 * UNIT_SAMPLES, seed=5)
    first, second, third = _duplex_pieces(audio)
    state = MelState()
    push(state, first)
    snapshot = replace(state)
    push(state, -second)
    push(state, third)
    again = replace(snapshot)
    mels = [push(snapshot, second), push(again, second.numpy())]
    assert torch.equal(mels[0], mels[1])
    assert snapshot.core_end == 200


def test_memory_of_an_endless_stream_is_bounded() -> None:
    state = MelState()
    silence = np.zeros(UNIT_SAMPLES, dtype=np.float32)
    sizes = []
    for _ in range(65):
        push(state, silence)
        sizes.append(tensor_bytes(state))
    assert max(sizes) < 480_000 * 4 + 3000 * 4 + 80 * 300 * 4
    assert sizes[-1] == sizes[-11]
