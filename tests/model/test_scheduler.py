"""Planning of passes: deadlines, delays for larger batches, and long requests in chunks."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch

from core.engine.scheduler import (
    BATCH_RULES,
    DELAY_PER_TASK_S,
    KINDS,
    MAX_PER_PASS,
    UNDELAYED_TASKS,
    Prefill,
    Waiting,
    first_chunk,
    full_batch,
    joined,
    next_batch,
    size_of,
)
from core.serving.capacity import DELAY_PER_SESSION_S, DELAY_S, UNDELAYED_SESSIONS
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import (
    DrawCodes,
    EncodeClips,
    EncodeImages,
    LlmForward,
    LlmOutput,
    OpenVoice,
    Request,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.processing.pictures import Patches

KV: Any = object()  # nothing here looks at it
ROWS = Rows.of((1, 2, 3), torch.tensor([[4.0], [5.0]]), (6,), (7, 8))


def fed(request: Request) -> list[int]:
    """Return the rows of a forward pass as numbers."""
    assert isinstance(request, LlmForward)
    numbers = list(request.rows.ids)
    for start, vectors in request.rows.vectors:
        numbers[start : start + len(vectors)] = vectors[:, 0].int().tolist()
    return numbers


@pytest.mark.parametrize("most", range(1, 9))
def test_rows_are_fed_in_order_and_the_last_chunk_asks_for_the_answer(most: int) -> None:
    rest: Request | None = LlmForward(KV, ROWS, wants_logits=True)
    rows: list[int] = []
    wants: list[bool] = []
    while rest is not None:
        now, rest = first_chunk(rest, most)
        assert isinstance(now, LlmForward) and 0 < size_of(now) <= most
        rows += fed(now)
        wants.append(now.wants_logits)
    assert rows == [1, 2, 3, 4, 5, 6, 7, 8]
    assert wants == [False] * (len(wants) - 1) + [True]


def test_one_answer_comes_of_all_chunks() -> None:
    last = LlmOutput(torch.ones(3), torch.ones(1, 2), token=5)
    whole = joined([LlmOutput(None, torch.zeros(4, 2)), last])
    assert whole.hidden.shape == (5, 2) and whole.token == 5 and whole.logits is last.logits
    assert joined([last]) is last


def test_pictures_and_clips_are_chunked_too() -> None:
    slices = tuple(Patches(np.full((1, 1), i, np.float32), 1, 1) for i in range(5))
    now, rest = first_chunk(EncodeImages(slices), 2)
    assert isinstance(now, EncodeImages) and isinstance(rest, EncodeImages)
    assert (*now.slices, *rest.slices) == slices and len(now.slices) == 2
    clips = EncodeClips(tuple(torch.full((1,), float(i)) for i in range(3)), 50)
    now, rest = first_chunk(clips, 1)
    assert isinstance(now, EncodeClips) and isinstance(rest, EncodeClips)
    assert (len(now.mels), len(rest.mels), rest.block_frames) == (1, 2, 50)
    assert joined([["a"], ["b", "c"]]) == ["a", "b", "c"]


def test_what_fits_stays_whole() -> None:
    request = LlmForward(KV, ROWS)
    assert first_chunk(request, 8) == (request, None)
    voice = OpenVoice(np.zeros(1, np.float32), None)
    assert first_chunk(voice, 1) == (voice, None)


def waiting(kind: type, since_s: float, due_s: float | None = None, size: int = 1) -> Waiting:
    """A request of a kind; its fields do not matter here."""
    request: Any = object.__new__(kind)
    return Waiting(request, size, since_s, due_s)


def chosen(requests: list[Waiting], now_s: float) -> list[int]:
    """Indices of the requests that a pass answers, unless others follow them."""
    batches = [next_batch(kind, requests, now_s) for kind in KINDS]
    return [requests.index(chunk.pending) for batch in batches for chunk in batch]


DECODING = [waiting(LlmForward, 0.0, 1.0) for _ in range(30)]
RULE = BATCH_RULES[DrawCodes]


def test_few_requests_are_never_delayed() -> None:
    kinds = (Vocode, EncodeStream, DrawCodes, LlmForward)
    requests = [waiting(kind, 0.0, 1.0) for kind in kinds]
    assert len(requests) == UNDELAYED_TASKS
    assert sorted(chosen(requests, 0.0)) == [0, 1, 2, 3]


def test_under_load_a_kind_is_delayed_for_a_larger_batch_while_decoding_continues() -> None:
    requests = [waiting(DrawCodes, 0.0, 1.0), *DECODING]
    assert sorted(chosen(requests, 0.01)) == list(range(1, 31))


def test_a_large_batch_is_not_delayed() -> None:
    requests = [*(waiting(DrawCodes, 0.0, 1.0) for _ in range(RULE.size)), *DECODING]
    assert len(chosen(requests, 0.01)) == len(requests)


def test_the_delay_is_bounded_and_later_requests_join_the_batch() -> None:
    late_s = RULE.max_delay_s
    requests = [waiting(DrawCodes, 0.0, 1.0), waiting(DrawCodes, late_s, 2.0), *DECODING]
    assert set(chosen(requests, late_s)) >= {0, 1}


def test_speech_codes_alone_are_delayed_so_that_no_unit_waits_twice() -> None:
    requests = [waiting(Vocode, 0.0, 1.0), *DECODING]
    assert 0 in chosen(requests, 0.0), "those drawn together are vocoded together"
    longest_s = RULE.max_delay_s + BATCH_RULES[EncodeStream].max_delay_s
    assert longest_s < 0.2, "of all delays of a unit"


def test_a_batch_is_ordered_by_deadline_and_work_that_is_not_live_becomes_due() -> None:
    requests = [
        waiting(LlmForward, 9.0, due_s=10.0),
        waiting(LlmForward, 9.0),
        waiting(LlmForward, 1.0),
        waiting(LlmForward, 9.0, due_s=9.5),
    ]
    assert chosen(requests, 9.0) == [2, 3, 0, 1]


def test_answers_that_stay_on_the_device_are_computed_between_those_that_the_host_reads() -> None:
    """The host prepares the next batch meanwhile; so prefills and single tokens are two batches."""
    requests = [
        waiting(EncodeImages, 0.0, 0.1),
        waiting(LlmForward, 0.0, 0.2, size=80),
        waiting(Vocode, 0.0, 0.3),
        waiting(LlmForward, 0.0, 0.4),
    ]
    assert chosen(requests, 0.0) == [3, 0, 2, 1]


def test_every_kind_of_request_has_its_place_in_a_pass() -> None:
    kinds = set(get_args(Request))
    assert {*kinds, Prefill} == set(KINDS) and len(KINDS) == len(kinds) + 1


@pytest.mark.parametrize(("held", "taken"), [(1, 1), (4, 4), (8, 4), (9, 4), (20, 10)])
def test_a_pass_takes_few_pictures_or_half_of_those_that_wait(held: int, taken: int) -> None:
    requests = [waiting(EncodeImages, 0.0) for _ in range(held)]
    assert len(full_batch(EncodeImages, requests)) == taken


def test_long_requests_share_the_capacity_that_short_ones_leave() -> None:
    capacity = MAX_PER_PASS[LlmForward]
    long = [LlmForward(KV, Rows((1,) * 2 * capacity)) for _ in range(2)]
    requests = [Waiting(each, size_of(each), 0.0) for each in long]
    requests += [waiting(LlmForward, 0.0, size=24), waiting(LlmForward, 0.0)]
    first = {requests.index(chunk.pending): chunk for chunk in full_batch(Prefill, requests)}
    assert sorted(first) == [0, 2], "the second long request waits for its turn"
    assert size_of(first[0].request) == capacity - 24 and first[0].rest is not None


def test_the_estimate_of_the_capacity_knows_the_delays_of_a_unit() -> None:
    needed = (EncodeStream, DrawCodes)  # pictures are encoded ahead of their unit
    assert pytest.approx(DELAY_S) == sum(BATCH_RULES[kind].max_delay_s for kind in needed)
    assert (DELAY_PER_SESSION_S, UNDELAYED_SESSIONS) == (DELAY_PER_TASK_S, UNDELAYED_TASKS)
