"""A person's recordings with their published texts: one woman's prompts of a telephone exchange.

Debian's packages are unpacked into a folder if they are not in it, and never installed.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from random import Random
from typing import Final

import typer

from benchmarks.nano.utterances import PROMPTS_PACKAGE, Prompts, debian_package
from core.audio import FloatArray

TEXTS_PACKAGE: Final = "asterisk-core-sounds-en"
ENTRY: Final = re.compile(r"^(?P<name>[\w/-]+):\s+(?P<text>.*\w.*)$", re.MULTILINE)
# Sounds, remarks on the recording, and keys whose names differ: "#" is read as pound or hash.
NOT_SPOKEN: Final = re.compile(r"[\[\](){}<>*#@]")
# Ours: shorter prompts are parts of sentences, which the exchange joins; longer ones are no turn.
WORDS_MIN, WORDS_MAX = 5, 40


def spoken_prompts(texts: str) -> dict[str, str]:
    """Return the sentences among the published texts by the name of their recording."""
    found = {entry["name"]: entry["text"].strip() for entry in ENTRY.finditer(texts)}
    return {
        name: text
        for name, text in found.items()
        if WORDS_MIN <= len(text.split()) <= WORDS_MAX and not NOT_SPOKEN.search(text)
    }


def recorded(count: int, seed: int, folder: Path) -> list[tuple[str, FloatArray]]:
    """Draw prompts: their texts, and [T] float32 at 16 kHz.

    InputError if a package cannot be downloaded.
    """
    for name in (PROMPTS_PACKAGE, TEXTS_PACKAGE):
        if not (folder / name).is_dir():
            typer.echo(f"Unpacking Debian's {name} into {folder}", err=True)
    prompts, texts = Prompts.fetch(folder), debian_package(TEXTS_PACKAGE, folder)
    [listed] = texts.rglob("core-sounds-en.txt.gz")
    known = spoken_prompts(gzip.decompress(listed.read_bytes()).decode("utf8"))
    names = sorted(name for name in known if (prompts.folder / f"{name}.g722").is_file())
    return [(known[name], prompts.read(name)) for name in Random(seed).sample(names, count)]
