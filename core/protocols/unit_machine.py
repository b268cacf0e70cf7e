"""The duplex machine inside OpenAI's protocols, and its input audio. Pure.

The cache of the duplex engine grows by units alone; any other change of a Realtime conversation
restarts it with a prompt that contains the items as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import SPEAKER_OF, CountTokens, DuplexLimits
from core.protocols.effects import Effect, Send, ServerMessage, Step
from core.protocols.events import MS_PER_S, AudioReady, Event, Received, StepDone
from core.protocols.machine import SessionIds
from core.protocols.realtime_items import Content, Item, RealtimeLimits
from core.protocols.tables import Phase
from core.schemas import duplex
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES, UNIT_MS
from core.schemas.queue import Interrupt

BYTES_PER_S: Final = INPUT_SAMPLE_RATE_HZ * SAMPLE_BYTES
UNIT_BYTES: Final = UNIT_MS * BYTES_PER_S // MS_PER_S
AHEAD_MAX_S: Final = 3.0  # ours: as many units as may wait
SILENT_AFTER_S: Final = 1.2  # ours: a gap longer than this is filled with silence
WAITING_MAX_BYTES: Final = 4 * UNIT_BYTES  # ours
WINDOW_BYTES: Final = 32 * BYTES_PER_S // MS_PER_S  # of voice activity detection
PADS_MAX: Final = 4.0  # ours: units that may be padded with silence ahead of the clock
PADS_PER_S: Final = 0.4  # ours: rate at which that allowance recovers


class InputAudioBuffer:
    """Buffers a client's audio for the model and for voice activity detection.

    Samples are little-endian float32 at 16 kHz. Audio more than `AHEAD_MAX_S` ahead of the clock is
    dropped, the newest first; gaps are filled with silence. Beyond `WAITING_MAX_BYTES` of waiting
    audio the oldest is dropped.
    """

    def __init__(self, *, is_detected: bool) -> None:
        """With `is_detected`, buffer audio for voice activity detection too: `take_undetected`."""
        self.is_muted = False
        self.is_detecting = False  # a `Detect` is running
        self._unit = bytearray()  # the incomplete unit
        self._undetected = bytearray()
        self._waiting = (self._unit, self._undetected) if is_detected else (self._unit,)
        self._missing_bytes = WINDOW_BYTES  # until detection can complete another window
        self._received_bytes = 0
        self._began_s = 0.0
        self._last_s = 0.0  # when audio last arrived

    @property
    def received_ms(self) -> int:
        return self._received_bytes * MS_PER_S // BYTES_PER_S

    def begin(self, at_s: float) -> None:
        self._began_s = at_s - self._received_bytes / BYTES_PER_S
        self._last_s = at_s

    def append(self, samples: bytes, at_s: float) -> None:
        if self.is_starved(at_s):
            self.begin(at_s)  # the missing audio may not arrive in one burst
        self._last_s = at_s
        ahead = int((at_s - self._began_s + AHEAD_MAX_S) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        taken = samples[: max(0, ahead - self._received_bytes)]
        self._take(bytes(len(taken)) if self.is_muted else taken)

    def is_starved(self, at_s: float) -> bool:
        return at_s - self._last_s >= SILENT_AFTER_S

    def fill(self, at_s: float) -> None:
        """Append silence if no audio has arrived for `SILENT_AFTER_S`."""
        if not self.is_starved(at_s):
            return
        now = int((at_s - self._began_s) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        self._take(bytes(max(0, now - self._received_bytes)))

    @property
    def has_unit(self) -> bool:
        return len(self._unit) >= UNIT_BYTES

    def take_unit(self) -> bytes | None:
        if not self.has_unit:
            return None
        unit = bytes(self._unit[:UNIT_BYTES])
        del self._unit[:UNIT_BYTES]
        return unit

    def fill_unit(self) -> None:
        """Pad the incomplete unit with silence; the session's clock does not advance."""
        self._unit.extend(bytes(-len(self._unit) % UNIT_BYTES or UNIT_BYTES * (not self._unit)))

    def take_undetected(self) -> bytes | None:
        """Remove and return undetected audio, at most a unit, once it completes a window.

        Nothing while the last piece is in detection.
        """
        if self.is_detecting or len(self._undetected) < self._missing_bytes:
            return None
        piece = bytes(self._undetected[:UNIT_BYTES])
        del self._undetected[: len(piece)]
        self._missing_bytes = WINDOW_BYTES - (len(piece) - self._missing_bytes) % WINDOW_BYTES
        self.is_detecting = True
        return piece

    def _take(self, samples: bytes) -> None:
        self._received_bytes += len(samples)
        for waiting in self._waiting:
            waiting += samples
            if len(waiting) > WAITING_MAX_BYTES:
                del waiting[:-WAITING_MAX_BYTES]


Translate = Callable[[ServerMessage], list[Effect]]
"""Returns the effects that replace a message of the duplex machine to its client."""


