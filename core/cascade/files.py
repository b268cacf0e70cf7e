"""The cascade's files: what they are called, and whether they are the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.sums import file_sha256, first_damaged

# Qwen2.5-Coder-0.5B-Instruct in four bits (Q4_K_M) as its publisher offers it, Apache-2.0.
LANGUAGE_MODEL_SHA256: Final = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


@dataclass(frozen=True)
class CascadeFiles:
    """What the cascade runs.

    Attributes:
        language_model: a GGUF file.
        whisper: folder of the transcriber, in CTranslate2's layout.
        voice: folder of the package `hibari`, unzipped.
    """

    language_model: Path
    whisper: Path
    voice: Path


def files_in(folder: Path) -> CascadeFiles:
    return CascadeFiles(folder / "language.gguf", folder / "whisper", folder / "voice")


def find(
    folder: Path, language_model_sha256: str | None = LANGUAGE_MODEL_SHA256
) -> CascadeFiles | None:
    """Return the files if all are there and none is damaged.

    Cheap while one is missing; otherwise everything is read once, half a second for 0.5 GB.

    Args:
        folder: of the cascade.
        language_model_sha256: of the published file; None where another model is used.
    """
    files = files_in(folder)
    is_wanted, model = language_model_sha256 is not None, files.language_model
    if is_wanted and not model.is_file():
        return None
    if first_damaged(files.whisper) or first_damaged(files.voice):
        return None
    return None if is_wanted and file_sha256(model) != language_model_sha256 else files
