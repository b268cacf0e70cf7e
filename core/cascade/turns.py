"""The user's turn in a live call: its audio, and rules for its end, stop, backchannel and echo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Final

import numpy as np

from core.audio import FloatArray
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad

# Ours: silence after which a turn is over, if its sentence is complete and in any case, s.
PAUSE_S: Final = 0.3
LONG_PAUSE_S: Final = 1.0
# A sentence that ends with one of these is incomplete.
OPEN_ENDINGS: Final = frozenset(
    "a an and are as at because but can could do does for from how i if in is it's like my of on "
    "or should so than that the then to um uh was what when where which while who why will with "
    "would your".split()
)
# A clause may end with a verb of these behind its subject: "what rain is", "what can you do".
AFTER_SUBJECT: Final = re.compile(
    r"(?:\w (?:how|what|when|where|which|who|why) \w.*"
    r"|\b(?:how|what|when|where|which|who|why)\b.* (?:he|i|it|she|that|there|they|this|we|you))"
    r" (?:can|could|do|does|is|should|will|would)$"
)
STOP_WORDS: Final = frozenset(
    "be quiet silence stop pause cancel enough wait hold on shut up hush".split()
)
FILLER_WORDS: Final = frozenset(
    "please now okay ok hey it that talking just there no can could you thanks that's".split()
)
BACKCHANNELS: Final = frozenset(
    "ah aha alright cool exactly good great hm hmm huh i indeed interesting mhm mm mmhmm nice oh "
    "ok okay really right see sure true uh uhhuh um wow yeah yep yes".split()
)
BACKCHANNEL_WORDS_MAX: Final = 3
ECHO_SHARE: Final = 0.6  # of a transcript's words, found in the model's latest words
# Ours: the same if a turn has interrupted the model, since its follow-up questions share words.
INTERRUPTING_ECHO_SHARE: Final = 0.8
# Whisper's transcripts of noise.
HALLUCINATIONS: Final = frozenset(
    ["you", "thank you", "thanks for watching", "bye", "the end", "so"]
)
SHORT_SPEECH_S: Final = 0.5  # less than this with such a transcript is noise
NOT_SPEECH: Final = re.compile(r"\[[^\]]*\]|\([^)]*\)|♪")
WORD: Final = re.compile(r"[a-z0-9']+")

THRESHOLD: Final = 0.5  # of the probability of speech
PREROLL_S: Final = 0.4  # of audio before the first speech that belongs to the turn
TURN_MAX_S: Final = 28.0  # Whisper's window is 30 s; a longer turn is answered at this length
WINDOW_S: Final = MODEL_WINDOW_SAMPLES / INPUT_SAMPLE_RATE_HZ


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower().replace("’", "'").replace("-", ""))


def clean_transcript(text: str, speech_s: float) -> str:
    """Return a transcript of `speech_s` of speech without annotations and hallucinations."""
    said = NOT_SPEECH.sub(" ", text).strip()
    words = words_of(said)
    is_noise = speech_s < SHORT_SPEECH_S and " ".join(words) in HALLUCINATIONS
    return "" if not words or is_noise else " ".join(said.split())


def is_over(text: str, silence_s: float) -> bool:
    words = words_of(text)
    if silence_s >= LONG_PAUSE_S:
        return True
    is_open = not words or text.endswith(("...", "…", ",", "-"))
    if not is_open and words[-1] in OPEN_ENDINGS:
        is_open = AFTER_SUBJECT.search(" ".join(words)) is None
    return silence_s >= PAUSE_S and not is_open


def is_finished(text: str) -> bool:
    """Return whether a transcript is a complete sentence, regardless of silence."""
    return is_over(text, PAUSE_S) and text.endswith((".", "?", "!"))


def is_stop(text: str) -> bool:
    words = set(words_of(text)) - FILLER_WORDS
    return bool(words) and words <= STOP_WORDS


def is_backchannel(text: str) -> bool:
    words = words_of(text)
    return 0 < len(words) <= BACKCHANNEL_WORDS_MAX and set(words) <= BACKCHANNELS


def is_echo(text: str, spoken: Sequence[str], least_share: float = ECHO_SHARE) -> bool:
    """Return whether a transcript repeats the model's latest words, which are in lower case."""
    words = words_of(text)
    known = set(spoken)
    found = sum(word in known for word in words)
    return bool(words) and found >= least_share * len(words)


class UserTurn:
    """The current turn of the user, at most `TURN_MAX_S` of audio; then it is full.

    Its speech `began_s` on the clock of `received_s`, all audio received in the call; its
    `silence_s` is since its last speech.
    """

    def __init__(self, detector: SileroVad) -> None:
        self._detector = detector
        self._state = detector.initial_state()
        self._rest = np.zeros(0, np.float32)  # less than a window
        self._windows: list[FloatArray] = []
        self.received_s = self.speech_s = self.silence_s = self.began_s = 0.0
        self.has_interrupted = False  # a reply of the model

    @property
    def has_speech(self) -> bool:
        return self.speech_s > 0

    @property
    def is_full(self) -> bool:
        return sum(map(len, self._windows)) >= TURN_MAX_S * INPUT_SAMPLE_RATE_HZ

    @property
    def audio(self) -> FloatArray:
        """Audio of the turn so far, [T] float32 at 16 kHz."""
        return np.concatenate([*self._windows, self._rest])

    def snapshot(self) -> UserTurn:
        """Return a copy, for `resume`."""
        copied = copy(self)
        copied._windows = list(self._windows)
        return copied

    def add(self, samples: FloatArray) -> None:
        """Add audio, [T] float32 at 16 kHz; blocks."""
        received = np.concatenate([self._rest, samples])
        count = len(received) // MODEL_WINDOW_SAMPLES
        windows, self._rest = np.split(received, [count * MODEL_WINDOW_SAMPLES])
        found, self._state = self._detector.probabilities(windows, self._state)
        for window, probability in zip(np.split(windows, max(1, count)), found, strict=False):
            self._take(window, is_voice=bool(probability >= THRESHOLD))

    def clear(self) -> None:
        self._windows = []
        self.speech_s = self.silence_s = 0.0
        self.has_interrupted = False

    def resume(self, cleared: UserTurn) -> None:
        """Prepend a turn that was cleared before it was over."""
        self._windows[:0] = cleared._windows
        self.speech_s += cleared.speech_s
        self.began_s = cleared.began_s

    def _take(self, window: FloatArray, *, is_voice: bool) -> None:
        if is_voice:
            if not self.has_speech:
                self.began_s = self.received_s
            self.speech_s += WINDOW_S
        self.received_s += WINDOW_S
        self.silence_s = 0.0 if is_voice else self.silence_s + WINDOW_S
        self._windows.append(window)
        if not self.has_speech:
            del self._windows[: -int(PREROLL_S / WINDOW_S)]
