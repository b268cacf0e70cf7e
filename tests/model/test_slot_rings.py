"""Slots of a cache ring after chunks, compared with the eviction rule on lists."""

from __future__ import annotations

import pytest

from MiniCPMO45.token2wav.vocoder_state import SlotRing


def kept(frames: list[int], first: int, last: int) -> list[int]:
    return frames if len(frames) <= first + last else frames[:first] + frames[-last:]


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("prompt_frames", [8, 60, 104, 250])
def test_both_ends_of_the_order_are_retained(prompt_frames: int, newest_first: bool) -> None:
    ring = SlotRing(prompt_frames, 100, newest_first).filled(range(prompt_frames))
    written = dict(enumerate(range(prompt_frames)))  # slot to frame
    frames, count = list(range(prompt_frames)), prompt_frames
    for n_frames in (50, 20, 30, 56, 2, 50, 50):
        new = list(range(count, count + n_frames))
        count += n_frames
        targets, ring = ring.append(n_frames)
        assert len(targets) == n_frames
        written |= {c: f for c, f in zip(targets.tolist(), new, strict=True) if c >= 0}
        frames = kept(new + frames if newest_first else frames + new, prompt_frames, 100)
        assert [written[slot] for slot in ring.slots.tolist()] == frames
        assert sorted(ring.slots.tolist()) == list(range(len(frames)))


def test_a_chunk_that_fits_drops_nothing_and_a_full_one_overwrites_the_oldest() -> None:
    ring = SlotRing(2, 4, newest_first=False).filled([0, 1])
    targets, ring = ring.append(4)
    assert targets.tolist() == [2, 3, 4, 5]
    targets, ring = ring.append(2)
    assert targets.tolist() == [2, 3]
    assert ring.slots.tolist() == [0, 1, 4, 5, 2, 3]
    assert ring.ages().tolist() == [6, 5, 2, 1, 4, 3]
