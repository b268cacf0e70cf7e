"""Batches of training examples, composed in worker processes and padded to one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from MiniCPMO45.processing.mel import POOL_STEP
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from training.nano.bank import INT16_PEAK, Bank
from training.nano.hearing import ROWS_PER_UNIT, encoder_rows
from training.nano.layout import PICTURE_ROWS, SpokenReply
from training.nano.ranks import ALONE, Ranks
from training.nano.sessions import DuplexSession, Example
from training.nano.turns import ONE_SHOT, TurnsSession

UNITS = (6, 8, 10, 12, 16, 20, 24, 32, 40)
UNIT_WEIGHTS = (2, 3, 3, 4, 4, 3, 2, 1.5, 1)
PRACTICE_SHARE = 0.2  # of the batches, by default
TURNS_SHARE = 0.3  # of the other batches
PICTURES_SHARE = 0.15  # of those in units
UNIT_ROWS_WITH_PICTURE = 4  # relative to those without one
PRACTISED_ONE_SHOT = 0.3
# Cost of one turn-based or typed conversation, in units of audio.
UNITS_ONE_SHOT, UNITS_STREAMED, UNITS_PRACTISED = 4, 8, 3
NO_WORD = -1  # in place of a caption


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded sequences with their audio."""

    ids: Tensor
    weights: Tensor  # loss weight of each id, float32 [B, T]; 0 in padding
    stream: Tensor  # int16 [B, samples] of the units; empty for turn-based conversations
    unit_places: Tensor  # flat positions of the units' rows, in stream order, int64 [B * U * 10]
    clips: Tensor  # zero-padded clips, int16 [N, samples]
    clip_sizes: Tensor
    clip_rows: Tensor  # flat indices of the pooled rows that are not padding, int64 [R]
    clip_places: Tensor
    has_blocked_clips: bool  # clips are encoded in attention blocks of a second
    picture_places: Tensor
    picture_words: Tensor  # caption token of each picture row; -1 in pictures without a caption
    replies: list[list[SpokenReply]]
    transcript: Tensor  # token ids of the units' speech, concatenated
    transcript_sizes: list[int]
    blank: int  # CTC blank


def collate(examples: Sequence[Example], padding_id: int) -> Batch:
    """Pad examples of one kind to one length."""
    longest = max(len(each.layout) for each in examples)
    ids = torch.full((len(examples), longest), padding_id)
    weights = torch.zeros(len(examples), longest)
    units: list[int] = []
    clip_rows: list[int] = []
    picture_rows: list[int] = []
    words: list[int] = []
    for row, each in enumerate(examples):
        layout, base = each.layout, row * longest
        ids[row, : len(layout)] = torch.tensor(layout.ids)
        weights[row, : len(layout)] = torch.tensor(layout.weights)
        for start in layout.units:
            units += range(base + start, base + start + ROWS_PER_UNIT)
        for start, stop in layout.clips:
            clip_rows += range(base + start, base + stop)
        for start in layout.pictures:
            picture_rows += range(base + start, base + start + PICTURE_ROWS)
            words += ((each.caption or [NO_WORD]) * PICTURE_ROWS)[:PICTURE_ROWS]
    clips = [_int16(clip) for each in examples for clip in each.clips]
    sizes = [len(clip) for clip in clips]
    return Batch(
        ids,
        weights,
        torch.stack([_int16(each.stream) for each in examples]),
        torch.tensor(units, dtype=torch.long),
        pad_sequence(clips, batch_first=True) if clips else torch.zeros(0, 0, dtype=torch.int16),
        torch.tensor(sizes, dtype=torch.long),
        _unpadded_rows(sizes),
        torch.tensor(clip_rows, dtype=torch.long),
        examples[0].has_blocked_clips,
        torch.tensor(picture_rows, dtype=torch.long),
        torch.tensor(words, dtype=torch.long),
        [each.layout.replies for each in examples],
        torch.tensor([id_ for each in examples for id_ in each.layout.transcript]).long(),
        [len(each.layout.transcript) for each in examples],
        padding_id,
    )


@dataclass(frozen=True, eq=False)
class Conversations(IterableDataset[Batch]):
    """Endless batches, each of which depends on seed, step and rank only."""

    folders: Sequence[Path]  # of the banks, which each worker process opens
    checkpoint: Path
    units: int  # of a batch
    seed: int
    first: int = 0  # first step
    longest: int = max(UNITS)  # units of a sequence at most
    practice: float = PRACTICE_SHARE  # share of typed batches
    ranks: Ranks = ALONE

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        share, shares = (worker.id, worker.num_workers) if worker else (0, 1)
        bank = Bank(self.folders)
        processor = MiniCPMOProcessor.from_pretrained(self.checkpoint)
        padding_id = processor.tokenizer.special.unk
        for step in count(self.first + share, shares):
            random = Random(f"{self.seed}/{step * self.ranks.count + self.ranks.number}")
            yield collate(self._examples(bank, processor, random), padding_id)

    def _examples(self, bank: Bank, processor: MiniCPMOProcessor, random: Random) -> list[Example]:
        practises = random.random() < self.practice
        if practises or random.random() < TURNS_SHARE:
            is_one_shot = random.random() < (PRACTISED_ONE_SHOT if practises else ONE_SHOT)
            width = UNITS_ONE_SHOT if is_one_shot else UNITS_STREAMED
            return [
                TurnsSession(
                    bank,
                    processor,
                    random,
                    is_one_shot=is_one_shot,
                    practises=practises,
                    substitutes=True,
                ).compose()
                for _ in range(max(1, self.units // (UNITS_PRACTISED if practises else width)))
            ]
        has_pictures = random.random() < PICTURES_SHARE
        lengths = [n for n in UNITS if n <= self.longest]
        [n_units] = random.choices(lengths, UNIT_WEIGHTS[: len(lengths)])
        width = UNIT_ROWS_WITH_PICTURE if has_pictures else 1
        return [
            DuplexSession(
                bank,
                processor.tokenizer,
                random,
                n_units,
                has_pictures=has_pictures,
                substitutes=True,
            ).compose()
            for _ in range(max(1, self.units // n_units // width))
        ]


def loader(conversations: Conversations, processes: int) -> DataLoader[Batch]:
    """Return a loader with `processes` worker processes; 0 composes in this one."""
    ahead = 4 if processes else None
    return DataLoader(conversations, batch_size=None, num_workers=processes, prefetch_factor=ahead)


def _unpadded_rows(sizes: Sequence[int]) -> Tensor:
    """Return flat indices of the rows of [clips, most rows] that are not padding."""
    counts = torch.tensor([encoder_rows(size) // POOL_STEP for size in sizes], dtype=torch.long)
    most = max(counts.tolist(), default=0)
    return (torch.arange(most) < counts[:, None]).flatten().nonzero()[:, 0]


def _int16(samples: np.ndarray) -> Tensor:
    return torch.from_numpy(np.round(np.clip(samples, -1, 1) * INT16_PEAK).astype(np.int16))
