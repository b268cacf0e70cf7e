"""Speaking rate: the assignment of a reply's words to seconds.

A function of the text only, so that the language model can learn it. A word comes no later than its
audio, and a turn ends no earlier than the audio.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from MiniCPMO45.engine.policies import MAX_UNIT_CHARACTERS

# Fitted to 150 replies of the target voice (hibari "heart"), deviation 0.18 s a reply.
LETTER_S = 0.0196
SYLLABLE_S = 0.118
COMMA_S = 0.163
SENTENCE_S = 0.5  # the voice pauses for 0.86; longer pauses are shortened
LEAD_S = 0.1  # silence before the first word
TAIL_S = 0.25  # margin after the last word
EARLY = 0.95  # words are due slightly before their time

_WORD = re.compile(r"\s*\S+")
_VOWELS = re.compile(r"[aeiouy]+")


@dataclass(frozen=True)
class TimedWord:
    """A word with the preceding space, and its time."""

    text: str
    start_s: float
    stop_s: float


def timed_words(reply: str) -> list[TimedWord]:
    words, now_s = [], LEAD_S
    for text in _WORD.findall(reply):
        stop_s = now_s + _duration_s(text)
        words.append(TimedWord(text, now_s, stop_s))
        now_s = stop_s + _pause_s(text)
    return words


def split_reply(reply: str) -> list[str]:
    """Split a reply into the texts of its units of one second, some of them empty."""
    words = timed_words(reply)
    units: list[str] = []
    for word in words:
        due = int(word.start_s * EARLY)
        while len(units) <= due:
            units.append("")
        if units[-1] and len(units[-1] + word.text) >= MAX_UNIT_CHARACTERS:
            units.append("")
        units[-1] += word.text
    seconds = math.ceil(words[-1].stop_s + TAIL_S) if words else 1
    return units + [""] * (seconds - len(units))


def _duration_s(word: str) -> float:
    letters = re.sub(r"[^a-z']", "", word.lower())
    return LETTER_S * len(letters) + SYLLABLE_S * _syllables(letters)


def _syllables(letters: str) -> int:
    silent_e = len(letters) > 3 and letters.endswith("e") and not letters.endswith("le")
    return max(1, len(_VOWELS.findall(letters[:-1] if silent_e else letters)))


def _pause_s(word: str) -> float:
    if word.endswith((".", "!", "?")):
        return SENTENCE_S
    return COMMA_S if word.endswith(",") else 0.0
