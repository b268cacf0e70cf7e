"""Positions of audio, pictures and subtitles in a replay, in samples at 16 kHz.

Reads only `recording.json` and the lengths of the WAV files.
"""

from __future__ import annotations

import html
import itertools
import textwrap
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from core.schemas.common import MS_PER_S
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from recording.folder import readable_wav
from recording.records import (
    Chunk,
    DuplexRecording,
    Recording,
    ReplayTiming,
    TimelineEvent,
    TurnRecording,
    VoiceInput,
)

REPLAY_RATE_HZ: Final = INPUT_SAMPLE_RATE_HZ
SAMPLES_PER_MS: Final = REPLAY_RATE_HZ // MS_PER_S
UNIT_MS: Final = 1_000  # default length of a chunk without audio
USER_LINE_CHARS: Final = 110  # of the user's words shown at once
# Source: docs/specification/service.md#5.5.
SUBTITLE_LINGER_SAMPLES: Final = 3 * REPLAY_RATE_HZ // 2


@dataclass
class Span:
    """Audio files played back to back from a position on."""

    start: int  # samples at 16 kHz
    files: list[Path] = field(default_factory=list)
    rate_hz: int = REPLAY_RATE_HZ
    source_samples: int = 0  # at `rate_hz`
    limit: int | None = None  # samples at 16 kHz after which it is cut off

    @property
    def samples(self) -> int:
        whole = round(self.source_samples * REPLAY_RATE_HZ / self.rate_hz)
        return whole if self.limit is None else min(whole, self.limit)

    @property
    def end(self) -> int:
        return self.start + self.samples


@dataclass
class CaptionTurn:
    """The texts of a turn: each is appended to those shown; all disappear together."""

    texts: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0  # when they go


@dataclass
class ReplayPlan:
    """A whole replay; all positions in samples at 16 kHz."""

    user: list[Span] = field(default_factory=list)
    ai: list[Span] = field(default_factory=list)
    pictures: list[tuple[int, Path]] = field(default_factory=list)
    captions: list[CaptionTurn] = field(default_factory=list)
    user_captions: list[CaptionTurn] = field(default_factory=list)
    least: int = 0  # it lasts at least so long

    @property
    def samples(self) -> int:
        ends = (span.end for span in itertools.chain(self.user, self.ai))
        return max(self.least, max(ends, default=0))


def plan_replay(folder: Path, recording: Recording, timing: ReplayTiming = "session") -> ReplayPlan:
    """Lay out a replay; of length 0 without audio.

    `session` leaves the user's audio unbroken and places the model's turns on that clock; `logical`
    plays unit after unit, each as long as its longer side.
    """
    if isinstance(recording, TurnRecording):
        return _plan_turns(folder, recording)
    planner = _DuplexPlanner(folder, recording, timing)
    for chunk in recording.chunks:
        planner.add(chunk)
    return planner.finish(recording.events)


