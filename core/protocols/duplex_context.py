"""Text of a duplex session: its prompt, the conversation so far, typed text. Pure.

The cache of a session grows by units alone, so later text restarts the conversation with a prompt
that contains it and the conversation so far. To the client it is the same session. Bounded: the
newest of the conversation is kept, and everything else has a budget.
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

HISTORY_TOKENS: Final = 1_024  # ours: of the conversation so far
APPENDED_TOKENS: Final = 2_048  # ours: of instructions and facts appended later
ITEMS_MAX: Final = 256
ITEM_MAX_CHARS: Final = 1_000  # ours: of one speaker's consecutive text, whose end is kept
USER_SPOKE: Final = "[the user spoke]"

CountTokens = Callable[[str], int]


class Speaker(StrEnum):
    """Speaker of a line of the conversation."""

    USER = "User"
    ASSISTANT = "Assistant"
    DEVELOPER = "Note"


SPEAKER_OF: Final = {
    "user": Speaker.USER,
    "assistant": Speaker.ASSISTANT,
    "developer": Speaker.DEVELOPER,
    "system": Speaker.DEVELOPER,
}
"""Speaker by message role."""


class Append(StrEnum):
    """Purpose of appended text."""

    INSTRUCTIONS = "instructions"  # in force from now on
    THINKING = "thinking"  # context, not to be spoken
    COMMENTARY = "commentary"  # to be spoken about now


@dataclass(frozen=True)
class Appended:
    """Text appended during a session."""

    purpose: Append
    text: str
    event_id: str | None = None  # of the client's event, echoed once the prompt contains the text


class SpokenHistory:
    """The conversation so far, as text."""

    def __init__(self, count_tokens: CountTokens) -> None:
        self._count = count_tokens
        self._items: deque[tuple[Speaker, str]] = deque(maxlen=ITEMS_MAX)

    def clear(self) -> None:
        self._items.clear()

    def add(self, speaker: Speaker, text: str) -> None:
        """Add text; consecutive text of one speaker is one item."""
        if self._items and self._items[-1][0] is speaker:
            _, before = self._items.pop()
            is_same = speaker is Speaker.USER and text == before == USER_SPOKE
            text = before if is_same else before + text
        self._items.append((speaker, text[-ITEM_MAX_CHARS:]))

    def set_transcript(self, text: str) -> None:
        """Set the transcript of the user's newest speech without one."""
        for index in range(len(self._items) - 1, -1, -1):
            if self._items[index] == (Speaker.USER, USER_SPOKE):
                self._items[index] = (Speaker.USER, text)
                return
        self.add(Speaker.USER, f" {text}")

    def lines(self, max_tokens: int = HISTORY_TOKENS) -> list[str]:
        """Return the newest items within the budget, oldest first."""
        lines: deque[str] = deque()
        for speaker, text in reversed(self._items):
            line = f"{speaker.value}: {text.strip()}"
            max_tokens -= self._count(line)
            if max_tokens < 0:
                break
            lines.appendleft(line)
        return list(lines)


class Rebase:
    """The prompt of a duplex session, which is restarted when text is added."""

    def __init__(self, first: Prepare, count_tokens: CountTokens) -> None:
        self.first = first  # settings of the first session
        self.history = SpokenHistory(count_tokens)  # the conversation so far
        self.is_stale = False  # a restart is due
        self.must_speak = False  # the next unit has to speak
        self._count = count_tokens
        self._kept: list[Appended] = []  # instructions and facts
        self._waiting: list[Appended] = []  # not in the current prompt yet
        self._going_in: list[Appended] = []  # in the prompt that is being prefilled
        self._done: list[Appended] = []  # in the prompt, not acknowledged yet
        self._typed_chars = 0  # not in the current prompt yet
        self._must_speak_then = False  # the same, once all text is in the prompt

    def ask(self) -> None:
        """Request a restart without new text."""
        self.is_stale = True

    def type(self, text: str, *, must_speak: bool) -> bool:
        """Add typed text; return whether there was room for it."""
        if self._typed_chars + len(text) > ITEM_MAX_CHARS:
            return False
        self._typed_chars += len(text) + 1
        self._must_speak_then |= must_speak
        self.history.add(Speaker.USER, f" {text}")
        self.is_stale = True
        return True

    @property
    def is_speech_due(self) -> bool:
        """Whether the model was asked to speak and has not begun."""
        return self.must_speak or self._must_speak_then

    def speak_next(self, *, is_wanted: bool = True) -> None:
        """Make the first unit whose prompt contains all text speak, or cancel that."""
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
                # Only the first units of a session are forced to listen.
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
        """Return the appended texts that entered the prompt since the last call."""
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
    """Phase of a duplex session."""

    WAITING = "waiting"
    PREPARING = "preparing"
    ACTIVE = "active"
    PAUSED = "paused"
    STOPPING = "stopping"
    CLOSED = "closed"


class UnitPhase(StrEnum):
    """Phase of the current unit in the engine."""

    IDLE = "idle"
    STEPPING = "stepping"
    FINALIZING = "finalizing"


class DuplexContext(LiveMachine[DuplexPhase]):
    """The part of the duplex machine that deals with text."""

    stopped = Stopped
    _limits: DuplexLimits

    def __init__(
        self,
        ids: SessionIds,
        limits: DuplexLimits | None = None,
        count_tokens: CountTokens = len,
        *,
        keeps_history: bool = True,
    ) -> None:
        """Without `keeps_history` the caller maintains the history."""
        self._limits = limits or DuplexLimits()
        super().__init__(ids, DuplexPhase.WAITING)
        self.rebase = Rebase(Prepare(), count_tokens)
        self._keeps_history = keeps_history
        # Spoken by the model, not in the history yet.
        self._spoken: deque[str] = deque(maxlen=ITEMS_MAX)
        self._prepare = Prepare()
        self._units = DuplexUnits(self._limits)
        self._received_samples = 0
        self._ready_s = 0.0  # when `prepared` was sent
        self._since_s = 0.0  # when the pause began, or audio last arrived

    @property
    def is_preparing(self) -> bool:
        return isinstance(self._work, Prefill)

    # --- preparation ---

    def prepare(self, event: Received[Prepare]) -> list[Effect]:
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
            text = f"These settings are unknown and were ignored: {', '.join(unknown)}."
            effects.append(Send(WarningMessage(code=ErrorCode.BAD_CONFIG, message=text)))
        effects += [*self._restart_idle_timer(), *self._session_timer()]
        return [*effects, *self._units.prefetch()]

    # --- text during the session ---

    def text(self, event: Received[TextInput]) -> list[Effect]:
        text = event.message.text.strip()
        if not text:
            return [warn(BadPayloadError("'text' is empty."))]
        if len(text) > ITEM_MAX_CHARS:
            problem = f"'text' has {len(text)} characters; {ITEM_MAX_CHARS} are allowed."
            return [warn(TooBigError(problem))]
        self._note_spoken()
        if not self.rebase.type(text, must_speak=event.message.force_speak):
            problem = f"'text' was dropped: {ITEM_MAX_CHARS} characters wait for the model already."
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
        """Restart the idle timer; each chunk does."""
