"""Held-out sentences in held-out voices, and recordings of a person, used only here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import av
import numpy as np

from core.packages import AssetsError
from training.nano.bank import Samples
from training.nano.domain.catalogue import intents, questions
from training.nano.domain.kinds import Question
from training.nano.domain.spoken_numbers import cardinal
from training.nano.inputs import fetch
from training.nano.user_voices.engines import (
    SAMPLE_RATE_HZ,
    Engine,
    Hibari,
    Kokoro,
    espeak,
    flite,
    styles_of,
    trimmed,
)
from training.nano.user_voices.make import HELD_OUT

TYPICAL_RMS = 0.06
# One woman's telephone prompts in US English, wide band. Source: Debian, CC-BY-SA-3.0.
PROMPTS_PACKAGE = "asterisk-core-sounds-en-g722"
WHOLE_PROMPTS = (("hello", "hello."), ("goodbye", "goodbye."), ("vm-goodbye", "goodbye."))
# Prompts of a telephone exchange, outside the domain.
FOREIGN_PROMPTS = (
    "all-circuits-busy-now agent-loginok conf-getpin conf-invalidpin vm-incorrect vm-mailboxfull"
    " vm-msgsaved vm-toforward call-waiting cannot-complete-as-dialed demo-nogo vm-nobodyavail"
    " pbx-transfer privacy-incorrect vm-passchanged conf-locked speed-dial-empty vm-isonphone"
    " tt-weasels followme/no-recording"
).split()
WORD_GAP_S = 0.06


@dataclass(frozen=True, eq=False)
class Utterance:
    """A spoken question; `samples` are trimmed float32 at 16 kHz."""

    question: Question
    samples: Samples
    voice: str

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE_HZ


def held_out_questions(count: int, seed: int) -> list[Question]:
    """Draw held-out sentences by the intents' weights."""
    random, table = Random(seed), intents()
    by_intent: dict[str, list[Question]] = {}
    for question in questions(held_out=True):
        by_intent.setdefault(question.intent, []).append(question)
    names = list(by_intent)
    weights = [table[name].weight for name in names]
    return [random.choice(by_intent[name]) for name in random.choices(names, weights, k=count)]


def synthetic(asked: Sequence[Question], seed: int) -> list[Utterance]:
    """Speak with held-out voices of installed speech synthesizers; AssetsError if there is none."""
    engines: dict[str, Engine] = {}
    if shutil.which("espeak-ng"):
        engines["espeak"] = espeak
    if shutil.which("flite"):
        engines["flite"] = flite
    if not engines:
        raise AssetsError("no speech synthesizer is installed: apt-get install espeak-ng flite")
    cast = [(name, voice) for name in engines for voice in HELD_OUT[name]]
    return _spoken(asked, engines, cast, seed)


def natural(asked: Sequence[Question], seed: int, folder: Path) -> list[Utterance]:
    """Speak with the held-out natural voices, cached in `folder`, or raise an AssetsError."""
    if not (folder / "encoder.pt").is_file():
        fetch(folder)
    styles, kept = styles_of(folder / "styles"), folder / "spoken"
    engine = Kokoro(folder / "kokoro.onnx", styles, Hibari(), kept)
    cast = [("kokoro", voice) for voice in HELD_OUT["kokoro"]]
    return _spoken(asked, {"kokoro": engine.speak}, cast, seed)


def people(count: int, seed: int, folder: Path) -> list[Utterance]:
    """Return a person's recordings: prompts, sums of words and others; or raise an AssetsError."""
    prompts = Prompts.fetch(folder)
    random = Random(seed)
    asked = [
        Utterance(_named(text), prompts.read(name), PROMPTS_PACKAGE) for name, text in WHOLE_PROMPTS
    ]
    declined = next(q for q in intents()["unknown"].questions)
    asked += [
        Utterance(replace(declined, text=name), prompts.read(name), PROMPTS_PACKAGE)
        for name in FOREIGN_PROMPTS
    ]
    while len(asked) < count:
        asked.append(_sum(prompts, random))
    return asked[:count]


def _sum(prompts: Prompts, random: Random) -> Utterance:
    a, b = random.randint(0, 20), random.randint(0, 20)
    word, file = (
        ("plus", "letters/plus") if a < b or random.random() < 0.5 else ("minus", "digits/minus")
    )
    question = _named(f"{cardinal(a)} {word} {cardinal(b)}?")
    gap = np.zeros(int(WORD_GAP_S * SAMPLE_RATE_HZ), np.float32)
    parts = [prompts.read(f"digits/{a}"), gap, prompts.read(file), gap, prompts.read(f"digits/{b}")]
    return Utterance(question, np.concatenate(parts), PROMPTS_PACKAGE)


def _named(text: str) -> Question:
    for intent in intents().values():
        for question in intent.questions:
            if question.text == text:
                return question
    raise KeyError(text)


def _spoken(
    asked: Sequence[Question],
    engines: dict[str, Engine],
    cast: Sequence[tuple[str, str]],
    seed: int,
) -> list[Utterance]:
    spoken = []
    for number, question in enumerate(asked):
        engine, voice = cast[number % len(cast)]
        samples = engines[engine](question.text, voice, Random(f"{seed}/{number}"))
        spoken.append(Utterance(question, _levelled(samples), f"{engine}:{voice}"))
    return spoken


def _levelled(samples: Samples) -> Samples:
    rms = float(np.sqrt(np.mean(samples**2))) + 1e-6
    return samples * np.float32(min(TYPICAL_RMS / rms, 0.95 / float(np.abs(samples).max())))


@dataclass(frozen=True)
class Prompts:
    folder: Path

    @classmethod
    def fetch(cls, folder: Path) -> Prompts:
        """Find the package's recordings in `folder`; raises as `debian_package`."""
        [hello] = debian_package(PROMPTS_PACKAGE, folder).rglob("hello.g722")
        return cls(hello.parent)

    def read(self, name: str) -> Samples:
        """Decode one prompt: float32 at 16 kHz."""
        with av.open(str(self.folder / f"{name}.g722"), format="g722") as opened:
            frames = [frame.to_ndarray() for frame in opened.decode(audio=0)]
        samples = np.concatenate(frames, axis=1)[0].astype(np.float32) / 32_768
        return _levelled(trimmed(samples))


def debian_package(name: str, folder: Path) -> Path:
    """Return the package, unpacked in `folder`, never installed; or raise an AssetsError."""
    unpacked = folder / name
    if not unpacked.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _run(["apt-get", "download", name], folder)
            [package] = folder.glob(f"{name}_*.deb")
            _run(["dpkg-deb", "-x", package.name, name], folder)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise AssetsError(f"Debian's {name} cannot be fetched: {error}") from error
    return unpacked


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
