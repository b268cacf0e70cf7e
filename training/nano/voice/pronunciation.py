"""The target voice: text to 24 kHz speech with phonemes, durations and pitch.

Wraps the package `hibari-tts` (Apache-2.0), which must be importable. Its phoneme durations, an
inner tensor of the network, are added to the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from MiniCPMO45.configuration_minicpmo import TIMING
from training.nano.user_voices.engines import one_thread_session
from training.nano.voice.alphabet import PHONEMES, SILENCE, code_of, pitch_class

DURATIONS = "/Cast_32_output_0"  # the graph's tensor of phoneme durations, int64 [L]
DURATION_STEP_S = 0.025
F0_STEP_S = 0.0125
LOWEST_F0_HZ = 60.0
CODE_S = 1 / TIMING.codes_per_second
STRESS_MARKS = "ˈˌ"
LEVEL_STEP_SAMPLES = 120  # 5 ms
SILENT_SHARE = 0.012  # of the loudest level, about -38 dB
LEAD_CODES = TIMING.lookahead_codes  # every turn begins with three codes of silence
ONSET_MARGIN_S = 0.04
TAIL_S = 0.10  # after the last word
PAUSE_S = 0.34  # after a sentence, before the lead of the next one


@dataclass(frozen=True)
class Phone:
    """One phoneme, or silence without `symbol`; `place` is its index in the phoneme string."""

    symbol: str
    start_s: float
    stop_s: float
    place: int = 0


@dataclass(frozen=True, eq=False)
class Utterance:
    text: str
    wave: NDArray[np.float32]  # [n] at 24 kHz, n a multiple of 960; `LEAD_CODES` are silent
    codes: tuple[int, ...]  # speech codes of `wave`, n / 960 of them
    f0_hz: NDArray[np.float32]  # fundamental per mel frame, 0 where unvoiced, float32 [n / 480]
    word_codes: tuple[int, ...]  # first code of each word of `text.split()`, after the lead

    @property
    def spoken(self) -> tuple[int, ...]:
        return self.codes[LEAD_CODES:]


class UnspeakableTextError(ValueError):
    """The text cannot be spoken word by word."""


class Pronouncer:
    def __init__(self, seed: int = 0) -> None:
        graph = with_durations(Path(self._voice.model_path).read_bytes())
        self._session = one_thread_session(graph)
        self._random = np.random.default_rng(seed)

    @cached_property
    def _voice(self) -> Any:  # the package ships no types
        from hibari import Hibari

        return Hibari()

    def speak(self, text: str) -> Utterance:
        """Speak a text, sentence by sentence.

        Raises `UnspeakableTextError` if the text is empty, a sentence is too long, or words cannot
        be matched with its pronunciation.
        """
        parts = self._voice.split_sentences(text)
        if not parts:
            raise UnspeakableTextError("there is nothing to say")
        sentences = [self._speak_sentence(part, PAUSE_S) for part in parts[:-1]]
        sentences.append(self._speak_sentence(parts[-1], TAIL_S))
        words, at = [], 0
        for sentence in sentences:
            words += [at + code for code in sentence.word_codes]
            at += len(sentence.codes)
        return Utterance(
            text,
            np.concatenate([sentence.wave for sentence in sentences]),
            tuple(code for sentence in sentences for code in sentence.codes),
            np.concatenate([sentence.f0_hz for sentence in sentences]),
            tuple(words),
        )

    def _speak_sentence(self, text: str, tail_s: float) -> Utterance:
        from hibari import dsp
        from hibari.tts import MAX_PHONEMES

        symbols, word_starts = self._spell(text)
        if len(symbols) > MAX_PHONEMES:
            raise UnspeakableTextError(f"too long for one sentence: {text!r}")
        ids = np.array([[0, *(self._voice.vocab[s] for s in symbols), 0]], np.int64)
        feed = {"ids": ids, "speed": np.ones(1, np.float32)}
        *spectrum, f0, lengths = self._session.run(None, feed)
        f0 = f0[0]
        wave = dsp.synth(*(part[0] for part in spectrum), f0, self._random)
        starts_s = np.concatenate(([0], np.cumsum(lengths))) * DURATION_STEP_S
        loud_s = loud_moments(wave)
        phones = _join(["", *symbols, ""], starts_s, loud_s)
        begin_s = loud_s[0] - ONSET_MARGIN_S - LEAD_CODES * CODE_S
        n_codes = int(np.ceil((loud_s[-1] + tail_s - begin_s) / CODE_S))
        places = place(phones, begin_s, n_codes)
        pitch = [pitch_of(f0, begin_s + i * CODE_S, CODE_S) for i in range(n_codes)]
        codes = tuple(
            code_of(phones[at].symbol, pitch_class(pitch[i])) if at >= 0 else SILENCE
            for i, at in enumerate(places)
        )
        words = [first_code(phones, places, 1 + at) - LEAD_CODES for at in word_starts]
        frame_s = CODE_S / TIMING.mel_frames_per_code
        n_frames = n_codes * TIMING.mel_frames_per_code
        f0_frames = [pitch_of(f0, begin_s + i * frame_s, frame_s) for i in range(n_frames)]
        return Utterance(
            text,
            crop(wave, begin_s, n_codes * TIMING.samples_per_code),
            codes,
            np.array(f0_frames, np.float32),
            tuple(max(0, at) for at in words),
        )

    def _spell(self, text: str) -> tuple[str, list[int]]:
        """Return phonemes and punctuation of a text, and the index at which each word starts."""
        from hibari.g2p import normalize

        normal = normalize(text)
        g2p = self._voice.g2p
        symbols, starts, new_word = "", [], True
        for token in g2p.phonemize_tokens(g2p.tokenize(normal)):
            phonemes = "".join(s for s in token.phonemes or "" if s in self._voice.vocab)
            if new_word and any(s in PHONEMES for s in phonemes):
                starts.append(len(symbols))
                new_word = False
            symbols += phonemes + (" " if token.whitespace else "")
            new_word = new_word or bool(token.whitespace)
        if len(starts) != len(text.split()):
            raise UnspeakableTextError(f"words of {text!r} and of its pronunciation differ")
        return symbols.strip(), starts


def with_durations(graph: bytes) -> bytes:
    """Add the phoneme durations to the outputs of a serialised ONNX model."""
    model = onnx.load_model_from_string(graph)
    durations = onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.INT64, None)
    model.graph.output.append(durations)
    return model.SerializeToString()


def loud_moments(wave: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the times in s at which the level is above silence, in steps of 5 ms."""
    n_steps = len(wave) // LEVEL_STEP_SAMPLES
    steps = wave[: n_steps * LEVEL_STEP_SAMPLES].reshape(n_steps, LEVEL_STEP_SAMPLES)
    level = np.sqrt(np.square(steps, dtype=np.float64).mean(axis=1))
    loud = np.flatnonzero(level > SILENT_SHARE * level.max()).astype(np.float64)
    return loud * LEVEL_STEP_SAMPLES / TIMING.sample_rate_hz


