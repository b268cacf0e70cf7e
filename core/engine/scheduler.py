"""Which requests go into the next pass, and how much of each. Pure.

A batch over many conversations costs little more than one over a single conversation; so under
load some kinds wait briefly for more requests. A long request is answered in portions, so that it
delays no other conversation's unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from MiniCPMO45.engine.steps import (
    DrawCodes,
    Embeddings,
    EncodeClips,
    EncodeImages,
    LlmForward,
    LlmOutput,
    Request,
    TokenIds,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream

MAX_PER_PASS: Final[dict[type, int]] = {
    LlmForward: 1_024,  # rows: some 25 ms of a large GPU, as long as a dozen units' input
    EncodeImages: 16,  # slices, about as long
    EncodeClips: 2,  # half a minute of sound each
}
"""Ours: the most of a kind that one pass takes when several conversations wait."""

FULL_BATCH: Final[dict[type, int]] = {EncodeStream: 16, EncodeImages: 16, DrawCodes: 48, Vocode: 24}
"""The kinds that wait for more requests, and the number beyond which waiting saves little."""

# Ours. The waits are those that served most sessions in time, of 16 to 128 on a simulated GPU.
FREE_TASKS: Final = 4  # with so many tasks or fewer, no request waits
WAIT_PER_TASK_S: Final = 0.02  # for each task beyond
MAX_WAIT_S: Final = 0.2
UNHURRIED_S: Final = 2.0  # after this, work without a due time counts as due


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request that waits for a pass; `due_s` is None if its unit is not live."""

    request: Request
    size: int
    since_s: float
    due_s: float | None = None

    @property
    def deadline_s(self) -> float:
        return self.since_s + UNHURRIED_S if self.due_s is None else self.due_s


@dataclass(frozen=True, eq=False)
class Portion:
    """The part of the request `index` that one pass answers, and the rest for later passes."""

    index: int
    request: Request
    rest: Request | None = None


Batch = list[Portion]
"""Requests of one kind, the earliest deadline first."""


def plan_pass(waiting: Sequence[Waiting], now_s: float) -> list[Batch]:
    """Return the batches of the next pass: one per kind, at least one; a lone request is whole."""
    if len(waiting) == 1:
        return [[Portion(0, waiting[0].request)]]
    by_kind: dict[type, list[int]] = {}
    for index in sorted(range(len(waiting)), key=lambda index: waiting[index].deadline_s):
        by_kind.setdefault(type(waiting[index].request), []).append(index)
    wait_s = min(MAX_WAIT_S, WAIT_PER_TASK_S * (len(waiting) - FREE_TASKS))
    chosen = [
        indices
        for kind, indices in by_kind.items()
        if not _waits(kind, [waiting[index] for index in indices], now_s, wait_s)
    ]
    if not chosen:  # the device never idles; the other kinds keep waiting
        chosen = [next(iter(by_kind.values()))]
    return [_fill(waiting, indices) for indices in chosen]


def _waits(kind: type, waiting: Sequence[Waiting], now_s: float, wait_s: float) -> bool:
    full = FULL_BATCH.get(kind)
    if full is None or len(waiting) >= full or wait_s <= 0.0:
        return False
    return all(now_s < each.since_s + wait_s for each in waiting)


def _fill(waiting: Sequence[Waiting], indices: Sequence[int]) -> Batch:
    """Return a batch of these requests; long ones use the room that the others leave."""
    room = MAX_PER_PASS.get(type(waiting[indices[0]].request), len(indices))
    batch: Batch = []
    long: list[int] = []
    for index in indices:
        size = waiting[index].size
        if size > max(1, room):
            long.append(index)
            continue
        batch.append(Portion(index, waiting[index].request))
        room -= size
    for index in long:
        if room > 0:
            batch.append(Portion(index, *first_portion(waiting[index].request, room)))
            room -= min(room, waiting[index].size)
    return batch


# --- portions ---


def size_of(request: Request) -> int:
    """Return how much a request asks for, in the units of `MAX_PER_PASS`; 1 for other kinds."""
    match request:
        case LlmForward(pieces=pieces):
            return sum(_rows(piece) for piece in pieces)
        case EncodeImages(slices=slices):
            return len(slices)
        case EncodeClips(mels=mels):
            return len(mels)
        case _:
            return 1


def first_portion(request: Request, most: int) -> tuple[Request, Request | None]:
    """Split a request into a first portion of size `most` or less, and the rest if there is one.

    `joined` makes one answer of those to both. `most` is at least 1.
    """
    if size_of(request) <= most:
        return request, None
    match request:
        case LlmForward(pieces=pieces):
            head, tail = _split(pieces, most)
            first = replace(request, pieces=head, wants_logits=False, decision=None)
            return first, replace(request, pieces=tail)
        case EncodeImages(slices=slices):
            return EncodeImages(slices[:most]), EncodeImages(slices[most:])
        case EncodeClips(mels=mels):
            return replace(request, mels=mels[:most]), replace(request, mels=mels[most:])
        case _:
            raise AssertionError(f"{type(request).__name__} has a size of 1")


def joined(answers: Sequence[Any]) -> Any:
    """Return the answer to a request from those to its portions, in order."""
    last = answers[-1]
    if len(answers) == 1:
        return last
    if isinstance(last, LlmOutput):
        return replace(last, hidden=torch.cat([answer.hidden for answer in answers]))
    return [each for answer in answers for each in answer]


def _rows(piece: TokenIds | Embeddings) -> int:
    return len(piece.ids) if isinstance(piece, TokenIds) else piece.rows.shape[0]


Pieces = tuple[TokenIds | Embeddings, ...]


def _split(pieces: Pieces, count: int) -> tuple[Pieces, Pieces]:
    """Split after `count` rows."""
    head: list[TokenIds | Embeddings] = []
    tail: list[TokenIds | Embeddings] = []
    for piece in pieces:
        taken = min(count, _rows(piece))
        if taken:
            head.append(_part(piece, 0, taken))
        if taken < _rows(piece):
            tail.append(_part(piece, taken, None))
        count -= taken
    return tuple(head), tuple(tail)


def _part(piece: TokenIds | Embeddings, start: int, stop: int | None) -> TokenIds | Embeddings:
    if isinstance(piece, TokenIds):
        return TokenIds(piece.ids[start:stop])
    return Embeddings(piece.rows[start:stop])
