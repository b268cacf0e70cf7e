"""The tiny checkpoint's tokenizer, trained on the spot."""

from __future__ import annotations

from pathlib import Path

from MiniCPMO45.tiny_tokenizer import train_vocabulary, write_tokenizer
from MiniCPMO45.tokenization_minicpmo_fast import MiniCPMOTokenizerFast


def tiny_tokenizer(folder: Path) -> MiniCPMOTokenizerFast:
    """Write the tokenizer files into `folder` and read them as a checkpoint's."""
    write_tokenizer(folder, train_vocabulary())
    return MiniCPMOTokenizerFast.from_pretrained(folder)
