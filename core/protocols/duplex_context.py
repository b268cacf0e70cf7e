"""What a duplex session knows in words: its system prompt, and what is typed in the middle of it.

The cache of a session grows by units alone, so words that come later begin the conversation anew,
with a prompt that holds them and what was said so far. To the client it is the same session.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from enum import StrEnum

from core.errors import BadPayloadError, ErrorCode, TooBigError
from core.protocols.duplex_units import DuplexLimits, DuplexUnits
from core.protocols.effects import Effect, Prefill, Send, StopTimer
from core.protocols.events import (
    MS_PER_S,
    PrefillDone,
    Received,
    TimerName,
    Transcribed,
)
from core.protocols.machine import LiveMachine, SessionNames, warn
from core.protocols.rebase import (
    ITEM_MAX_CHARS,
    ITEMS_MAX,
    USER_SPOKE,
    CountTokens,
    Rebase,
    Speaker,
)
from core.schemas.duplex import Prepare, Prepared, Stopped, TextAdded, TextInput
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.queue import WarningMessage


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
        names: SessionNames,
        limits: DuplexLimits | None = None,
        count_tokens: CountTokens = len,
        *,
        keeps_history: bool = True,
    ) -> None:
        """Without `keeps_history` the caller keeps the history."""
        self._limits = limits or DuplexLimits()
        super().__init__(names, DuplexPhase.WAITING)
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
        names = self._names
        return Stopped(session_id=names.session_id, recording_session_id=names.recording_session_id)

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
            recording_session_id=self._names.recording_session_id,
            session_id=self._names.session_id,
            session_secret=self._names.session_secret,
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
