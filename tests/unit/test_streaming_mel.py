"""Streaming mel: the recorded trace, and equality with taking the whole buffer every time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.machine import tensor_bytes
from MiniCPMO45.processing.mel import MelState, push
from tests.fakes.textbook_mel import textbook_log_mel

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
