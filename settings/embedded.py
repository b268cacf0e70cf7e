"""What is used when no checkpoint is configured, and how far the fetch of its files is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from core.schemas.common import WireModel

Embedded = Literal["auto", "cascade", "nano", "toy"]
EMBEDDED_FOLDER = "nano"
CASCADE_FOLDER = "cascade"
PROGRESS_FILE = "progress.json"  # inside the cascade's folder: how far its fetch is
TOY_FOLDER = "tiny"
CONFIG_FILE = "config.json"
WHISPER_FOLDER = "whisper"  # inside a checkpoint: the transcriber on the CPU


def default_checkpoint(data_dir: Path, embedded: Embedded) -> Path:
    """Return nano's checkpoint if it was assembled, else the toy's, which may not exist yet."""
    folder = data_dir / EMBEDDED_FOLDER
    is_there = embedded != "toy" and (folder / CONFIG_FILE).is_file()
    return folder if is_there else data_dir / TOY_FOLDER


class FetchProgress(WireModel):
    """The state of a fetch that runs beside the service."""

    state: Literal["fetching", "complete", "failed"] = Field(description="In one word.")
    done_bytes: int = Field(0, ge=0, description="Bytes that are here.")
    total_bytes: int = Field(0, ge=0, description="Bytes that were missing when it began.")
    problem: str | None = Field(None, description="Why it failed, for a person to read.")


def read_progress(data_dir: Path) -> FetchProgress | None:
    """Return the progress of the cascade's fetch; None if nothing was fetched since the start."""
    try:
        content = (data_dir / CASCADE_FOLDER / PROGRESS_FILE).read_bytes()
        return FetchProgress.model_validate_json(content)
    except (OSError, ValidationError):
        return None
