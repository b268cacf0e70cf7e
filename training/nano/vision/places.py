"""What each of a picture's rows and each of its patches tells, and how a telling is judged."""

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
# What can stand in each place; the last of each is for a picture that shows nothing known.
SIZES = (MOST_THINGS + 1, len(SCENE_COLOURS) + 1, N_SHAPES + 2, 10 + N_SHAPES + 1)


def told(labels: Labels) -> Tensor:
    is_empty = labels.count < 0
    last = torch.where(labels.digit >= 0, labels.digit, 10 + labels.shape)
    columns = torch.stack((labels.count, labels.colour, labels.shape, last), dim=1)
    nothing = torch.tensor(SIZES, device=columns.device) - 1
    return torch.where(is_empty[:, None], nothing, columns)


def word_ids(tokenizer: MiniCPMOTokenizerFast) -> list[list[int]]:
    """Return, for each place, the token of everything it can tell but nothing."""
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
    """One linear reader per place; they teach the encoder before there is a language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in SIZES)

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Read rows [B, 64, width]: one [B, 16, size] per place."""
        return [head(rows[:, place::PLACES]) for place, head in enumerate(self.heads)]


class EmbeddingReaders(nn.Module):
    """Reads rows by the embeddings of the words that may stand there."""

    def __init__(self, embeddings: Tensor, ids: list[list[int]]) -> None:
        """Take over the words' embeddings; `power` is their mean square length."""
        super().__init__()
        for place, column in enumerate(ids):
            known = embeddings[torch.tensor(column, device=embeddings.device)].detach().float()
            self.register_buffer(f"place{place}", torch.cat((known, torch.zeros_like(known[:1]))))
        self.power = float(embeddings.detach().float().square().sum(1).mean())

    def targets(self, wanted: Tensor) -> Tensor:
        """Return the rows that tell `wanted` [B, 4]: [B, 64, width]."""
        words = torch.stack([self._words(p)[wanted[:, p]] for p in range(PLACES)], dim=1)
        return words.repeat(1, 64 // PLACES, 1)

    def apart(self, rows: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean squared distance of rows to those that tell `wanted`, in `power`."""
        return (rows.float() - self.targets(wanted)).square().sum(-1).mean() / self.power

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Return minus the squared distance to every word, relative to a word's length."""
        return [
            -(rows[:, place::PLACES, None].float() - self._words(place)).square().sum(-1)
            / self.power
            for place in range(PLACES)
        ]

    def _words(self, place: int) -> Tensor:
        words = self._buffers[f"place{place}"]
        assert words is not None
        return words


def reading_loss(read: list[Tensor], wanted: Tensor) -> Tensor:
    """Return the mean surprise of all rows, in nats per place."""
    losses = [
        F.cross_entropy(scores.flatten(0, 1), wanted[:, place].repeat_interleave(scores.shape[1]))
        for place, scores in enumerate(read)
    ]
    return torch.stack(losses).mean()


def is_right(read: list[Tensor], wanted: Tensor) -> Tensor:
    """Return whether each place, its rows together, tells what it should: bool [B, 4]."""
    columns = [
        scores.log_softmax(-1).mean(1).argmax(-1) == wanted[:, place]
        for place, scores in enumerate(read)
    ]
    return torch.stack(columns, dim=1)


ON_THING_RADII = 0.85  # a patch whose centre is so near lies on the thing
N_KINDS = N_SHAPES + 10
# Kind, colour and number of the things; the last of each is for patches beside them.
PATCH_SIZES = (N_KINDS + 1, len(SCENE_COLOURS) + 1, MOST_THINGS + 1)


def patch_labels(labels: Labels, placing: Placing, size: tuple[int, int], side: int) -> Tensor:
    """Return what every patch of `side` pixels should tell: int64 [B, L, 3], see `PATCH_SIZES`."""
    rows, columns = (
        (torch.arange(count, device=labels.count.device) + 0.5) * side for count in size
    )
    is_there = (placing.radii > 0)[..., None, None]
    distances = placing.distances(columns, rows).masked_fill(~is_there, 9.0)
    is_on = (distances.amin(1) < ON_THING_RADII).flatten(1)[..., None]  # [B, L, 1]
    told = torch.stack((labels.kinds, labels.colour, labels.count), dim=1)[:, None]
    nothing = torch.tensor(PATCH_SIZES, device=told.device) - 1
    return torch.where(is_on, told, nothing)


class PatchReaders(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, sum(PATCH_SIZES))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Read features [B, L, width]: [B, L, size] per attribute."""
        return self.head(features).float().split(PATCH_SIZES, dim=-1)


def patch_loss(read: tuple[Tensor, ...], wanted: Tensor) -> Tensor:
    """Return the mean surprise, in nats; patches on things count as much as all beside them."""
    is_on = wanted[..., 0] != PATCH_SIZES[0] - 1  # [B, L]
    weights = is_on / is_on.sum().clamp(min=1) + ~is_on / (~is_on).sum().clamp(min=1)
    losses = [
        F.cross_entropy(scores.flatten(0, 1), wanted[..., number].flatten(), reduction="none")
        for number, scores in enumerate(read)
    ]
    return 0.5 * (torch.stack(losses).mean(0) * weights.flatten()).sum()
