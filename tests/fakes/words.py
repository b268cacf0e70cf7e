"""The tiny checkpoint's tokenizer, trained on the spot."""

from __future__ import annotations

from pathlib import Path

from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.tiny.tokenizer import train_vocabulary, write_tokenizer


def tiny_tokenizer(folder: Path) -> MiniCPMOTokenizerFast:
    """Write the tokenizer files into `folder` and read them as a checkpoint's."""
    write_tokenizer(folder, train_vocabulary())
    return MiniCPMOTokenizerFast.from_pretrained(folder)
