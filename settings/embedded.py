"""Which checkpoint is used when none is configured."""

from __future__ import annotations

from pathlib import Path

EMBEDDED_FOLDER = "nano"
TOY_FOLDER = "tiny"
CONFIG_FILE = "config.json"
WHISPER_FOLDER = "whisper"  # inside a checkpoint: the transcriber on the CPU


def default_checkpoint(data_dir: Path, *, embedded: bool) -> Path:
    """Return the embedded checkpoint if it was assembled, else where the toy one is or will be.

    Args:
        data_dir: of the settings.
        embedded: whether the settings allow the embedded one.
    """
    folder = data_dir / EMBEDDED_FOLDER
    is_there = embedded and (folder / CONFIG_FILE).is_file()
    return folder if is_there else data_dir / TOY_FOLDER
