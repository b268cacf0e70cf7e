"""The default model when no checkpoint is configured, and the state of its download."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from core.schemas.common import WireModel

Embedded = Literal["auto", "cascade", "nano", "toy"]
EMBEDDED_FOLDER = "nano"
CASCADE_FOLDER = "cascade"
PROGRESS_FILE = "progress.json"  # in the cascade's folder
TOY_FOLDER = "tiny"
CONFIG_FILE = "config.json"
WHISPER_FOLDER = "whisper"  # in a checkpoint


def default_checkpoint(data_dir: Path, embedded: Embedded) -> Path:
    """Return the folder of nano if it was assembled, otherwise of the toy, which may not exist."""
    folder = data_dir / EMBEDDED_FOLDER
    is_there = embedded != "toy" and (folder / CONFIG_FILE).is_file()
    return folder if is_there else data_dir / TOY_FOLDER


class FetchProgress(WireModel):
    """State of a download that runs while the service is up."""

    state: Literal["fetching", "complete", "failed"] = Field(description="In one word.")
    done_bytes: int = Field(0, ge=0, description="Bytes that are here.")
    total_bytes: int = Field(0, ge=0, description="Bytes that were missing when it began.")
    problem: str | None = Field(None, description="Why it failed, for a person to read.")


def read_progress(data_dir: Path) -> FetchProgress | None:
    """Return the state of the cascade's download; None if there was none since the start."""
    try:
        content = (data_dir / CASCADE_FOLDER / PROGRESS_FILE).read_bytes()
        return FetchProgress.model_validate_json(content)
    except (OSError, ValidationError):
        return None
