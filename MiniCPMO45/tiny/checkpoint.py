"""Writes a complete checkpoint at toy size with random weights.

It is for tests and for starting the system without a download.
"""

from __future__ import annotations

import json
from pathlib import Path

from tqdm import tqdm

from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.tiny.assets import write_assets
from MiniCPMO45.tiny.config import VARIANT, model_config
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary
from MiniCPMO45.tiny.weights import tiny_model


class TinyCheckpointError(ValueError):
    """The folder cannot take a checkpoint."""


def write_tiny_checkpoint(folder: Path, seed: int = 0, *, show_progress: bool = False) -> None:
    """Write a tiny checkpoint; the same seed gives the same bytes.

    The folder is new or empty, or holds an earlier tiny checkpoint, which is replaced.

    Raises:
        TinyCheckpointError: the folder holds something else.
    """
    _require_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = train_vocabulary()
    steps = {
        "processor": lambda: MiniCPMOProcessor.of(make_tokenizer(vocabulary)).save_pretrained(
            folder
        ),
        "model": lambda: tiny_model(model_config(vocabulary), vocabulary, seed).save_pretrained(
            folder
        ),
        "assets": lambda: write_assets(folder, seed),
    }
    bar = tqdm(steps.items(), unit="part", disable=not show_progress)
    for name, write in bar:
        bar.set_description(f"writing {name}")
        write()


def _require_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TinyCheckpointError(f"{folder} is a file, not a folder")
    config = folder / "config.json"
    if not any(folder.iterdir()):
        return
    if not config.is_file() or _variant(config) != VARIANT:
        raise TinyCheckpointError(
            f"{folder} is not empty and holds no tiny checkpoint; name another folder"
        )


def _variant(config: Path) -> str:
    try:
        return str(json.loads(config.read_text(encoding="utf8")).get("model_variant"))
    except (ValueError, AttributeError):
        return ""