class _DuplexPlanner:
    def __init__(self, folder: Path, recording: DuplexRecording, timing: ReplayTiming) -> None:
        unit_ms = recording.config.get("chunk_ms", UNIT_MS)
        self._unit = (unit_ms if isinstance(unit_ms, int) else UNIT_MS) * SAMPLES_PER_MS
        self._folder = folder
        self._is_logical = timing == "logical"
        self._plan = ReplayPlan()
        self._now = 0  # start of the chunk being added
        self._audio_now = 0  # the same in the audio that the user sent
        self._starts: list[tuple[int, int]] = []  # of chunks: both of these
        self._speech: Span | None = None  # what the model is saying, while it can continue
        self._caption: CaptionTurn | None = None  # of the turn, while it can continue

    def add(self, chunk: Chunk) -> None:
        user = _span(self._folder, chunk.user_audio, self._now)
        duration = user.samples if user else self._unit
        if chunk.sent_ts_ms is not None:  # earlier chunks may have been dropped
            self._audio_now = round(chunk.sent_ts_ms * SAMPLES_PER_MS)
        self._starts.append((self._audio_now, self._now))
        self._audio_now += duration
        if user:
            self._plan.user.append(user)
        result = chunk.result
        if result is not None and result.barge_in:
            self._break_off()
        if result is not None and result.mode == "SPEAK":
            speech = _span(self._folder, result.ai_audio, self._now)
            if speech:
                self._say(speech)
            if self._is_logical:
                duration = max(duration, speech.samples if speech else 0, self._unit)
            if result.text:
                if self._caption is None:
                    self._caption = CaptionTurn()
                    self._plan.captions.append(self._caption)
                self._caption.texts.append((self._now, result.text))
        else:
            self._speech = None
        pictures = [name for name in (chunk.user_frame, *(chunk.extra_frames or ())) if name]
        for number, name in enumerate(pictures):
            at = self._now + number * duration // len(pictures)
            self._plan.pictures.append((at, self._folder / name))
        self._now += duration
        if result is not None and result.end_of_turn:
            self._end_turn()

    def finish(self, events: Iterable[TimelineEvent]) -> ReplayPlan:
        self._end_turn()
        for event in events:
            if event.text and event.text.strip() and self._starts:
                start = self._place(round(event.ts_ms * SAMPLES_PER_MS))
                samples = (event.duration_ms or 0) * SAMPLES_PER_MS
                lines = textwrap.wrap(event.text, USER_LINE_CHARS)
                texts = [(start + n * samples // len(lines), line) for n, line in enumerate(lines)]
                end = start + samples + SUBTITLE_LINGER_SAMPLES
                self._plan.user_captions.append(CaptionTurn(texts, end))
        self._plan.user_captions.sort(key=lambda turn: turn.texts[0][0])
        self._plan.least = self._now if self._plan.user or self._plan.ai else 0
        return self._plan

    def _place(self, position: int) -> int:
        """Return where a position in the sent audio is in the replay."""
        index = max(bisect_right(self._starts, (position, self._now)) - 1, 0)
        sent, start = self._starts[index]
        place = start + position - sent
        # What was said in a dropped chunk is shown where the next one begins.
        return min([place, *(start for _, start in self._starts[index + 1 : index + 2])])

    def _say(self, speech: Span) -> None:
        """Append speech to the turn's speech, or start it now."""
        said = self._speech
        if said is not None and (not self._is_logical or speech.start == said.end):
            said.files += speech.files
            said.source_samples += speech.source_samples
            return
        if self._plan.ai:
            speech.start = max(speech.start, self._plan.ai[-1].end)
        self._plan.ai.append(speech)
        self._speech = speech

    def _break_off(self) -> None:
        """The user interrupted: earlier speech is not played from now on."""
        spans = self._plan.ai
        while spans and spans[-1].start >= self._now:
            spans.pop()
        if spans and spans[-1].end > self._now:
            spans[-1].limit = self._now - spans[-1].start
        self._end_turn()

    def _end_turn(self) -> None:
        """End the caption shortly after the later end of chunk and speech."""
        if self._caption is not None:
            spoken = self._plan.ai[-1].end if self._plan.ai else 0
            self._caption.end = max(self._now, spoken) + SUBTITLE_LINGER_SAMPLES
        self._speech, self._caption = None, None


def _plan_turns(folder: Path, recording: TurnRecording) -> ReplayPlan:
    """Place the user's voice so that it ends at the request, and the reply after it.

    An interrupted reply ends when it was interrupted.
    """
    plan = ReplayPlan()
    for turn in recording.turns:
        now = round((turn.request_ts_ms or 0) * SAMPLES_PER_MS)
        name = turn.input.audio if isinstance(turn.input, VoiceInput) else None
        user = _span(folder, name, 0)
        if user:
            user.start = max(now - user.samples, plan.user[-1].end if plan.user else 0)
            now = max(now, user.end)
            plan.user.append(user)
        delay = round((turn.timing.first_audio_ms or 0) * SAMPLES_PER_MS)
        answer = _span(folder, turn.output.audio, now + delay)
        if answer:
            answer.start = max(answer.start, plan.ai[-1].end if plan.ai else 0)
            if turn.interrupted and (elapsed_ms := turn.timing.elapsed_ms) is not None:
                # Speech is generated faster than it is heard.
                answer.limit = max(0, now + round(elapsed_ms * SAMPLES_PER_MS) - answer.start)
            plan.ai.append(answer)
    return plan


def _span(folder: Path, name: str | None, start: int) -> Span | None:
    shape = readable_wav(folder / name) if name is not None else None
    if name is None or shape is None or shape.channels != 1:
        return None
    if shape.rate_hz not in (INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ):
        return None
    return Span(start, [folder / name], shape.rate_hz, shape.samples)


DASH: Final = "\u2013 "  # before the text of the other speaker
CUE_MAX_CHARS: Final = 120  # three lines of a video; then a new cue starts


@dataclass(frozen=True)
class Cue:
    start_ms: int
    end_ms: int
    text: str


def cues_of(plan: ReplayPlan) -> list[Cue]:
    """Return the subtitles, which accumulate over a turn; the user's first, after a dash."""
    model = _cues_of_turns(plan.captions, plan.samples)
    user = _cues_of_turns(plan.user_captions, plan.samples)
    return _side_by_side([replace(cue, text=DASH + cue.text) for cue in user], model)


def _cues_of_turns(turns: list[CaptionTurn], samples: int) -> list[Cue]:
    cues: list[Cue] = []
    for turn, following in itertools.zip_longest(turns, turns[1:]):
        cues += _cues_of_turn(turn, min(turn.end, following.texts[0][0] if following else samples))
    return cues


def _side_by_side(above: list[Cue], below: list[Cue]) -> list[Cue]:
    """Merge concurrent cues, which a track of an MP4 file cannot have."""
    if not above:
        return below
    times = sorted({time for cue in (*above, *below) for time in (cue.start_ms, cue.end_ms)})
    waiting = [deque(above), deque(below)]
    cues: list[Cue] = []
    for start_ms, end_ms in itertools.pairwise(times):
        for row in waiting:
            while row and row[0].end_ms <= start_ms:
                row.popleft()
        shown = [row[0].text for row in waiting if row and row[0].start_ms <= start_ms]
        if shown:
            cues.append(Cue(start_ms, end_ms, "\n".join(shown)))
    return cues


def webvtt(cues: list[Cue]) -> str:
    """Return the text of a WebVTT file. Source: W3C, WebVTT, section 4."""
    blocks = [f"{_times(cue)}\n{html.escape(cue.text, quote=False)}\n" for cue in cues]
    return "\n".join(["WEBVTT\n", *blocks])


def subrip(cues: list[Cue]) -> str:
    """Return the text of a SubRip file (.srt)."""
    numbered = enumerate(cues, start=1)
    return "\n".join(f"{n}\n{_times(cue).replace('.', ',')}\n{cue.text}\n" for n, cue in numbered)


def _cues_of_turn(turn: CaptionTurn, last: int) -> Iterator[Cue]:
    shown = ""
    for (start, said), (end, _) in itertools.pairwise([*turn.texts, (last, "")]):
        added = "".join(char if char.isprintable() else " " for char in said)
        shown = shown + added if len(shown) + len(added) <= CUE_MAX_CHARS else added
        text = shown.strip()[:CUE_MAX_CHARS]
        start_ms, end_ms = start // SAMPLES_PER_MS, min(end, last) // SAMPLES_PER_MS
        if text and start_ms < end_ms:
            yield Cue(start_ms, end_ms, text)


def _times(cue: Cue) -> str:
    times = (datetime.min + timedelta(milliseconds=ms) for ms in (cue.start_ms, cue.end_ms))
    return " --> ".join(at.time().isoformat("milliseconds") for at in times)
