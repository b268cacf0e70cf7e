"""The languages of the pages: each is one catalogue of words, `static/i18n/CODE.json`.

Read once, when the gateway is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError

ENGLISH: Final = "en"  # where no wish can be met
NAME: Final = "language.name"
CODE: Final = re.compile(r"[a-z]{2,3}")  # of a wish only this much counts
CATALOGUE: Final[TypeAdapter[dict[str, str]]] = TypeAdapter(dict[str, str])


class Languages:
    """Every language there is, by its code."""

    def __init__(self, folder: Path) -> None:
        """Read the catalogues.

        Args:
            folder: Where they lie.

        Raises:
            ValueError: One cannot be used, or there is no English.
        """
        self._words = {path.stem: _catalogue(path) for path in sorted(folder.glob("*.json"))}
        if ENGLISH not in self._words:
            raise ValueError(f"{folder} holds no {ENGLISH}.json")

    @property
    def names(self) -> dict[str, str]:
        """What each language calls itself, by its code."""
        return {code: words[NAME] for code, words in self._words.items()}

    def words(self, code: str) -> Mapping[str, str]:
        """Return the texts of a language by their keys; English ones where it has none."""
        return MappingProxyType(self._words[ENGLISH] | self._words[code])

    def check(self, code: str | None) -> None:
        """Raise ValueError if a language is configured that is not there."""
        if code is not None and code not in self._words:
            there = ", ".join(self._words)
            raise ValueError(f"service.default_lang = {code!r}: there are {there}")

    def pick(self, wishes: Iterable[str | None]) -> str:
        """Return the first language wished for that is there, else English.

        Args:
            wishes: Codes such as "zh" or "zh-CN"; of a region only the language counts.
        """
        for wish in wishes:
            code = (wish or "").strip().partition("-")[0].lower()
            if code in self._words:
                return code
        return ENGLISH


def _catalogue(path: Path) -> dict[str, str]:
    if not CODE.fullmatch(path.stem):
        raise ValueError(f"{path} is not named after a language: two or three small letters")
    try:
        words = CATALOGUE.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error
    if NAME not in words:
        raise ValueError(f"{path} does not say {NAME}")
    return words