class UnitMachine(DuplexMachine):
    """The duplex machine of another protocol, which has its own messages.

    That protocol detects speech, and writes the history.
    """

    is_inner = True

    def __init__(
        self, ids: SessionIds, limits: DuplexLimits, count: CountTokens, translate: Translate
    ) -> None:
        super().__init__(ids, limits, count)
        self._translate = translate
        # Events and effects of the duplex machine since this was last cleared.
        self.seen: list[tuple[Event, Sequence[Effect]]] = []
        self.kv_share = 0.0  # share of the context in use
        self._drops_unit = False  # the output of the current unit is discarded

    @property
    def is_active(self) -> bool:
        return self.phase is Phase.ACTIVE

    def tell(self, event: Event) -> list[Effect]:
        """Handle an event of the duplex machine; return the effects for the protocol's client."""
        effects = super().handle(event)
        self.seen.append((event, tuple(effects)))
        return self.translated(effects)

    def translated(self, effects: Sequence[Effect]) -> list[Effect]:
        made: list[Effect] = []
        for effect in effects:
            made += self._translate(effect.message) if isinstance(effect, Send) else [effect]
        return made

    def break_off(self, at_s: float) -> list[Effect]:
        """Discard the output of the current unit, and make the next one listen."""
        self._drops_unit = isinstance(self.work, Step)
        self.rebase.wants_speech = False
        return self.tell(Received(Interrupt(), at_s=at_s))

    def takes(self, unit: duplex.ResultPart | duplex.Result) -> bool:
        """Return whether the unit's output is used; a result ends the unit."""
        is_used = not self._drops_unit
        if isinstance(unit, duplex.Result):
            self._drops_unit = False
            limits, length = self._limits, unit.kv_cache_length
            self.kv_share = min(1.0, length / limits.max_kv_tokens)
            self.rebase.is_stale |= limits.max_kv_tokens - length <= limits.kv_reserve_tokens
        return is_used

    @property
    def client_audio(self) -> bytes:
        """The audio of the last event, a unit's output, in the client's format."""
        event, _ = self.seen[-1]
        assert isinstance(event, AudioReady | StepDone)
        return event.client_audio


class RealtimeUnits(UnitMachine):
    def __init__(
        self, ids: SessionIds, limits: RealtimeLimits, count: CountTokens, translate: Translate
    ) -> None:
        unbounded = DuplexLimits(
            idle_timeout_s=0.0,
            max_kv_tokens=limits.max_kv_tokens,
            kv_reserve_tokens=limits.kv_reserve_tokens,
            has_window=True,  # the session restarts before the context is full
        )
        super().__init__(ids, unbounded, count, translate)
        self.buffer = InputAudioBuffer(is_detected=False)
        self.has_begun = False
        self._pictures: deque[str] = deque(maxlen=unbounded.max_frames_per_chunk)
        self._pads = PADS_MAX
        self._padded_s = 0.0

    @property
    def waits_for_audio(self) -> bool:
        """Whether nothing can begin before more input audio arrives."""
        is_asked = self.rebase.is_stale or self.rebase.wants_speech
        return self.has_begun and not is_asked and not self.buffer.has_unit

    def begin(self, at_s: float) -> list[Effect]:
        self.has_begun = True
        self.buffer.begin(at_s)
        effects = self.tell(Received(self.rebase.first, at_s=at_s))
        while self._pictures:
            effects += self.add_picture(self._pictures.popleft(), at_s)
        return effects

    def add_picture(self, picture: str, at_s: float) -> list[Effect]:
        """Add a picture for the next unit; before `begin`, for the first."""
        if not self.has_begun:
            self._pictures.append(picture)
            return []
        return self.tell(Received(duplex.VideoFrame(frame=picture), at_s=at_s))

    def set_conversation(self, first: duplex.Prepare, items: Iterable[Item]) -> None:
        self.rebase.first = first
        self.rebase.history.clear()
        for item in items:
            if item.role is not None and (line := _line(item)):
                self.rebase.history.add(SPEAKER_OF[item.role], f" {line}")

    def advance(self, at_s: float, *, must_listen: bool) -> list[Effect]:
        """Restart if due, else begin the next unit if its audio is complete."""
        if not self.is_active or self.work is not None:
            return []
        if effects := self.begin_anew():
            return effects
        if self.rebase.wants_speech:
            # Limited, as units may not run faster than the duplex machine allows.
            self._pads = min(PADS_MAX, self._pads + (at_s - self._padded_s) * PADS_PER_S)
            self._padded_s = at_s
            if self._pads >= 1:
                self._pads -= 1
                self.buffer.fill_unit()
        unit = self.buffer.take_unit()
        if unit is None:
            return []
        chunk = duplex.AudioChunk(audio=unit, force_listen=must_listen)
        return self.tell(Received(chunk, at_s=at_s))


def _line(item: Item) -> str:
    return " ".join(filter(None, map(_words, item.content))).strip()


def _words(part: Content) -> str:
    if part.text:
        return part.text
    if part.picture is not None:
        return "[a picture]"
    seconds = 0.0 if part.audio is None else part.audio.duration_ms / MS_PER_S
    return f"[the user spoke for {seconds:.1f} s]" if seconds and part.type == "input_audio" else ""
