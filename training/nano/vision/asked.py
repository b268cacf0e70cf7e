"""Conversations with pictures, and a model that encodes them."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor, nn

from MiniCPMO45.processing.processor import MiniCPMOProcessor
from training.nano.bank import Bank
from training.nano.batches import Conversations
from training.nano.layout import PICTURE_ROWS
from training.nano.model import NanoModel
from training.nano.sessions import DuplexSession, Example
from training.nano.turns import TurnsSession
from training.nano.vision.encoder import (
    CAMERA_WEIGHTS,
    CAMERAS,
    SERVED_RESOLUTION,
    VisionEncoder,
    served_size,
)
from training.nano.vision.pictures import Painter
from training.nano.vision.places import PLACES, targets_of
from training.nano.vision.scenes import N_SHAPES, NOTHING, Labels

UNITS = (4, 5, 6, 7, 8)
TURNS_SHARE = 0.4


class PicturedConversations(Conversations):
    """Batches of `units` conversations that all have pictures."""

    def _examples(self, bank: Bank, processor: MiniCPMOProcessor, random: Random) -> list[Example]:
        chosen: list[Example] = []
        is_turns, n_units = random.random() < TURNS_SHARE, random.choice(UNITS)
        while len(chosen) < self.units:
            session: TurnsSession | DuplexSession
            if is_turns:
                session = TurnsSession(bank, processor, random)
            else:
                session = DuplexSession(
                    bank, processor.tokenizer, random, n_units, has_pictures=True
                )
            if not session.has_pictures:
                continue
            example = session.compose()
            if not chosen or example.has_blocked_clips == chosen[0].has_blocked_clips:
                chosen.append(example)
        return chosen


class SeeingModel(NanoModel):
    """A model that encodes painted pictures, where `NanoModel` embeds their captions."""

    newest: tuple[Tensor, Tensor]  # rows [P, 64, width] of the last pass; targets, int64 [P, 4]

    def __init__(
        self,
        model: NanoModel,
        vision: VisionEncoder,
        painter: Painter,
        ids: list[list[int]],
        seed: int,
    ) -> None:
        """Add a vision encoder to a trained model, whose modules are shared."""
        nn.Module.__init__(self)
        self.config = model.config
        self.apm = model.apm
        self.audio_projection_layer = model.audio_projection_layer
        self.llm = model.llm
        self.vision = vision
        self._painter = painter
        self._random = Random(seed)
        self._meaning = _meanings(ids, model.config.vocab_size)

    def _embed_pictures(self, words: Tensor) -> Tensor:
        """Paint and encode the pictures; consecutive ones with the same caption are one picture."""
        captions = words.unflatten(0, (-1, PICTURE_ROWS))[:, :PLACES]
        changes = torch.ones(len(captions), dtype=torch.bool, device=words.device)
        changes[1:] = (captions[1:] != captions[:-1]).any(1)
        labels = self._labels(captions[changes])
        [camera] = self._random.choices(CAMERAS, CAMERA_WEIGHTS)
        pictures = self._painter.paint(labels, *served_size(camera, SERVED_RESOLUTION))
        rows = self.vision(pictures)
        self.newest = rows, targets_of(labels)
        return rows[changes.long().cumsum(0) - 1].flatten(0, 1)

    def _labels(self, words: Tensor) -> Labels:
        if self._meaning.device != words.device:
            self._meaning = self._meaning.to(words.device)
        places = torch.arange(PLACES, device=words.device)
        is_empty = words[:, 0] < 0
        meant = self._meaning[places, words.clamp(min=0)]  # [P, 4]
        count, colour, shape, last = meant.masked_fill(is_empty[:, None], NOTHING).unbind(1)
        is_digit = (shape == N_SHAPES) & ~is_empty
        return Labels(colour, shape, torch.where(is_digit, last, NOTHING), count)


def _meanings(ids: list[list[int]], n_words: int) -> Tensor:
    table = torch.full((PLACES, n_words), NOTHING)
    for place, column in enumerate(ids):
        table[place, torch.tensor(column)] = torch.arange(len(column))
    return table
