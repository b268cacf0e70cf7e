"""Input audio of a Realtime client: the buffer, and segmentation into speech. Pure.

Positions count all audio ever appended. Bounded: the newest `MAX_BUFFER_S` of audio without an item
are kept; audio waiting for detection may be as much again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.endpointing import HYSTERESIS
from core.protocols.events import MS_PER_S
from core.protocols.realtime_items import AudioClip
from core.schemas.realtime_session import AudioFormat, TurnDetection

WINDOW_MS: Final = 32  # 512 samples at 16 kHz, the detector's window
MIN_SPEECH_MS: Final = 96  # ours: shorter bursts are ignored
MIN_BARGE_IN_MS: Final = 128  # ours: the same while the model is audible; as in half duplex
BARGE_IN_THRESHOLD: Final = 0.8
# Ours: at this probability the detector has found a vowel; the consonant before it, which it does
# not detect, counts as speech as far as it exceeds the noise floor.
SURE: Final = 0.95
ONSET_MS: Final = 64
LEVEL_MS: Final = 4
LEVELS_PER_WINDOW: Final = WINDOW_MS // LEVEL_MS
FLOOR_MS: Final = 512  # span whose quietest moment is the noise floor
ABOVE_FLOOR: Final = 10.0  # in power: 10 dB
LOWEST_POWER: Final = 1e-6
GAP_LEVELS: Final = 6  # quiet levels that end a burst
MAX_SEGMENT_S: Final = 300.0  # ours: longest segment
MAX_BUFFER_S: Final = 600.0  # ours: audio without an item


@dataclass(frozen=True)
class SpeechOpened:
    """Speech began; `start_ms` includes the prefix padding."""

    start_ms: int


@dataclass(frozen=True)
class SpeechClosed:
    """The turn ended; `end_ms` includes its trailing silence."""

    end_ms: int


class SpeechSegmenter:
    def __init__(self) -> None:
        self._clock_ms = 0
        self._free_from_ms = 0  # earliest start of the next segment
        self._onset_ms: int | None = None  # of speech that is not long enough yet
        self._opened_ms: int | None = None
        self._silent_from_ms: int | None = None
        self._is_sure = False  # in the previous window
        self._levels: deque[float] = deque(maxlen=FLOOR_MS // LEVEL_MS)

    def process(
        self, probability: float, rules: TurnDetection, levels: Sequence[float], *, is_audible: bool
    ) -> SpeechOpened | SpeechClosed | None:
        """Process the next window by its probability of speech and the power of each 4 ms.

        If `is_audible`, the audio may contain the model's own voice.
        """
        opened = self.process_partial(levels, rules) if is_audible else None
        self._levels.extend(levels)
        found = self._process(probability, rules, is_audible=is_audible)
        self._is_sure = probability >= SURE
        return opened or found

    def process_partial(self, levels: Sequence[float], rules: TurnDetection) -> SpeechOpened | None:
        """Open a segment within an incomplete window, while the model is audible.

        The minimum duration is the same, but counts from the onset of the audio.
        """
        onset_ms = self._onset_ms
        if onset_ms is None or not self._is_sure or self._clock_ms - onset_ms < 2 * WINDOW_MS:
            return None
        for count in range(1, len(levels) + 1):
            now_ms = self._clock_ms + count * LEVEL_MS
            audible_ms = _audible_ms([*self._levels, *levels[:count]])
            began_ms = max(now_ms - audible_ms, onset_ms - ONSET_MS)
            if audible_ms and now_ms - began_ms >= MIN_BARGE_IN_MS:
                return self._open(onset_ms, rules)
        return None

    def _process(
        self, probability: float, rules: TurnDetection, *, is_audible: bool
    ) -> SpeechOpened | SpeechClosed | None:
        start_ms = self._clock_ms
        self._clock_ms += WINDOW_MS
        if self._clock_ms <= self._free_from_ms:  # already part of an item
            return None
        if self._opened_ms is None:
            return self._find_onset(probability, rules, start_ms, is_audible=is_audible)
        if probability >= rules.threshold - HYSTERESIS:
            self._silent_from_ms = None
        elif self._silent_from_ms is None:
            self._silent_from_ms = start_ms
        silent_from_ms, end_ms = self._silent_from_ms, self._clock_ms
        if silent_from_ms is not None and end_ms - silent_from_ms >= rules.silence_ms:
            end_ms = silent_from_ms + rules.silence_ms
        elif end_ms - self._opened_ms < MAX_SEGMENT_S * MS_PER_S:
            return None
        self.close(end_ms)
        return SpeechClosed(end_ms)

    def close(self, end_ms: int) -> None:
        self._opened_ms = self._silent_from_ms = self._onset_ms = None
        self._free_from_ms = max(self._free_from_ms, end_ms)

    def start_at(self, position_ms: int) -> None:
        """Continue at a position; audio before it was not processed."""
        self._clock_ms = position_ms
        self._onset_ms = None
        self._levels.clear()

    def skip(self, duration_ms: int) -> None:
        """Continue after audio that will not be processed."""
        self.start_at(self._clock_ms + duration_ms)

    def _find_onset(
        self, probability: float, rules: TurnDetection, start_ms: int, *, is_audible: bool
    ) -> SpeechOpened | None:
        threshold = max(rules.threshold, BARGE_IN_THRESHOLD) if is_audible else rules.threshold
        if probability < threshold:
            self._onset_ms = None
            return None
        if self._onset_ms is None:
            self._onset_ms = start_ms
        if self._clock_ms - self._onset_ms < (MIN_BARGE_IN_MS if is_audible else MIN_SPEECH_MS):
            return None
        return self._open(self._onset_ms, rules)

    def _open(self, onset_ms: int, rules: TurnDetection) -> SpeechOpened:
        opened_ms = max(onset_ms - rules.prefix_padding_ms, self._free_from_ms, 0)
        self._opened_ms, self._onset_ms, self._silent_from_ms = opened_ms, None, None
        return SpeechOpened(opened_ms)


def _audible_ms(levels: Sequence[float]) -> int:
    """Return how long the audio at the end of `levels` has exceeded the noise floor."""
    limit = max(min(levels) * ABOVE_FLOOR, LOWEST_POWER)
    if levels[-1] < limit:
        return 0
    length = quiet = 0
    for at, level in enumerate(reversed(levels)):
        quiet = 0 if level >= limit else quiet + 1
        if quiet == GAP_LEVELS:
            break
        if not quiet:
            length = at  # without the first level, which may contain the onset
    return length * LEVEL_MS


class InputAudio:
    """The user's audio that is not part of an item, and the open segment."""

    def __init__(self) -> None:
        self.format = AudioFormat()
        self._pcm = bytearray()
        self._from_ms = 0.0  # position of the first buffered byte
        self._unscored = bytearray()
        self.is_scoring = False  # a `ScoreSpeech` is running
        self.segmenter = SpeechSegmenter()
        self.item_id = ""  # id of the open segment's item; "" between segments
        self._start_ms = 0  # start of the open segment
        # A turn ended during a response and still needs a reply.
        self.is_unanswered = False

    @property
    def is_open(self) -> bool:
        return bool(self.item_id)

    @property
    def end_ms(self) -> int:
        return int(self._from_ms + self.held_ms)

    @property
    def held_ms(self) -> float:
        return len(self._pcm) * MS_PER_S / self.format.bytes_per_s

    @property
    def is_too_far_behind(self) -> bool:
        return len(self._unscored) > MAX_BUFFER_S * self.format.bytes_per_s

    def use(self, audio_format: AudioFormat, rules: TurnDetection | None) -> None:
        """Apply new settings; audio of another format is dropped."""
        if audio_format != self.format:
            self._drop(len(self._pcm))
            self.segmenter.skip(len(self._unscored) * MS_PER_S // self.format.bytes_per_s)
            self._unscored.clear()
            self.format = audio_format
        if rules is None:
            self._unscored.clear()

    def append(self, pcm: bytes, *, is_scored: bool) -> None:
        """Append audio in the current format; an odd byte waits for its other half."""
        self._pcm += pcm
        if is_scored:
            self._unscored += pcm
        surplus = len(self._pcm) - round(MAX_BUFFER_S * self.format.bytes_per_s)
        if surplus > 0:
            self._drop(surplus + surplus % self.format.sample_bytes)

    def next_to_score(self) -> bytes:
        """Remove and return audio for detection; nothing while detection is busy."""
        size = len(self._unscored) - len(self._unscored) % self.format.sample_bytes
        if self.is_scoring or not size:
            return b""
        self.is_scoring = True
        pcm = bytes(self._unscored[:size])
        del self._unscored[:size]
        return pcm

    def open(self, item_id: str, start_ms: int) -> None:
        self.item_id, self._start_ms = item_id, start_ms

    def take(self, end_ms: int) -> tuple[str, AudioClip]:
        """End the segment; return its item's id and audio. Without a segment, take all audio.

        Audio before the segment is dropped.
        """
        item_id, start_ms = self.item_id, self._start_ms if self.item_id else 0
        self.segmenter.close(end_ms)
        self.item_id = ""
        first, last = self._offset(start_ms), self._offset(end_ms)
        audio = AudioClip.of(bytes(self._pcm[first:last]), self.format)
        self._drop(last)
        return item_id, audio

    def drop(self) -> None:
        self._drop(len(self._pcm) - len(self._pcm) % self.format.sample_bytes)
        self.segmenter.close(self.end_ms)
        self.item_id = ""

    def _drop(self, size: int) -> None:
        self._from_ms += size * MS_PER_S / self.format.bytes_per_s
        del self._pcm[:size]

    def _offset(self, at_ms: float) -> int:
        samples = round(max(0.0, at_ms - self._from_ms) * self.format.rate_hz / MS_PER_S)
        return min(samples * self.format.sample_bytes, len(self._pcm))
