"""Readings of digits in a transcript: "15th" is a word, "1238" a number or a time."""

from __future__ import annotations

import re

from training.nano.domain.catalogue import words_of
from training.nano.domain.spoken_numbers import SMALL, cardinal, ordinal

LARGEST = 999  # largest number that is spelled out
LAST_DAY = 31
LAST_MINUTE = 59

_ORDINAL = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)\b")
_TIMES = re.compile(r"(\d)\s*[x×*]\s*(\d)")
_CLOCK = re.compile(r"\b(\d{1,2})[:.]?(\d{2})\b")
_NUMBER = re.compile(r"\d+")


def readings(text: str) -> list[list[str]]:
    """Return the normalised words of a text, with digits as numbers, and as times of day."""
    plain = _TIMES.sub(r"\1 times \2", text.lower().replace("-", " ").replace("+", " plus "))
    plain = _ORDINAL.sub(lambda found: _ordinal(int(found[1])) or found[0], plain)
    return [words_of(_numbers(plain)), words_of(_clock(plain))]


def _clock(text: str) -> str:
    return _numbers(_CLOCK.sub(lambda found: _time(int(found[1]), int(found[2])) or found[0], text))


def _numbers(text: str) -> str:
    return _NUMBER.sub(lambda found: f" {_cardinal(int(found[0]))} ", text)


def _ordinal(number: int) -> str:
    return ordinal(number) if 1 <= number <= LAST_DAY else ""


def _time(hour: int, minute: int) -> str:
    if minute > LAST_MINUTE:
        return ""
    last = f"oh {SMALL[minute]}" if minute < 10 else cardinal(minute)
    return f"{cardinal(hour)} {last}"


def _cardinal(number: int) -> str:
    if number > LARGEST:
        return str(number)
    hundreds, rest = divmod(number, 100)
    if not hundreds or number == 100:
        return cardinal(number)
    return f"{SMALL[hundreds]} hundred" + (f" and {cardinal(rest)}" if rest else "")
