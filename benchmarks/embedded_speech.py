"""Test audio: natural voices of `benchmarks.nano`, the cascade's own, a person's, and noise.

The person is one woman, whose prompts of a telephone exchange and their texts are Debian packages,
unpacked into a folder and never installed. All audio is [T] float32 at 16 kHz.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import typer

from benchmarks.nano.utterances import PROMPTS_PACKAGE, Prompts, debian_package, natural
from core.audio import FloatArray, resample
from core.cascade.parts import Synthesizer
from core.cascade.synthesis import WORD, Sentences
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from training.nano.domain.kinds import Question

NOISE_DB: Final = 10.0
ROOM_LEVEL: Final = 0.0005  # of a quiet room, of full scale
ROOM_AROUND_S: Final = 0.4
SILENCE_LEVEL: Final = 0.005  # of full scale
TEXTS_PACKAGE: Final = "asterisk-core-sounds-en"
ENTRY: Final = re.compile(r"^(?P<name>[\w/-]+):\s+(?P<text>.*\w.*)$", re.MULTILINE)
# Sounds, remarks on the recording, and keys whose names differ: "#" is read as pound or hash.
NOT_SPOKEN: Final = re.compile(r"[\[\](){}<>*#@]")
# Ours: shorter prompts are parts of sentences, which the exchange joins; longer ones are no turn.
WORDS_MIN, WORDS_MAX = 5, 40


def spoken(texts: Sequence[str], folder: Path) -> list[FloatArray]:
    """Synthesize texts with natural voices in turn, cached in `folder`, or raise AssetsError."""
    asked = [Question(text, intent="") for text in texts]
    return [voiced(utterance.samples) for utterance in natural(asked, 0, folder)]


def by_cascade(synthesizer: Synthesizer, text: str) -> FloatArray:
    """Synthesize with the cascade's own voice, in the pieces in which a call speaks them."""
    sentences = Sentences()
    pieces = [piece for word in WORD.findall(text) for piece in sentences.add(word)]
    made = np.concatenate([synthesizer.speak(each) for each in [*pieces, sentences.rest]])
    return voiced(resample(made, OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ))


def voiced(samples: FloatArray) -> FloatArray:
    """Trim silence, so that the recording ends with its speech."""
    loud = np.flatnonzero(np.abs(samples) > SILENCE_LEVEL)
    return samples[int(loud[0]) : int(loud[-1]) + 1]


def in_room(samples: FloatArray) -> FloatArray:
    return np.concatenate([room(ROOM_AROUND_S), samples, room(ROOM_AROUND_S)])


def room(length_s: float) -> FloatArray:
    noise = np.random.default_rng(0).normal(0, ROOM_LEVEL, int(length_s * INPUT_SAMPLE_RATE_HZ))
    return noise.astype(np.float32)


def with_noise(sound: FloatArray) -> FloatArray:
    power = float(np.mean(sound**2)) / 10 ** (NOISE_DB / 10)
    noise = np.random.default_rng(len(sound)).normal(0, power**0.5, len(sound))
    return (sound + noise).astype(np.float32)


def spoken_prompts(texts: str) -> dict[str, str]:
    """Return the sentences among the published texts by the name of their recording."""
    found = {entry["name"]: entry["text"].strip() for entry in ENTRY.finditer(texts)}
    return {
        name: text
        for name, text in found.items()
        if WORDS_MIN <= len(text.split()) <= WORDS_MAX and not NOT_SPOKEN.search(text)
    }


def recorded(count: int, seed: int, folder: Path) -> list[tuple[str, FloatArray]]:
    """Draw prompts: their texts, and [T] float32 at 16 kHz; AssetsError without the packages."""
    for name in (PROMPTS_PACKAGE, TEXTS_PACKAGE):
        if not (folder / name).is_dir():
            typer.echo(f"Unpacking Debian's {name} into {folder}", err=True)
    prompts, texts = Prompts.fetch(folder), debian_package(TEXTS_PACKAGE, folder)
    [listed] = texts.rglob("core-sounds-en.txt.gz")
    known = spoken_prompts(gzip.decompress(listed.read_bytes()).decode("utf8"))
    names = sorted(name for name in known if (prompts.folder / f"{name}.g722").is_file())
    return [(known[name], prompts.read(name)) for name in Random(seed).sample(names, count)]
