"""Targets, readers and losses of picture rows and patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from training.nano.domain.camera import DIGIT, MOST_THINGS, shown_words
from training.nano.domain.kinds import Scene
from training.nano.domain.spoken_numbers import cardinal
from training.nano.domain.words import SCENE_COLOURS, SCENE_SHAPES
from training.nano.vision.scenes import N_SHAPES, Labels, Placing

NAMES = ("count", "colour", "shape", "digit")
PLACES = len(NAMES)
# Values in each place; the last is for an empty picture.
SIZES = (MOST_THINGS + 1, len(SCENE_COLOURS) + 1, N_SHAPES + 2, 10 + N_SHAPES + 1)


def targets_of(labels: Labels) -> Tensor:
    """Return the target of each place, int64 [B, 4]."""
    is_empty = labels.count < 0
    last = torch.where(labels.digit >= 0, labels.digit, 10 + labels.shape)
    columns = torch.stack((labels.count, labels.colour, labels.shape, last), dim=1)
    nothing = torch.tensor(SIZES, device=columns.device) - 1
    return torch.where(is_empty[:, None], nothing, columns)


def word_ids(tokenizer: MiniCPMOTokenizerFast) -> list[list[int]]:
    """Return the tokens of all values of each place but the last."""
    first = Scene(SCENE_COLOURS[0], SCENE_SHAPES[0], "", "one")
    scenes = (
        [Scene(first.colour, first.shape, "", cardinal(n + 1)) for n in range(MOST_THINGS)],
        [Scene(colour, first.shape, "", "one") for colour in SCENE_COLOURS],
        [Scene(first.colour, shape, "", "one") for shape in SCENE_SHAPES]
        + [Scene(first.colour, DIGIT, "one", "one")],
        [Scene(first.colour, DIGIT, cardinal(n), "one") for n in range(10)]
        + [Scene(first.colour, shape, "", "one") for shape in SCENE_SHAPES],
    )
    ids = [
        [tokenizer.encode(shown_words(scene))[place] for scene in column]
        for place, column in enumerate(scenes)
    ]
    assert [len(column) + 1 for column in ids] == list(SIZES)
    return ids


class Readers(nn.Module):
    """One linear classifier per place, for training without a language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in SIZES)

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Classify rows [B, 64, width]: one [B, 16, size] per place."""
        return [head(rows[:, place::PLACES]) for place, head in enumerate(self.heads)]


class EmbeddingReaders:
    """Classifies rows by their distance to word embeddings."""

    def __init__(self, embeddings: Tensor, ids: list[list[int]]) -> None:
        """Select the embeddings of `ids`; `power` is the mean squared norm of all embeddings."""
        embeddings = embeddings.detach().float()
        known = [embeddings[torch.tensor(column, device=embeddings.device)] for column in ids]
        self._words = [torch.cat((words, torch.zeros_like(words[:1]))) for words in known]
        self.power = float(embeddings.square().sum(1).mean())

    def targets(self, wanted: Tensor) -> Tensor:
        """Return the target rows of `wanted` [B, 4]: [B, 64, width]."""
        words = torch.stack([self._words[p][wanted[:, p]] for p in range(PLACES)], dim=1)
        return words.repeat(1, 64 // PLACES, 1)

    def apart(self, rows: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean squared distance of rows to their targets, relative to `power`."""
        return (rows.float() - self.targets(wanted)).square().sum(-1).mean() / self.power

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """Return the negative squared distance to every embedding, relative to `power`."""
        return [
            -(rows[:, place::PLACES, None].float() - words).square().sum(-1) / self.power
            for place, words in enumerate(self._words)
        ]


def reading_loss(read: list[Tensor], wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy of all rows, in nats per place."""
    losses = [
        F.cross_entropy(scores.flatten(0, 1), wanted[:, place].repeat_interleave(scores.shape[1]))
        for place, scores in enumerate(read)
    ]
    return torch.stack(losses).mean()


def is_right(read: list[Tensor], wanted: Tensor) -> Tensor:
    """Return whether each place is right, averaged over its rows: bool [B, 4]."""
    columns = [
        scores.log_softmax(-1).mean(1).argmax(-1) == wanted[:, place]
        for place, scores in enumerate(read)
    ]
    return torch.stack(columns, dim=1)


ON_THING_RADII = 0.85  # distance within which the centre of a patch is on the thing
N_KINDS = N_SHAPES + 10
# Kind, colour and number of the things; the last value is for the background.
PATCH_SIZES = (N_KINDS + 1, len(SCENE_COLOURS) + 1, MOST_THINGS + 1)


def patch_labels(labels: Labels, placing: Placing, size: tuple[int, int], side: int) -> Tensor:
    """Return the target of every patch of `side` pixels: int64 [B, L, 3], see `PATCH_SIZES`."""
    rows, columns = (
        (torch.arange(count, device=labels.count.device) + 0.5) * side for count in size
    )
    is_there = (placing.radii > 0)[..., None, None]
    distances = placing.distances(columns, rows).masked_fill(~is_there, 9.0)
    is_on = (distances.amin(1) < ON_THING_RADII).flatten(1)[..., None]  # [B, L, 1]
    targets = torch.stack((labels.kinds, labels.colour, labels.count), dim=1)[:, None]
    background = torch.tensor(PATCH_SIZES, device=targets.device) - 1
    return torch.where(is_on, targets, background)


class PatchReaders(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, sum(PATCH_SIZES))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Classify features [B, L, width]: [B, L, size] per attribute."""
        return self.head(features).float().split(PATCH_SIZES, dim=-1)


def patch_loss(read: tuple[Tensor, ...], wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats, with equal weight for things and background."""
    is_on = wanted[..., 0] != PATCH_SIZES[0] - 1  # [B, L]
    weights = is_on / is_on.sum().clamp(min=1) + ~is_on / (~is_on).sum().clamp(min=1)
    losses = [
        F.cross_entropy(scores.flatten(0, 1), wanted[..., number].flatten(), reduction="none")
        for number, scores in enumerate(read)
    ]
    return 0.5 * (torch.stack(losses).mean(0) * weights.flatten()).sum()
