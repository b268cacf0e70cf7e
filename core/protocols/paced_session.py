"""A session over the duplex machine whose output is paced by the clock. Pure.

Time is passed as an argument. Text is sent with the audio that speaks it, and silence where there
is no audio. Bounded: audio more than `LONGEST_S` ahead is dropped, the newest first.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from core.endpointing import SpeechDiscarded, SpeechStarted, SpeechSuspected
from core.protocols.duplex_units import CountTokens, DuplexLimits, Speaker
from core.protocols.effects import Detect, Effect
from core.protocols.events import MS_PER_S, AudioReady, Detected, Received, StepDone
from core.protocols.machine import SessionIds
from core.protocols.unit_session import UnitSession
from core.schemas import duplex
from core.schemas.gpt_live import Fixture
from core.schemas.realtime_session import AudioFormat

PIECE_MS: Final = 40  # short, as an interruption cannot recall a piece that was sent
SILENCE_MS: Final = 100  # longer, as silence needs no interruption
LONGEST_S: Final = 60  # ours: of waiting audio; a unit makes no more than a few seconds
LATE_MAX_S: Final = 20.0  # ours: a client that reads so late is disconnected
# A word with the space before it; a character in scripts without spaces.
WORD: Final = re.compile(
    r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+)|\s+$"
)
EARLY_S: Final = 1e-3  # tolerance of timers

START_S: Final = 30.0  # ours: for the client's first event
STOP_S: Final = 1.0  # ours: for the current unit to end
# Ours: after a burst that was not speech, so that a recurring echo does not chop the model up.
HOLD_AGAIN_S: Final = 2.0


class Piece(NamedTuple):
    """A piece of output."""

    samples: bytes  # in the client's format: `PIECE_MS` of audio, or `SILENCE_MS` of silence
    text: str  # spoken in it
    start_ms: int  # from the beginning of the session
    end_ms: int  # end of its text; without text, of its audio


class PacedSender:
    """Output audio and text that were not sent yet, in the client's format."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._bytes_per_ms = audio_format.bytes_per_s // MS_PER_S
        self._silence = audio_format.silence(SILENCE_MS)
        self._due_s = inf  # when the next piece is sent
        self._sent_ms = 0
        self._held_ms = 0  # of it, silence sent while audio was held
        self.is_held = False  # silence is sent instead of waiting audio, which is kept
        self._waiting = bytearray()
        # Each with the byte offsets of its beginning and end.
        self._words: deque[tuple[int, int, str]] = deque()
        self._unit_from: int | None = None  # byte offset of the current unit's audio

    @property
    def is_audible(self) -> bool:
        return bool(self._waiting)

    def begin(self, at_s: float) -> None:
        """Start or restart the clock: the next piece is due now."""
        self._due_s = at_s

    def wait_s(self, at_s: float) -> float:
        return max(0.0, self._due_s - at_s)

    def put(self, samples: bytes) -> None:
        """Add audio of the current unit."""
        if self._unit_from is None:
            self._unit_from = self._end_bytes
        room = LONGEST_S * MS_PER_S * self._bytes_per_ms - len(self._waiting)
        self._waiting += samples[:room]

    def end_unit(self, text: str) -> None:
        """Add the text of the current unit, spread over its audio, which is complete."""
        first = self._end_bytes if self._unit_from is None else self._unit_from
        length, self._unit_from = self._end_bytes - first, None
        for word in WORD.finditer(text):
            start, end = (first + length * at // len(text) for at in word.span())
            self._words.append((start, end, word[0]))

    def due(self, at_s: float) -> list[Piece]:
        """Remove and return the pieces due by now, in order; check `is_too_late` first."""
        pieces: list[Piece] = []
        while self._due_s <= at_s + EARLY_S:
            pieces.append(self._next_piece())
        return pieces

    def is_too_late(self, at_s: float) -> bool:
        """Whether the client is more than `LATE_MAX_S` behind in reading."""
        return at_s - self._due_s > LATE_MAX_S

    def drop(self) -> None:
        self.is_held = False
        self._waiting.clear()
        self._words.clear()
        self._unit_from = None

    @property
    def _played_bytes(self) -> int:
        return (self._sent_ms - self._held_ms) * self._bytes_per_ms

    @property
    def _end_bytes(self) -> int:
        return self._played_bytes + len(self._waiting)

    def _next_piece(self) -> Piece:
        samples, text, size = self._silence, "", PIECE_MS * self._bytes_per_ms
        if self.is_held:
            samples = samples[:size]
            self._held_ms += PIECE_MS
        elif self._waiting:  # the last piece is filled with silence
            samples = bytes(self._waiting[:size]) + samples[: max(0, size - len(self._waiting))]
            del self._waiting[:size]
        start_ms, length_ms = self._sent_ms, len(samples) // self._bytes_per_ms
        end_ms = self._sent_ms = start_ms + length_ms
        self._due_s += length_ms / MS_PER_S
        if self._words and not self.is_held:
            played = self._played_bytes
            while self._words and self._words[0][0] < played:
                _, end, word = self._words.popleft()
                text += word
                end_ms = max(end_ms, self._sent_ms + (end - played) // self._bytes_per_ms)
        return Piece(samples, text, start_ms, end_ms)


class PacedSession(UnitSession):
    """A duplex session with paced output."""

    def __init__(self, ids: SessionIds, limits: DuplexLimits, count: CountTokens) -> None:
        limits = replace(limits, prepare_timeout_s=START_S, stop_grace_s=STOP_S)
        super().__init__(ids, limits, count, detects=True)
        self.fixture: Fixture | None = None  # a recording that replaces the model's audio
        self._is_detecting = False  # a `Detect` is running
        self.is_paused = False
        self._may_hold_from_s = 0.0
        self.format = AudioFormat()
        self.sender = PacedSender(self.format)

    def prepare(
        self,
        first: duplex.Prepare,
        audio_format: AudioFormat,
        said: Sequence[tuple[Speaker, str]],
        at_s: float,
    ) -> list[Effect]:
        self.format = audio_format
        self.sender = PacedSender(audio_format)
        for speaker, text in said:
            self.rebase.history.add(speaker, f" {text}")
        self.input.begin(at_s)
        return self.handle(Received(first, at_s=at_s))

    def begin(self, at_s: float) -> None:
        self.input.begin(at_s)
        self.sender.begin(at_s)

    def append_audio(self, samples: bytes, at_s: float) -> list[Effect]:
        if self.fixture is not None:
            samples = bytes(len(samples))
        self.input.append(samples, at_s)
        return self.advance(at_s)

    def due(self, at_s: float) -> list[Piece]:
        pieces = self.sender.due(at_s)
        for piece in pieces:
            if piece.text:
                self.rebase.history.add(Speaker.ASSISTANT, piece.text)
        return pieces

    def advance(self, at_s: float) -> list[Effect]:
        """Fill gaps of the input with silence, then begin what can begin."""
        if not self.is_active or self.is_paused:
            return []
        self.input.fill(at_s)
        return [*self._detect_next(), *self._feed(at_s)]

    def detected(self, event: Detected) -> list[Effect]:
        """Hold the model's audio on suspected speech, and interrupt it on confirmed speech.

        A false alarm delays the audio without losing any.
        """
        self._is_detecting = False
        effects: list[Effect] = []
        for speech_event in event.speech_events:
            may_yield = self.sender.is_audible or self.machine.is_speaking
            may_yield = may_yield and self.fixture is None
            match speech_event:
                case SpeechSuspected() if may_yield and event.at_s >= self._may_hold_from_s:
                    self.sender.is_held = True
                case SpeechDiscarded() if self.sender.is_held:
                    self._may_hold_from_s = event.at_s + HOLD_AGAIN_S
                    self.sender.is_held = False
                case SpeechStarted(start_samples):
                    self.sender.is_held = False
                    self.rebase.history.add_speech(start_samples)
                    effects += self.break_off(event.at_s) if may_yield else []
        return [*effects, *self._detect_next()]

    def break_off(self, at_s: float) -> list[Effect]:
        """Fall silent: drop unsent audio, and make the next unit listen."""
        self.sender.drop()
        return super().break_off(at_s)

    def put(self, unit: duplex.ResultPart | duplex.Result) -> None:
        """Add the output of the current unit, which the last event carries, unless discarded."""
        event, _ = self.seen[-1]
        assert isinstance(event, AudioReady | StepDone)
        is_used = self.end_unit(unit) if isinstance(unit, duplex.Result) else not self.drops_unit
        if not is_used or self.fixture is not None:
            return
        self.sender.put(event.client_audio)
        if isinstance(unit, duplex.Result):
            self.sender.end_unit(unit.text)

    def play(self, fixture: Fixture, at_s: float) -> list[Effect]:
        """Play a recording instead of the model's audio; the input is muted meanwhile."""
        effects = self.break_off(at_s)
        self.fixture = fixture
        self.sender.put(fixture.samples)
        self.sender.end_unit("")
        return effects

    def take_played(self) -> Fixture | None:
        """Return the recording once it was played; the model is audible again."""
        if self.fixture is None or self.sender.is_audible:
            return None
        fixture, self.fixture = self.fixture, None
        return fixture

    # --- helpers ---

    def _feed(self, at_s: float) -> list[Effect]:
        """Pass complete units to the duplex machine, unless a restart comes first."""
        if self.machine.is_preparing:
            return []
        if anew := self.machine.begin_anew():
            return anew
        effects: list[Effect] = []
        if self.machine.must_speak:
            self.input.fill_unit()
        while (unit := self.input.take_unit()) is not None:
            effects += self.handle(Received(duplex.AudioChunk(audio=unit), at_s=at_s))
        return effects

    def _detect_next(self) -> list[Effect]:
        """Pass new input to voice activity detection, one piece at a time."""
        if not self.is_active or self._is_detecting:
            return []
        piece = self.input.take_undetected()
        self._is_detecting = piece is not None
        return [] if piece is None else [Detect(piece)]
