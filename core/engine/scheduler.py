"""Batch scheduling: which requests the next pass answers, and how much of each. Pure.

A batch over many conversations costs little more than one over a single conversation, so under
load some kinds of requests are delayed until a batch is large enough. Long requests are split
into chunks, so that they delay no other conversation's unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from MiniCPMO45.engine.steps import (
    ChooseToken,
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

MAX_PER_PASS: Final[dict[type, int]] = {
    LlmForward: 1_024,  # rows, some 20 ms on a large GPU
    EncodeImages: 4,  # slices, some 10 ms, or half of those that wait; see `full_batch`
    EncodeClips: 2,  # half a minute of audio each
}
"""Ours: the most of a kind that one pass takes when several conversations have requests."""


@dataclass(frozen=True)
class BatchRule:
    """When a delayed kind runs: once a batch has `size` requests or one is `max_delay_s` old."""

    size: int
    max_delay_s: float


# Ours, tuned on a simulated GPU with the costs measured on an H200, for the 99th percentile of 96
# video calls. Vocoder calls are not delayed: those of one `DrawCodes` batch arrive together.
BATCH_RULES: Final[dict[type, BatchRule]] = {
    EncodeStream: BatchRule(8, 0.03),
    EncodeImages: BatchRule(4, 0.2),  # most are encoded ahead of their unit
    DrawCodes: BatchRule(12, 0.15),  # a batch of one costs nearly as much as one of sixteen
}
UNDELAYED_TASKS: Final = 4  # with this many tasks or fewer, no request is delayed
DELAY_PER_TASK_S: Final = 0.02  # the longest delay, for each task beyond
NOT_LIVE_S: Final = 2.0  # deadline of work that is not live, from its request


class Prefill:
    """Kind of an `LlmForward` with several rows, which is not batched with single tokens."""


KINDS: Final[tuple[type, ...]] = (
    OpenVoice,
    ChooseToken,
    LlmForward,
    EncodeImages,
    DrawCodes,
    Vocode,
    EncodeClips,
    EncodeStream,
    Prefill,
)
"""Kinds in the order in which a pass answers them.

Each follows what is usually requested before it, so that one pass takes a unit several steps
further. Encodings and prefills, whose answers stay on the device, come between the kinds whose
answers the host reads: while the device computes the one, the host prepares the other.
"""
STAYS_ON_DEVICE: Final = frozenset({EncodeImages, EncodeClips, EncodeStream, Prefill})


@dataclass(frozen=True, eq=False)
class Waiting:
    """A pending request; `due_s` is None if its unit is not live."""

    request: Request
    size: int
    since_s: float
    due_s: float | None = None

    @property
    def deadline_s(self) -> float:
        return self.since_s + NOT_LIVE_S if self.due_s is None else self.due_s

    @property
    def kind(self) -> type:
        is_prefill = isinstance(self.request, LlmForward) and self.size > 1
        return Prefill if is_prefill else type(self.request)


@dataclass(frozen=True, eq=False)
class Chunk:
    """The part of a pending request that one pass answers, and the rest for later passes."""

    pending: Waiting
    request: Request
    rest: Request | None = None


Batch = list[Chunk]
"""Requests of one kind, the earliest deadline first."""


def next_batch(kind: type, waiting: Sequence[Waiting], now_s: float) -> Batch:
    """Return the batch of one kind among all pending requests; empty while the kind is delayed."""
    same = [each for each in waiting if each.kind is kind]
    rule = BATCH_RULES.get(kind)
    if same and rule is not None and len(same) < rule.size:
        delay_s = min(rule.max_delay_s, DELAY_PER_TASK_S * (len(waiting) - UNDELAYED_TASKS))
        if all(now_s < each.since_s + delay_s for each in same):
            return []
    return full_batch(kind, waiting)


def full_batch(kind: type, waiting: Sequence[Waiting]) -> Batch:
    """Return the batch of one kind; long requests use the capacity that the others leave.

    Passes take longer under load, so a fixed number of pictures in each would be less than arrive.
    """
    same = [each for each in waiting if each.kind is kind]
    same.sort(key=lambda each: each.deadline_s)
    capacity = MAX_PER_PASS.get(LlmForward if kind is Prefill else kind, len(same))
    if kind is EncodeImages:
        capacity = max(capacity, sum(each.size for each in same) // 2)
    batch: Batch = []
    long: list[Waiting] = []
    for each in same:
        if each.size > capacity:
            long.append(each)
        else:
            batch.append(Chunk(each, each.request))
            capacity -= each.size
    if long and capacity > 0:
        batch.append(Chunk(long[0], *first_chunk(long[0].request, capacity)))
    return batch


def size_of(request: Request) -> int:
    """Return the size of a request in the units of `MAX_PER_PASS`; 1 for other kinds."""
    match request:
        case LlmForward(rows=rows):
            return len(rows)
        case EncodeImages(slices=slices):
            return len(slices)
        case EncodeClips(mels=mels):
            return len(mels)
        case _:
            return 1


def first_chunk(request: Request, most: int) -> tuple[Request, Request | None]:
    """Split a request into a first chunk of size `most` or less, and the rest if there is one.

    `joined` merges their answers. `most` is at least 1.
    """
    if size_of(request) <= most:
        return request, None
    match request:
        case LlmForward(rows=rows):
            head, tail = rows.split(most)
            first = replace(request, rows=head, wants_logits=False, decision=None)
            return first, replace(request, rows=tail)
        case EncodeImages(slices=slices):
            return EncodeImages(slices[:most]), EncodeImages(slices[most:])
        case EncodeClips(mels=mels):
            return replace(request, mels=mels[:most]), replace(request, mels=mels[most:])
        case _:
            raise AssertionError(f"{type(request).__name__} has a size of 1")


def joined(answers: Sequence[Any]) -> Any:
    """Return the answer to a request from those to its chunks, in order."""
    last = answers[-1]
    if len(answers) == 1:
        return last
    if isinstance(last, LlmOutput):
        return replace(last, hidden=torch.cat([answer.hidden for answer in answers]))
    return [each for answer in answers for each in answer]
