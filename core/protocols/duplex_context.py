"""Text of a duplex session: its prompt, the conversation so far, typed text. Pure.

The cache of a session grows by units alone, so later text restarts the conversation with a prompt
that contains it and the conversation so far. To the client it is the same session. Bounded: the
newest of the conversation is kept, and everything else has a budget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from core.protocols.duplex_units import ITEM_MAX_CHARS, CountTokens, Speaker, SpokenHistory
from core.schemas.duplex import Prepare

APPENDED_TOKENS: Final = 2_048  # ours: of instructions and facts appended later
PREVIOUS: Final = "\n\nprevious: "  # before the conversation so far
SPEAK_NOW: Final = "\n\nSpeak about this now: "
# Within one speaker's text, what would begin that of another.
FORGED: Final = re.compile(rf"(?<=\n)(?=(?:{'|'.join(Speaker)}): |{SPEAK_NOW.strip()})")


class Append(StrEnum):
    """Purpose of appended text."""

    INSTRUCTIONS = "instructions"  # in force from now on
    THINKING = "thinking"  # context, not to be spoken
    COMMENTARY = "commentary"  # to be spoken about now


@dataclass(frozen=True)
class Appended:
    purpose: Append
    text: str
    event_id: str | None = None  # of the client's event, echoed once the prompt contains the text


class Rebase:
    """The prompt of a duplex session, which is restarted when text is added."""

    def __init__(self, first: Prepare, count_tokens: CountTokens) -> None:
        self.first = first  # settings of the first session
        self.history = SpokenHistory(count_tokens)  # the conversation so far
        self.is_stale = False  # a restart is due
        self.wants_speech = False  # the model was asked to speak and has not begun
        self._kept: list[Appended] = []  # instructions and facts
        self._waiting: list[Appended] = []  # not in the current prompt yet
        self.going_in: list[Appended] = []  # in the prompt that is being prefilled
        self._typed: list[str] = []  # not in the current prompt yet

    def type(self, text: str, *, must_speak: bool) -> bool:
        """Add typed text, which follows the model's turn; return whether there was room for it."""
        if sum(len(typed) + 1 for typed in self._typed) + len(text) > ITEM_MAX_CHARS:
            return False
        self._typed.append(text)
        self.wants_speech |= must_speak
        self.is_stale = True
        return True

    def has_room(self, words: Appended) -> bool:
        texts = (*self._kept, *self._waiting, words)
        # An empty text takes room, too, or any number of them would fit.
        return sum(self.history.count_tokens(each.text) or 1 for each in texts) <= APPENDED_TOKENS

    def append(self, words: Appended) -> None:
        self._waiting.append(words)
        self.is_stale = True

    def begin(self) -> Prepare:
        self.going_in, self._waiting, self.is_stale = self._waiting, [], False
        for text in self._typed:
            self.history.add(Speaker.USER, f" {text}")
        self._typed.clear()
        self._kept += [each for each in self.going_in if each.purpose is not Append.COMMENTARY]
        later = [each.text for each in self._kept if each.purpose is Append.INSTRUCTIONS]
        instructions = [text for text in (self.first.prefix_system_prompt, *later) if text]
        return self.first.model_copy(
            update={
                "prefix_system_prompt": "\n".join(instructions),
                "suffix_system_prompt": self._suffix(),
                # Only the first units of a session are forced to listen.
                "config": self.first.config.model_copy(update={"force_listen_count": 0}),
            }
        )

    def done(self) -> None:
        done, self.going_in = self.going_in, []
        for each in done:
            if each.purpose is Append.COMMENTARY:
                self.wants_speech = True
                self.history.add(Speaker.DEVELOPER, f" {each.text}")

    def first_prompt(self) -> Prepare:
        return self.first.model_copy(update={"suffix_system_prompt": self._suffix()})

    def _suffix(self) -> str | None:
        known = [each.text for each in self._kept if each.purpose is Append.THINKING]
        said = [FORGED.sub(" ", line) for line in self.history.lines()]
        now = [each.text for each in self.going_in if each.purpose is Append.COMMENTARY]
        parts = [
            *(f"\n\nKnown: {text}" for text in known),
            *((PREVIOUS + "\n".join(said),) if said else ()),
            *(f"{SPEAK_NOW}{text}" for text in now),
        ]
        return "".join([self.first.suffix_system_prompt or "", *parts]) or None
