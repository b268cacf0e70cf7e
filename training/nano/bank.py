"""Recordings of questions and of the model's own voice: a file of samples and a list."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from training.nano.domain.catalogue import intents
from training.nano.domain.kinds import Question

SAMPLES_FILE = "samples.i16"
LIST_FILE = "recordings.jsonl"
OWN_VOICE = "own"
INT16_PEAK = 32_767.0
ENGINE_SHARES = {"kokoro": 0.4, "flite": 0.18, "espeak": 0.2, "pico": 0.1, "hibari": 0.12}
"""Target shares of the engines."""
OTHER_SHARE = 0.2

Samples = NDArray[np.float32]


class UnrecordedError(LookupError):
    """A bank has no recording of a question; the message says what to record."""


@dataclass(frozen=True)
class Recording:
    """One trimmed utterance in the file of samples, at 16 kHz."""

    text: str
    intent: str  # of a question; `OWN_VOICE` for a reply in the model's own voice
    slots: tuple[str, ...]
    voice: str
    start: int
    n_samples: int
    cut: int = 0  # sample at which a pause may be inserted; 0 for none

    @property
    def engine(self) -> str:
        return self.voice.partition(":")[0]

    @property
    def question(self) -> Question:
        return Question(self.text, self.intent, self.slots)


class BankWriter:
    def __init__(self, folder: Path) -> None:
        """Create an empty bank; one in the folder is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self._samples = (folder / SAMPLES_FILE).open("wb")
        self._list = (folder / LIST_FILE).open("w", encoding="utf8")
        self._length = 0

    def add(self, question: Question, voice: str, samples: Samples, cut: int = 0) -> None:
        """Append one utterance of float32 samples at 16 kHz within ±1."""
        recording = Recording(
            question.text, question.intent, question.slots, voice, self._length, len(samples), cut
        )
        np.round(np.clip(samples, -1, 1) * INT16_PEAK).astype("<i2").tofile(self._samples)
        self._list.write(json.dumps(asdict(recording)) + "\n")
        self._length += len(samples)

    def close(self) -> None:
        self._samples.close()
        self._list.close()


class Bank:
    def __init__(self, folders: Iterable[Path]) -> None:
        """Open folders of `BankWriter`, at least one of them with recordings."""
        self.recordings: list[Recording] = []
        self._waves: list[NDArray[np.int16]] = []
        self._wave_of: list[int] = []
        for number, folder in enumerate(folders):
            self._waves.append(samples_in(folder))
            for line in (folder / LIST_FILE).read_text(encoding="utf8").splitlines():
                values = json.loads(line)
                values["slots"] = tuple(values["slots"])
                self.recordings.append(Recording(**values))
                self._wave_of.append(number)
        questions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.own: dict[str, int] = {}
        for index, recording in enumerate(self.recordings):
            if recording.intent == OWN_VOICE:
                self.own[recording.text] = index
            else:
                questions[recording.intent][recording.engine].append(index)
        self._questions = {name: dict(made) for name, made in questions.items()}
        self.weights = {name: intents()[name].weight for name in self._questions}

    def samples(self, index: int) -> Samples:
        """Return one recording, float32 [n] at 16 kHz."""
        each = self.recordings[index]
        wave = self._waves[self._wave_of[index]]
        return wave[each.start : each.start + each.n_samples].astype(np.float32) / INT16_PEAK

    def draw(self, random: Random, intent: str) -> int:
        """Draw an engine, then one of its recordings of an intent.

        Engines are weighted by the geometric mean of their share and their number of recordings,
        so that rare voices are oversampled but not memorised. Raises `UnrecordedError` for an
        intent that was never recorded.
        """
        if intent not in self._questions:
            missing = ", ".join(sorted(intents().keys() - self._questions.keys()))
            raise UnrecordedError(
                f"{len(self.recordings)} recordings, but none of: {missing}. Record for longer: "
                "python -m training.nano record --minutes …"
            )
        engines = self._questions[intent]
        shares = [
            math.sqrt(ENGINE_SHARES.get(engine, OTHER_SHARE) * len(made))
            for engine, made in engines.items()
        ]
        [engine] = random.choices(list(engines), shares)
        return random.choice(engines[engine])

    def draw_any(self, random: Random) -> int:
        return self.draw(random, random.choice(list(self._questions)))

    def own_voice(self, text: str) -> Samples | None:
        """Return a reply in the model's own voice, None if it was not recorded."""
        index = self.own.get(text)
        return None if index is None else self.samples(index)


def samples_in(folder: Path) -> NDArray[np.int16]:
    """Return all samples of a folder, int16 [n], possibly none."""
    path = folder / SAMPLES_FILE
    is_empty = path.stat().st_size == 0  # an empty file cannot be mapped
    return np.zeros(0, np.int16) if is_empty else np.memmap(path, "<i2", "r")
