"""What each of a picture's rows tells, and how a telling is judged."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from training.nano.domain.camera import DIGIT, MOST_THINGS, shown_words
from training.nano.domain.kinds import Scene
from training.nano.domain.spoken_numbers import cardinal
from training.nano.domain.words import SCENE_COLOURS, SCENE_SHAPES
from training.nano.vision.scenes import N_SHAPES, Labels

NAMES = ("count", "colour", "shape", "digit")
PLACES = len(NAMES)
# What can stand in each place; the last of each is for a picture that shows nothing known.
SIZES = (MOST_THINGS + 1, len(SCENE_COLOURS) + 1, N_SHAPES + 2, 10 + N_SHAPES + 1)


def told(labels: Labels) -> Tensor:
    """Return what each place has to tell: int64 [B, 4]."""
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
    """One linear reader per place; they teach the eyes before there is a language model."""

    def __init__(self, width: int) -> None:
        """Make fresh weights.

        Args:
            width: of a row.
        """
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in SIZES)

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Read rows [B, 64, width]: one [B, 16, size] per place."""
        return [head(rows[:, place::PLACES]) for place, head in enumerate(self.heads)]


class EmbeddingReaders(nn.Module):
    """Reads rows by the embeddings of the words that may stand there."""

    def __init__(self, embeddings: Tensor, ids: list[list[int]]) -> None:
        """Take the words' embeddings over.

        Attribute `power` is the mean square length of an embedding.

        Args:
            embeddings: of the language model, [vocabulary, width].
            ids: from `word_ids`.
        """
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
