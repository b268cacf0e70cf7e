"""What a duplex conversation has to know in words, and the prompt that says it. Pure.

The cache of a duplex session grows by units alone. Words that come in the middle of a talk begin a
new one, whose prompt holds them and what was said so far; to the client it is the same session.
Bounded: of the talk the newest is kept, of the rest no more than its budget.
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
USER_SPOKE: Final = "[the user spoke]"

CountTokens = Callable[[str], int]


class Speaker(StrEnum):
    """Who said something."""

    USER = "User"
    ASSISTANT = "Assistant"
    DEVELOPER = "Note"


class Append(StrEnum):
    """What words are appended for."""

    INSTRUCTIONS = "instructions"  # from now on they hold
    THINKING = "thinking"  # to be known, not to be spoken of
    COMMENTARY = "commentary"  # to be spoken of now


@dataclass(frozen=True)
class Appended:
    """Words that were appended in the middle of a talk.

    Attributes:
        purpose: what for.
        text: the words.
        event_id: the client's name for the event, told when they are in.
    """

    purpose: Append
    text: str
    event_id: str | None = None


class SpokenHistory:
    """What was said so far, as far as it is known in words."""

    def __init__(self, count_tokens: CountTokens) -> None:
        """Begin with nothing said."""
        self._count = count_tokens
        self._items: deque[tuple[Speaker, str]] = deque(maxlen=ITEMS_MAX)

    def add(self, speaker: Speaker, text: str) -> None:
        """Add words; what one speaker says in a row is one item."""
        if self._items and self._items[-1][0] is speaker:
            _, before = self._items.pop()
            is_same = speaker is Speaker.USER and text == before == USER_SPOKE
            text = before if is_same else before + text
        self._items.append((speaker, text))

    def write_down(self, text: str) -> None:
        """Put words in the place of the newest speech of the user that has none yet."""
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
    """The prompt of a duplex session in a talk whose words change.

    Attributes:
        history: what was said so far.
    """

    def __init__(self, first: Prepare, count_tokens: CountTokens) -> None:
        """Begin.

        Args:
            first: What the first session begins with.
            count_tokens: Counts as the model does.
        """
        self.history = SpokenHistory(count_tokens)
        self._first = first
        self._count = count_tokens
        self._kept: list[Appended] = []  # instructions and facts
        self._waiting: list[Appended] = []  # not in the present session's prompt yet
        self._going_in: list[Appended] = []  # in the prompt that is being fed
        self._is_asked = False

    @property
    def is_stale(self) -> bool:
        """A new session has to begin."""
        return self._is_asked or bool(self._waiting)

    def ask(self) -> None:
        """Have a new session begin though no words were appended."""
        self._is_asked = True

    def has_room(self, words: Appended) -> bool:
        """Whether words can still be appended."""
        waiting = sum(self._count(each.text) for each in (*self._kept, *self._waiting))
        return waiting + self._count(words.text) <= APPENDED_TOKENS

    def append(self, words: Appended) -> None:
        """Take in words; they are in the prompt of the next session."""
        self._waiting.append(words)

    def begin(self) -> Prepare:
        """Return what the new session begins with."""
        self._going_in, self._waiting, self._is_asked = self._waiting, [], False
        self._kept += [each for each in self._going_in if each.purpose is not Append.COMMENTARY]
        return self._first.model_copy(
            update={
                "prefix_system_prompt": self._instructions(),
                "suffix_system_prompt": self._context() or None,
                # The first units of a talk listen; this is the middle of one.
                "config": self._first.config.model_copy(update={"force_listen_count": 0}),
            }
        )

    def done(self) -> list[Appended]:
        """The new session has begun; return what is in its prompt for the first time."""
        done, self._going_in = self._going_in, []
        for each in done:
            if each.purpose is Append.COMMENTARY:
                self.history.add(Speaker.DEVELOPER, each.text)
        return done

    def first_prompt(self) -> Prepare:
        """Return what the first session begins with, with what was said before it."""
        context = self._context() or None
        return self._first.model_copy(update={"suffix_system_prompt": context})

    def _instructions(self) -> str:
        later = [each.text for each in self._kept if each.purpose is Append.INSTRUCTIONS]
        return "\n".join([text for text in (self._first.prefix_system_prompt, *later) if text])

    def _context(self) -> str:
        """Return what is told after the voice sample."""
        known = [each.text for each in self._kept if each.purpose is Append.THINKING]
        said = self.history.lines()
        now = [each.text for each in self._going_in if each.purpose is Append.COMMENTARY]
        parts = [
            *(f"\n\nKnown: {text}" for text in known),
            *(("\n\nprevious: " + "\n".join(said),) if said else ()),
            *(f"\n\nSpeak about this now: {text}" for text in now),
        ]
        return "".join(parts)
