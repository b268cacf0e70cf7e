"""Names and verification of the cascade's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.sums import file_sha256, first_damaged

# Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, as published; Apache-2.0.
LANGUAGE_MODEL_SHA256: Final = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


@dataclass(frozen=True)
class CascadeFiles:
    """Files of the models.

    Attributes:
        language_model: a GGUF file.
        whisper: folder of the transcriber, in CTranslate2's format.
        voice: folder of the unzipped package `hibari`.
    """

    language_model: Path
    whisper: Path
    voice: Path


def files_in(folder: Path) -> CascadeFiles:
    return CascadeFiles(folder / "language.gguf", folder / "whisper", folder / "voice")


def find(
    folder: Path, language_model_sha256: str | None = LANGUAGE_MODEL_SHA256
) -> CascadeFiles | None:
    """Return the files, or None if one is missing or damaged.

    If none is missing, all are read, 0.5 GB in half a second. Without `language_model_sha256` the
    language model is not needed.
    """
    files = files_in(folder)
    needs_model, model = language_model_sha256 is not None, files.language_model
    if needs_model and not model.is_file():
        return None
    if first_damaged(files.whisper) or first_damaged(files.voice):
        return None
    return None if needs_model and file_sha256(model) != language_model_sha256 else files
