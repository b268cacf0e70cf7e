"""Long requests in portions, so that one conversation's long input holds up no other's unit.

Pure but for joining what was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from MiniCPMO45.steps import (
    Embeddings,
    EncodeClips,
    EncodeImages,
    LlmForward,
    LlmOutput,
    Request,
    TokenIds,
)

MOST_AT_ONCE: Final[dict[type, int]] = {
    LlmForward: 1_024,  # rows: some 25 ms of a large GPU, as long as a dozen units' input
    EncodeImages: 16,  # slices, about as long
    EncodeClips: 2,  # half a minute of sound each
}
"""Ours: how much of a kind one round takes on beside other conversations."""


def size_of(request: Request) -> int:
    """Return how much a request asks for, in what `MOST_AT_ONCE` counts; 1 for other kinds."""
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
    """Split a request.

    Args:
        request: of a kind that `MOST_AT_ONCE` names, or small.
        most: size of the first portion at most, at least 1.

    Returns:
        What to answer first, and the rest if there is one; `joined` makes one answer of both.
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
    """Split after `count` rows, which is less than there are."""
    head: list[TokenIds | Embeddings] = []
    for index, piece in enumerate(pieces):
        rows = _rows(piece)
        if rows > count:
            first, rest = _split_piece(piece, count)
            return (*head, *first), (rest, *pieces[index + 1 :])
        head.append(piece)
        count -= rows
    raise AssertionError("there are more rows than that")


def _split_piece(piece: TokenIds | Embeddings, count: int) -> tuple[Pieces, TokenIds | Embeddings]:
    if not count:
        return (), piece
    if isinstance(piece, TokenIds):
        return (TokenIds(piece.ids[:count]),), TokenIds(piece.ids[count:])
    return (Embeddings(piece.rows[:count]),), Embeddings(piece.rows[count:])
