"""The input audio of a Realtime client: the buffer, and where speech begins and ends. Pure.

Positions count all audio ever appended. Bounded: of audio that no item holds yet the newest
`max_buffer_s` are kept; audio that detection has not judged yet may be as much again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.protocols.events import MS_PER_S
from core.protocols.realtime_items import AudioClip
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.realtime_session import AudioFormat, SemanticVad, ServerVad

WINDOW_MS: Final = 32  # 512 samples at 16 kHz, what the detector judges at once
MIN_SPEECH_MS: Final = 96  # ours: a shorter burst opens no segment
MIN_BARGE_IN_MS: Final = 128  # ours, while the model is audible, and as in half duplex
BARGE_IN_THRESHOLD: Final = 0.8
HYSTERESIS: Final = 0.15  # as of core.endpointing
# Ours: a detector that is so sure has heard a vowel; the consonant before it, which made it sure of
# nothing, counts as speech, too, as far as it stands out from the room.
SURE: Final = 0.95
ONSET_MS: Final = 64
LEVEL_MS: Final = 4
LEVELS_PER_WINDOW: Final = WINDOW_MS // LEVEL_MS
ROOM_MS: Final = 512  # the room is as loud as the quietest moment of these
ABOVE_ROOM: Final = 10.0  # in power, 10 dB
LOWEST_POWER: Final = 1e-6
GAP_LEVELS: Final = 6  # quiet for so long, a burst is over
MAX_SEGMENT_S: Final = 300.0  # ours: a segment is closed at this length
WINDOW_SAMPLES: Final = WINDOW_MS * INPUT_SAMPLE_RATE_HZ // MS_PER_S


@dataclass(frozen=True)
class SpeechOpened:
    """Somebody speaks, from `start_ms` on with what is kept before it."""

    start_ms: int


@dataclass(frozen=True)
class SpeechClosed:
    """The turn ended, with its silence."""

    end_ms: int


class SpeechSegmenter:
    """Finds where speech begins and ends, from a probability for each window."""

    def __init__(self) -> None:
        self._clock_ms = 0
        self._free_from_ms = 0  # no segment begins before
        self._onset_ms: int | None = None  # of speech that may be long enough
        self._opened_ms: int | None = None
        self._silent_from_ms: int | None = None
        self._is_sure = False  # of the window before
        self._levels: deque[float] = deque(maxlen=ROOM_MS // LEVEL_MS)

    @property
    def is_open(self) -> bool:
        return self._opened_ms is not None

    def judge(
        self,
        probability: float,
        rules: ServerVad | SemanticVad,
        *,
        is_audible: bool,
        levels: Sequence[float] = (),
    ) -> SpeechOpened | SpeechClosed | None:
        """Judge the next window.

        Args:
            probability: Of speech.
            rules: The session's.
            is_audible: The model's own voice may be in the audio.
            levels: Power of each 4 ms of the window.
        """
        opened = self.judge_beginning(levels, rules) if is_audible else None
        self._levels.extend(levels)
        judged = self._judge(probability, rules, is_audible=is_audible)
        self._is_sure = probability >= SURE
        return opened or judged

    def judge_beginning(
        self, levels: Sequence[float], rules: ServerVad | SemanticVad
    ) -> SpeechOpened | None:
        """Open a segment inside a window whose end is still to come, while the model is audible.

        Speech has to last as long as between windows, but counts from where the audio began.
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

    def _judge(
        self, probability: float, rules: ServerVad | SemanticVad, *, is_audible: bool
    ) -> SpeechOpened | SpeechClosed | None:
        start_ms = self._clock_ms
        self._clock_ms += WINDOW_MS
        if self._clock_ms <= self._free_from_ms:  # an item holds it by now
            return None
        if self._opened_ms is None:
            return self._find_onset(probability, rules, start_ms, is_audible=is_audible)
        if probability >= rules.threshold - HYSTERESIS:
            self._silent_from_ms = None
        elif self._silent_from_ms is None:
            self._silent_from_ms = start_ms
        silent_from_ms = self._silent_from_ms
        is_long = self._clock_ms - self._opened_ms >= MAX_SEGMENT_S * MS_PER_S
        is_over = silent_from_ms is not None and self._clock_ms - silent_from_ms >= rules.silence_ms
        if not (is_over or is_long):
            return None
        end_ms = self._clock_ms
        if silent_from_ms is not None and is_over:
            end_ms = silent_from_ms + rules.silence_ms
        self.close(end_ms)
        return SpeechClosed(end_ms)

    def close(self, end_ms: int) -> None:
        self._opened_ms = self._silent_from_ms = self._onset_ms = None
        self._free_from_ms = max(self._free_from_ms, end_ms)

    def start_at(self, position_ms: int) -> None:
        """Continue at a position: what came before it was not judged."""
        self._clock_ms = position_ms
        self._onset_ms = None
        self._levels.clear()

    def _find_onset(
        self, probability: float, rules: ServerVad | SemanticVad, start_ms: int, *, is_audible: bool
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

    def _open(self, onset_ms: int, rules: ServerVad | SemanticVad) -> SpeechOpened:
        opened_ms = max(onset_ms - rules.prefix_padding_ms, self._free_from_ms, 0)
        self._opened_ms, self._onset_ms, self._silent_from_ms = opened_ms, None, None
        return SpeechOpened(opened_ms)


def _audible_ms(levels: Sequence[float]) -> int:
    """Return how long the audio at the end of levels surely stands out from the room."""
    limit = max(min(levels) * ABOVE_ROOM, LOWEST_POWER)
    if levels[-1] < limit:
        return 0
    length = quiet = 0
    for at, level in enumerate(reversed(levels)):
        quiet = 0 if level >= limit else quiet + 1
        if quiet == GAP_LEVELS:
            break
        if not quiet:
            length = at  # the first level may hold the onset in its middle: it does not count
    return length * LEVEL_MS


class InputAudio:
    """The user's audio that is no item yet, and which item the open segment becomes."""

    def __init__(self, max_buffer_s: float = 600.0) -> None:
        self._max_buffer_s = max_buffer_s
        self.format = AudioFormat()
        self._pcm = bytearray()
        self._from_ms = 0.0  # position of the first byte kept
        self._unscored = bytearray()
        self._is_scoring = False  # detection is scoring a piece
        self.finder = SpeechSegmenter()
        self.item_id = ""  # the item that the open segment becomes; "" between segments
        self._start_ms = 0  # where the open segment begins
        # A turn ended while a response was active, and has not been answered.
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
        return len(self._unscored) > self._max_buffer_s * self.format.bytes_per_s

    def use(self, audio_format: AudioFormat, rules: ServerVad | SemanticVad | None) -> None:
        """Change the format and who ends a turn; audio of another format is dropped."""
        if audio_format != self.format:
            self._from_ms += self.held_ms
            self._pcm.clear()
            self._unscored.clear()
            self.format = audio_format
        if rules is None:
            self._unscored.clear()

    def append(self, pcm: bytes, *, is_scored: bool) -> None:
        """Append audio in the present format; an odd byte waits for its other half."""
        self._pcm += pcm
        if is_scored:
            self._unscored += pcm
        surplus = len(self._pcm) - round(self._max_buffer_s * self.format.bytes_per_s)
        if surplus > 0:
            self._drop(surplus + surplus % self.format.sample_bytes)

    def next_to_score(self) -> bytes:
        """Take out audio for detection, unless detection is busy or there is none."""
        size = len(self._unscored) - len(self._unscored) % self.format.sample_bytes
        if self._is_scoring or not size:
            return b""
        self._is_scoring = True
        pcm = bytes(self._unscored[:size])
        del self._unscored[:size]
        return pcm

    def scored(self) -> None:
        self._is_scoring = False

    def open(self, item_id: str, start_ms: int) -> None:
        self.item_id, self._start_ms = item_id, start_ms

    def take(self, end_ms: int) -> tuple[str, AudioClip]:
        """End the segment; return its item and its audio. Without a segment, take everything.

        What lies before the segment is dropped.
        """
        item_id, start_ms = self.item_id, self._start_ms if self.item_id else 0
        self.finder.close(end_ms)
        self.item_id = ""
        first, last = self._offset(start_ms), self._offset(end_ms)
        audio = AudioClip.of(bytes(self._pcm[first:last]), self.format)
        self._drop(last)
        return item_id, audio

    def drop(self) -> None:
        self._drop(len(self._pcm) - len(self._pcm) % self.format.sample_bytes)
        self.finder.close(self.end_ms)
        self.item_id = ""

    def _drop(self, size: int) -> None:
        self._from_ms += size * MS_PER_S / self.format.bytes_per_s
        del self._pcm[:size]

    def _offset(self, at_ms: float) -> int:
        samples = round(max(0.0, at_ms - self._from_ms) * self.format.rate_hz / MS_PER_S)
        return min(samples * self.format.sample_bytes, len(self._pcm))
