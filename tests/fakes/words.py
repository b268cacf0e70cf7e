"""A trained tokenizer, and the tokenizer files as they are published."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary
from tests.source_tree import ROOT

PUBLISHED_FILES = (
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "vocab.json",
)


@cache
def tiny_tokenizer() -> MiniCPMOTokenizerFast:
    """Return the tiny checkpoint's tokenizer; trained once a process."""
    return make_tokenizer(train_vocabulary())


def copy_published_words(folder: Path) -> None:
    """Copy the embedded checkpoint's tokenizer and preprocessor files, which have that layout."""
    for name in PUBLISHED_FILES:
        shutil.copy(ROOT / "assets" / "nano" / name, folder)
