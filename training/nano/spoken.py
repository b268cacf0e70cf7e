"""What the voice is trained on: replies inside served sequences, with the brain's hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from training.nano.batches import Batch
from training.nano.brain import Brain


@dataclass(frozen=True, eq=False)
class SpokenUnits:
    """One reply as the speech decoder gets it.

    Attributes:
        text: the whole reply, also what was not said of it.
        ids: per unit the spoken ids, `<|turn_eos|>` last where the turn ends; a turn-based reply
            is one unit.
        hidden: per unit [n, width], the state of each of those ids.
        has_ended: the reply was said to its end.
        is_duplex: the units are seconds.
    """

    text: str
    ids: tuple[tuple[int, ...], ...]
    hidden: tuple[Tensor, ...]
    has_ended: bool
    is_duplex: bool


@torch.no_grad()
def spoken_units(brain: Brain, batch: Batch) -> Iterator[SpokenUnits]:
    """Yield every reply of a batch.

    Args:
        brain: trained; on the batch's device.
        batch: whole conversations.
    """
    hidden = brain(batch).hidden
    is_duplex = batch.stream.shape[1] > 0
    for row, replies in enumerate(batch.replies):
        for reply in replies:
            yield SpokenUnits(
                reply.text,
                tuple(
                    tuple(int(token) for token in batch.ids[row, start:stop])
                    for start, stop in reply.units
                ),
                tuple(hidden[row, start:stop] for start, stop in reply.units),
                reply.has_ended,
                is_duplex,
            )
