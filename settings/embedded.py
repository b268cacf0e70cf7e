"""The default models when no checkpoint is configured: their files, and the download's state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from core.schemas.common import WireModel
from core.sums import KnownSums, first_damaged

Embedded = Literal["auto", "cascade", "nano", "toy"]
EMBEDDED_FOLDER = "nano"
CASCADE_FOLDER = "cascade"
PROGRESS_FILE = "progress.json"  # in the cascade's folder
TOY_FOLDER = "tiny"
CONFIG_FILE = "config.json"
WHISPER_FOLDER = "whisper"  # in a checkpoint
# Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, as published; Apache-2.0.
LANGUAGE_MODEL_SHA256: Final = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def default_checkpoint(data_dir: Path, embedded: Embedded) -> Path:
    """Return the folder of nano if it was assembled, otherwise of the toy, which may not exist."""
    folder = data_dir / EMBEDDED_FOLDER
    is_there = embedded != "toy" and (folder / CONFIG_FILE).is_file()
    return folder if is_there else data_dir / TOY_FOLDER


@dataclass(frozen=True)
class CascadeFiles:
    language_model: Path  # a GGUF file
    whisper: Path  # folder of the transcriber, in CTranslate2's format
    voice: Path  # folder of the unzipped package `hibari`


def cascade_files(folder: Path) -> CascadeFiles:
    return CascadeFiles(folder / "language.gguf", folder / "whisper", folder / "voice")


def find_cascade(
    folder: Path,
    language_model_sha256: str | None = LANGUAGE_MODEL_SHA256,
    sums: KnownSums | None = None,
) -> CascadeFiles | None:
    """Return the files, or None if one is missing or damaged.

    If none is missing, all are read, 0.5 GB in half a second, but for those whose `sums` are known.
    Without `language_model_sha256` the language model is not needed.
    """
    sums = sums or KnownSums()
    files = cascade_files(folder)
    needs_model, model = language_model_sha256 is not None, files.language_model
    if needs_model and not model.is_file():
        return None
    if first_damaged(files.whisper, sums.of) or first_damaged(files.voice, sums.of):
        return None
    return None if needs_model and sums.of(model) != language_model_sha256 else files


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
