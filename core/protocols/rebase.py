"""What a duplex conversation has to know in words, and the prompt that says it. Pure.

The cache of a duplex session grows by units alone. Text that comes in the middle of it begins a new
one, whose prompt holds them and what was said so far; to the client it is the same session.
Bounded: of the conversation the newest is kept, of the rest no more than its budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from core.schemas.duplex import Prepare

HISTORY_TOKENS: Final = 1_024  # ours: of what was said so far
APPENDED_TOKENS: Final = 2_048  # ours: of instructions and facts that came later
ITEMS_MAX: Final = 256
ITEM_MAX_CHARS: Final = 1_000  # ours: of what one says in a row, the end is kept
USER_SPOKE: Final = "[the user spoke]"

CountTokens = Callable[[str], int]


class Speaker(StrEnum):
    """Who said something."""

    USER = "User"
    ASSISTANT = "Assistant"
    DEVELOPER = "Note"


SPEAKER_OF: Final = {
    "user": Speaker.USER,
    "assistant": Speaker.ASSISTANT,
    "developer": Speaker.DEVELOPER,
    "system": Speaker.DEVELOPER,
}
"""Who speaks in a message of a role."""


class Append(StrEnum):
    """What words are appended for."""

    INSTRUCTIONS = "instructions"  # from now on they hold
    THINKING = "thinking"  # to be known, not to be spoken of
    COMMENTARY = "commentary"  # to be spoken of now


@dataclass(frozen=True)
class Appended:
    """Words that were appended in the middle of a session."""

    purpose: Append  # what for
    text: str  # the words
    event_id: str | None = None  # the client's name for the event, told when they are in


class SpokenHistory:
    """What was said so far, as far as it is known in words."""

    def __init__(self, count_tokens: CountTokens) -> None:
        self._count = count_tokens
        self._items: deque[tuple[Speaker, str]] = deque(maxlen=ITEMS_MAX)

    def clear(self) -> None:
        self._items.clear()

    def add(self, speaker: Speaker, text: str) -> None:
        """Add text; what one speaker says in a row is one item."""
        if self._items and self._items[-1][0] is speaker:
            _, before = self._items.pop()
            is_same = speaker is Speaker.USER and text == before == USER_SPOKE
            text = before if is_same else before + text
        self._items.append((speaker, text[-ITEM_MAX_CHARS:]))

    def set_transcript(self, text: str) -> None:
        """Replace the newest speech of the user that has no transcript yet."""
        for index in range(len(self._items) - 1, -1, -1):
            if self._items[index] == (Speaker.USER, USER_SPOKE):
                self._items[index] = (Speaker.USER, text)
                return
        self.add(Speaker.USER, f" {text}")

    def lines(self, max_tokens: int = HISTORY_TOKENS) -> list[str]:
        """Return the newest items, oldest first, as far as the budget goes."""
        lines: deque[str] = deque()
        for speaker, text in reversed(self._items):
            line = f"{speaker.value}: {text.strip()}"
            max_tokens -= self._count(line)
            if max_tokens < 0:
                break
            lines.appendleft(line)
        return list(lines)


class Rebase:
    """The prompt of a duplex session whose conversation changes."""

    def __init__(self, first: Prepare, count_tokens: CountTokens) -> None:
        self.first = first  # what the first session begins with
        self.history = SpokenHistory(count_tokens)  # what was said so far
        self.is_stale = False  # a new session has to begin
        self.must_speak = False  # the next unit speaks
        self._count = count_tokens
        self._kept: list[Appended] = []  # instructions and facts
        self._waiting: list[Appended] = []  # not in the present session's prompt yet
        self._going_in: list[Appended] = []  # in the prompt that is being fed
        self._done: list[Appended] = []  # in it, and not acknowledged yet
        self._typed_chars = 0  # not in the present session's prompt yet
        self._must_speak_then = False  # once they are

    def ask(self) -> None:
        """Begin a new session though no text was appended."""
        self.is_stale = True

    def type(self, text: str, *, must_speak: bool) -> bool:
        """Add what the user typed; return whether there was room for it."""
        if self._typed_chars + len(text) > ITEM_MAX_CHARS:
            return False
        self._typed_chars += len(text) + 1
        self._must_speak_then |= must_speak
        self.history.add(Speaker.USER, f" {text}")
        self.is_stale = True
        return True

    @property
    def is_speech_due(self) -> bool:
        """The model has been asked to speak, and has not begun to."""
        return self.must_speak or self._must_speak_then

    def speak_next(self, *, is_wanted: bool = True) -> None:
        """Let the first unit that has all text in its prompt speak, or not any more."""
        self._must_speak_then = is_wanted and self.is_stale
        self.must_speak = is_wanted and not self.is_stale

    def has_room(self, words: Appended) -> bool:
        waiting = sum(self._count(each.text) for each in (*self._kept, *self._waiting))
        return waiting + self._count(words.text) <= APPENDED_TOKENS

    def append(self, words: Appended) -> None:
        self._waiting.append(words)
        self.is_stale = True

    def begin(self) -> Prepare:
        self._going_in, self._waiting, self.is_stale = self._waiting, [], False
        self._typed_chars = 0
        self._kept += [each for each in self._going_in if each.purpose is not Append.COMMENTARY]
        return self.first.model_copy(
            update={
                "prefix_system_prompt": self._instructions(),
                "suffix_system_prompt": self._suffix(),
                # The first units of a session listen; this is the middle of one.
                "config": self.first.config.model_copy(update={"force_listen_count": 0}),
            }
        )

    def done(self) -> None:
        done, self._going_in = self._going_in, []
        self.must_speak |= self._must_speak_then
        self._must_speak_then = False
        for each in done:
            if each.purpose is Append.COMMENTARY:
                self.must_speak = True
                self.history.add(Speaker.DEVELOPER, each.text)
        self._done += done

    def take_done(self) -> list[Appended]:
        """Return what is in the prompt for the first time since the last call."""
        done, self._done = self._done, []
        return done

    def first_prompt(self) -> Prepare:
        return self.first.model_copy(update={"suffix_system_prompt": self._suffix()})

    def _instructions(self) -> str:
        later = [each.text for each in self._kept if each.purpose is Append.INSTRUCTIONS]
        return "\n".join([text for text in (self.first.prefix_system_prompt, *later) if text])

    def _suffix(self) -> str | None:
        known = [each.text for each in self._kept if each.purpose is Append.THINKING]
        said = self.history.lines()
        now = [each.text for each in self._going_in if each.purpose is Append.COMMENTARY]
        parts = [
            *(f"\n\nKnown: {text}" for text in known),
            *(("\n\nprevious: " + "\n".join(said),) if said else ()),
            *(f"\n\nSpeak about this now: {text}" for text in now),
        ]
        return "".join([self.first.suffix_system_prompt or "", *parts]) or None