def place(phones: list[Phone], begin_s: float, n_codes: int) -> list[int]:
    """Assign a phone to every code, and at least one code to every phone but silence.

    Returns:
        Index into `phones` of each code; -1 is silence.
    """
    spoken = [i for i, phone in enumerate(phones) if phone.symbol]
    wanted = {i: round((phones[i].start_s - begin_s) / CODE_S) for i in spoken}
    starts, free = {}, 0
    for i in spoken:
        starts[i] = free = max(free, wanted[i])
        free += 1
    limit = n_codes
    for i in reversed(spoken):
        limit = starts[i] = min(starts[i], limit - 1)
    places = [-1] * n_codes
    for i, following in pairwise([*spoken, -1]):
        stop = n_codes if following < 0 else starts[following]
        if following != i + 1:  # silence follows
            stop = min(stop, max(starts[i] + 1, round((phones[i].stop_s - begin_s) / CODE_S)))
        places[starts[i] : stop] = [i] * (stop - starts[i])
    return places


def pitch_of(f0: NDArray[np.float32], start_s: float, length_s: float) -> float:
    """Return the median F0 in Hz of a time span, 0 if most of it is unvoiced."""
    first = int(np.floor(start_s / F0_STEP_S + 0.5))
    span = f0[max(0, first) : max(0, first) + max(1, round(length_s / F0_STEP_S))]
    voiced = span[span > LOWEST_F0_HZ]
    return float(np.median(voiced)) if 2 * len(voiced) > len(span) else 0.0


def crop(wave: NDArray[np.float32], begin_s: float, n_samples: int) -> NDArray[np.float32]:
    """Return `n_samples` from `begin_s` on, zero-padded."""
    first = round(begin_s * TIMING.sample_rate_hz)
    part = np.zeros(n_samples, np.float32)
    source = wave[max(0, first) : first + n_samples]
    offset = max(0, -first)
    part[offset : offset + len(source)] = source
    return part


def _join(symbols: list[str], starts_s: NDArray[Any], loud_s: NDArray[Any]) -> list[Phone]:
    """Convert symbols to phones; stress marks join the next phone, punctuation becomes silence."""
    phones: list[Phone] = []
    begin_s = None
    for at, symbol in enumerate(symbols):
        start_s, stop_s = float(starts_s[at]), float(starts_s[at + 1])
        begin_s = start_s if begin_s is None else begin_s
        if symbol and symbol in STRESS_MARKS + " ":
            continue
        if symbol and symbol in PHONEMES:
            phones.append(Phone(symbol, begin_s, stop_s, at))
        else:
            _add_pause(phones, begin_s, stop_s, loud_s)
        begin_s = None
    return phones


def _add_pause(phones: list[Phone], start_s: float, stop_s: float, loud_s: NDArray[Any]) -> None:
    """Add a pause that begins where the previous phone becomes silent."""
    if phones and phones[-1].symbol:
        before = phones[-1]
        audible = loud_s[(loud_s >= before.start_s) & (loud_s < stop_s)]
        end_s = float(audible[-1]) if len(audible) else before.start_s
        end_s = max(end_s, before.start_s + DURATION_STEP_S)
        phones[-1] = Phone(before.symbol, before.start_s, end_s, before.place)
        start_s = end_s
    phones.append(Phone("", start_s, stop_s))


def first_code(phones: list[Phone], places: list[int], symbol: int) -> int:
    """Return the first code of a word; raises `UnspeakableTextError` if no phone of it has one."""
    for at, phone in enumerate(phones):
        if phone.symbol and phone.place >= symbol and at in places:
            return places.index(at)
    raise UnspeakableTextError("a word has no speech code")
