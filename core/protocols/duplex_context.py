"""What a duplex session knows in words: its prompt, what was said, and what is typed. Pure.

The cache of a session grows by units alone, so text that comes later begins the conversation anew,
with a prompt that holds it and what was said so far. To the client it is the same session.
Bounded: of the conversation the newest is kept, of the rest no more than its budget.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from core.errors import BadPayloadError, ErrorCode, TooBigError
from core.protocols.duplex_units import DuplexLimits, DuplexUnits
from core.protocols.effects import Effect, Prefill, Send, StopTimer
from core.protocols.events import MS_PER_S, PrefillDone, Received, TimerName, Transcribed
from core.protocols.machine import LiveMachine, SessionIds, warn
from core.schemas.duplex import Prepare, Prepared, Stopped, TextAdded, TextInput
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.queue import WarningMessage

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


class DuplexPhase(StrEnum):
    """Where a duplex session stands."""

    WAITING = "waiting"
    PREPARING = "preparing"
    ACTIVE = "active"
    PAUSED = "paused"
    STOPPING = "stopping"
    CLOSED = "closed"


class UnitPhase(StrEnum):
    """What the engine does for the session's present unit."""

    IDLE = "idle"
    STEPPING = "stepping"
    FINALIZING = "finalizing"


class DuplexContext(LiveMachine[DuplexPhase]):
    """The part of a duplex session that deals with words."""

    _limits: DuplexLimits

    def __init__(
        self,
        ids: SessionIds,
        limits: DuplexLimits | None = None,
        count_tokens: CountTokens = len,
        *,
        keeps_history: bool = True,
    ) -> None:
        """Without `keeps_history` the caller keeps the history."""
        self._limits = limits or DuplexLimits()
        super().__init__(ids, DuplexPhase.WAITING)
        self.rebase = Rebase(Prepare(), count_tokens)  # what the session knows in words
        self._keeps_history = keeps_history
        # By the model, and not in the history yet.
        self._spoken: deque[str] = deque(maxlen=ITEMS_MAX)
        self._prepare = Prepare()
        self._units = DuplexUnits(self._limits)
        self._received_samples = 0
        self._ready_s = 0.0  # when `prepared` was sent
        self._since_s = 0.0  # when the pause began, or audio last came

    @property
    def is_preparing(self) -> bool:
        return isinstance(self._work, Prefill)

    def _stopped_message(self) -> Stopped:
        ids = self._ids
        return Stopped(session_id=ids.session_id, recording_session_id=ids.recording_session_id)

    # --- preparation ---

    def prepare(self, event: Received) -> list[Effect]:
        assert isinstance(event.message, Prepare)
        self._prepare = event.message
        self.rebase.first = event.message
        self._phase = DuplexPhase.PREPARING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(self.rebase.first_prompt()))]

    def prepared(self, event: PrefillDone) -> list[Effect]:
        self._work = None
        self._phase = DuplexPhase.ACTIVE
        self._ready_s = self._since_s = event.at_s
        message = Prepared(
            prompt_length=event.prompt_length,
            prompt_tokens=event.input_tokens,
            recording_session_id=self._ids.recording_session_id,
            session_id=self._ids.session_id,
            session_secret=self._ids.session_secret,
            chunk_ms=self._prepare.config.chunk_ms,
            max_kv_tokens=self._limits.max_kv_tokens,
            pause_timeout=self._limits.pause_timeout_s,
        )
        effects: list[Effect] = [Send(message)]
        if unknown := self._prepare.config.unknown_keys:
            text = f"These settings are not known and were left out: {', '.join(unknown)}."
            effects.append(Send(WarningMessage(code=ErrorCode.BAD_CONFIG, message=text)))
        effects += [*self._restart_idle_timer(), *self._session_timer()]
        return [*effects, *self._units.prefetch()]

    # --- words in the middle ---

    def text(self, event: Received) -> list[Effect]:
        assert isinstance(event.message, TextInput)
        text = event.message.text.strip()
        if not text:
            return [warn(BadPayloadError("'text' is empty."))]
        if len(text) > ITEM_MAX_CHARS:
            problem = f"'text' has {len(text)} characters; {ITEM_MAX_CHARS} are allowed."
            return [warn(TooBigError(problem))]
        self._note_spoken()
        if not self.rebase.type(text, must_speak=event.message.force_speak):
            problem = (
                f"'text' was left out: {ITEM_MAX_CHARS} characters wait for the model already."
            )
            return [warn(TooBigError(problem))]
        received_ms = self._received_samples * MS_PER_S // INPUT_SAMPLE_RATE_HZ
        return [Send(TextAdded(text=text, start_ms=received_ms))]

    def _note_speech(self) -> None:
        if self._keeps_history:
            self._note_spoken()
            self.rebase.history.add(Speaker.USER, USER_SPOKE)

    def _note_spoken(self) -> None:
        if self._spoken:
            self.rebase.history.add(Speaker.ASSISTANT, "".join(self._spoken))
            self._spoken.clear()

    def transcribed(self, event: Transcribed) -> list[Effect]:
        if self._keeps_history and event.text:
            self._note_spoken()
            self.rebase.history.set_transcript(event.text)
        return super().transcribed(event)

    @abstractmethod
    def _restart_idle_timer(self) -> list[Effect]:
        """Give the client its time anew; each chunk does."""
