"""What is used when no checkpoint is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Embedded = Literal["auto", "cascade", "nano", "toy"]
EMBEDDED_FOLDER = "nano"
CASCADE_FOLDER = "cascade"
PROGRESS_FILE = "progress.json"  # inside the cascade's folder: how far its fetch is
TOY_FOLDER = "tiny"
CONFIG_FILE = "config.json"
WHISPER_FOLDER = "whisper"  # inside a checkpoint: the transcriber on the CPU


def default_checkpoint(data_dir: Path, embedded: Embedded) -> Path:
    """Return nano's checkpoint if it was assembled, else where the toy one is or will be.

    Args:
        data_dir: of the settings.
        embedded: what the settings choose.
    """
    folder = data_dir / EMBEDDED_FOLDER
    is_there = embedded != "toy" and (folder / CONFIG_FILE).is_file()
    return folder if is_there else data_dir / TOY_FOLDER
