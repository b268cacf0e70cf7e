"""Banks that are brought to another machine: a tenth of the bytes, as Opus."""

from __future__ import annotations

import shutil
from pathlib import Path

import soundfile

from MiniCPMO45.processing.audio_features import SAMPLE_RATE_HZ
from training.nano.bank import LIST_FILE, SAMPLES_FILE, samples_in

SOUND_FILE = "samples.opus"
BLOCK_SAMPLES = 60 * SAMPLE_RATE_HZ


def compress(bank: Path, out: Path) -> None:
    """Write a bank's folders with their samples encoded; recordings stay where they are in them.

    A folder without recordings is left out.

    Args:
        bank: folder of folders that `BankWriter` filled.
        out: folder for folders of the same names.
    """
    for folder in _folders_with(bank, SAMPLES_FILE):
        to = _begun(folder, out)
        samples = samples_in(folder)
        with soundfile.SoundFile(
            to / SOUND_FILE, "w", SAMPLE_RATE_HZ, 1, "OPUS", format="OGG"
        ) as file:
            for start in range(0, len(samples), BLOCK_SAMPLES):
                file.write(samples[start : start + BLOCK_SAMPLES])


def expand(compressed: Path, out: Path) -> None:
    """Write the folders of a bank again that `compress` encoded.

    Args:
        compressed: what `compress` wrote.
        out: folder for folders of the same names.
    """
    for folder in _folders_with(compressed, SOUND_FILE):
        to = _begun(folder, out)
        with (to / SAMPLES_FILE).open("wb") as samples:
            for block in soundfile.blocks(folder / SOUND_FILE, BLOCK_SAMPLES, dtype="int16"):
                block.astype("<i2").tofile(samples)


def _folders_with(parent: Path, name: str) -> list[Path]:
    found = sorted(path.parent for path in parent.glob(f"*/{name}") if path.stat().st_size)
    if not found:
        raise FileNotFoundError(f"{parent} holds no folder with samples in {name}")
    return found


def _begun(folder: Path, out: Path) -> Path:
    to = out / folder.name
    to.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / LIST_FILE, to / LIST_FILE)
    return to
