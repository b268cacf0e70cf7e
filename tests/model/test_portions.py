"""Long requests in portions: nothing is lost, nothing comes twice, one answer comes of all."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from core.processors.portions import first_portion, joined, size_of
from MiniCPMO45.image_processing import Patches
from MiniCPMO45.steps import (
    Embeddings,
    EncodeClips,
    EncodeImages,
    LlmForward,
    LlmOutput,
    OpenVoice,
    Request,
    TokenIds,
)

KV: Any = object()  # nothing here looks at it
PIECES = (
    TokenIds((1, 2, 3)),
    Embeddings(torch.tensor([[4.0], [5.0]])),
    TokenIds((6,)),
    TokenIds((7, 8)),
)


def fed(request: Request) -> list[int]:
    """The rows of a forward pass, as numbers."""
    assert isinstance(request, LlmForward)
    rows = [
        piece.ids if isinstance(piece, TokenIds) else piece.rows[:, 0].int().tolist()
        for piece in request.pieces
    ]
    return [int(row) for row in chain.from_iterable(rows)]


@pytest.mark.parametrize("most", range(1, 9))
def test_rows_are_fed_in_order_and_the_last_portion_asks_for_the_answer(most: int) -> None:
    rest: Request | None = LlmForward(KV, PIECES, wants_logits=True)
    rows: list[int] = []
    wants: list[bool] = []
    while rest is not None:
        now, rest = first_portion(rest, most)
        assert isinstance(now, LlmForward) and 0 < size_of(now) <= most
        rows += fed(now)
        wants.append(now.wants_logits)
    assert rows == [1, 2, 3, 4, 5, 6, 7, 8]
    assert wants == [False] * (len(wants) - 1) + [True]


def test_one_answer_comes_of_all_portions() -> None:
    last = LlmOutput(torch.ones(3), torch.ones(1, 2), token=5)
    whole = joined([LlmOutput(None, torch.zeros(4, 2)), last])
    assert whole.hidden.shape == (5, 2) and whole.token == 5 and whole.logits is last.logits
    assert joined([last]) is last


def test_pictures_and_clips_come_in_portions_too() -> None:
    slices = tuple(Patches(np.full((1, 1), i, np.float32), 1, 1) for i in range(5))
    now, rest = first_portion(EncodeImages(slices), 2)
    assert isinstance(now, EncodeImages) and isinstance(rest, EncodeImages)
    assert (*now.slices, *rest.slices) == slices and len(now.slices) == 2
    clips = EncodeClips(tuple(torch.full((1,), float(i)) for i in range(3)), 50)
    now, rest = first_portion(clips, 1)
    assert isinstance(now, EncodeClips) and isinstance(rest, EncodeClips)
    assert (len(now.mels), len(rest.mels), rest.block_frames) == (1, 2, 50)
    assert joined([["a"], ["b", "c"]]) == ["a", "b", "c"]


def test_what_fits_stays_whole() -> None:
    request = LlmForward(KV, PIECES)
    assert first_portion(request, 8) == (request, None)
    voice = OpenVoice(np.zeros(1, np.float32), None)
    assert first_portion(voice, 1) == (voice, None)
