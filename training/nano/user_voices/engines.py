"""Speech synthesizers of user voices, with output at 16 kHz."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnxruntime

from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from training.nano.bank import INT16_PEAK, Samples

KOKORO_RATE_HZ = HIBARI_RATE_HZ = 24_000
STYLE_WIDTH = 256
MOST_PHONEMES = 500
TIMEOUT_S = 20
SILENCE = 0.02  # of the loudest window
WINDOW_SAMPLES = 160
MARGIN_WINDOWS = 3
MARGIN_SAMPLES = MARGIN_WINDOWS * WINDOW_SAMPLES  # of `trimmed`


# Speaks a text with a voice, varying speed and pitch at random: trimmed float32 samples at 16 kHz.
Engine = Callable[[str, str, Random], Samples]
FILE = "{file}"  # in a command, the WAV file to be written


def espeak(text: str, voice: str, random: Random) -> Samples:
    """eSpeak NG: rule-based, many accents and variants."""
    options = f"-v {voice} -s {random.randint(120, 190)} -p {random.randint(25, 75)}"
    return _spoken(["espeak-ng", *options.split(), "-w", FILE, text])


def flite(text: str, voice: str, random: Random) -> Samples:
    """CMU Flite: recorded and statistical voices."""
    options = f"-voice {voice} --setf duration_stretch={random.uniform(0.85, 1.3):.2f}"
    return _spoken(["flite", *options.split(), "-t", text, "-o", FILE])


class Pico:
    """SVOX Pico: two voices, at random pitches."""

    def __init__(self, folder: Path) -> None:
        """Import the package `py_nanotts` from a folder."""
        sys.path.append(str(folder))
        self._program: Any = importlib.import_module("py_nanotts").NanoTTS()

    def speak(self, text: str, voice: str, random: Random) -> Samples:
        pace, pitch = random.uniform(0.75, 1.35), random.uniform(0.6, 1.7)
        spoken = self._program.speak(text, voice=voice, speed=pace, pitch=pitch, volume=0.5)
        return trimmed(np.frombuffer(spoken, "<i2").astype(np.float32) / INT16_PEAK)


class Hibari:
    """The target voice, also used as a user voice."""

    def __init__(self) -> None:
        from hibari import Hibari as Model

        self._model: Any = Model()

    def phonemes(self, text: str) -> str:
        """Return the pronunciation of a text in Kokoro's alphabet."""
        return " ".join(self._model.phonemize(text))

    def ids(self, phonemes: str) -> list[int]:
        """Return padded phoneme ids."""
        return self._model.ids(phonemes)

    def speak(self, text: str, voice: str, random: Random) -> Samples:
        """Speak at a random speed, or for the voice "own" at normal speed and untrimmed."""
        is_own = voice == "own"
        speed = 1.0 if is_own else random.uniform(0.8, 1.25)
        spoken = self._model(text, speed=speed, seed=random.getrandbits(32))
        samples = _resampled(spoken, HIBARI_RATE_HZ)
        return samples if is_own else trimmed(samples)


@dataclass
class Kokoro:
    """Kokoro-82M: natural voices and mixtures of two.

    Results are cached in the folder `cache`, by a digest of model and inputs.
    """

    model: Path
    styles: Mapping[str, Path]
    hibari: Hibari
    cache: Path | None = None
    _session: Any = field(default=None, repr=False)
    _sum: bytes = field(default=b"", repr=False)

    def speak(self, text: str, voice: str, random: Random) -> Samples:
        ids = self.hibari.ids(self.hibari.phonemes(text))[:MOST_PHONEMES]
        names = voice.split("+")
        share = random.uniform(0.3, 0.7) if len(names) > 1 else 1.0
        style = share * self._style(names[0], len(ids)) + (1 - share) * self._style(
            names[-1], len(ids)
        )
        speed = np.asarray([random.uniform(0.8, 1.25)], np.float32)
        tokens = np.asarray([ids], np.int64)
        inputs = {"tokens": tokens, "style": style.astype(np.float32), "speed": speed}
        return trimmed(_resampled(self._computed(inputs), KOKORO_RATE_HZ))

    def _computed(self, inputs: dict[str, Any]) -> Any:
        if self.cache is None:
            return self._opened().run(None, inputs)[0]
        self._sum = self._sum or hashlib.sha256(self.model.read_bytes()).digest()
        parts = (self._sum, *(value.tobytes() for value in inputs.values()))
        name = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
        file = self.cache / f"{name}.npy"
        if not file.is_file():
            self.cache.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{os.getpid()}.npy")
            np.save(partial, self._opened().run(None, inputs)[0])
            partial.replace(file)
        return np.load(file)

    def _style(self, name: str, n_ids: int) -> Any:
        vectors = np.fromfile(self.styles[name], np.float32).reshape(-1, 1, STYLE_WIDTH)
        return vectors[min(n_ids - 2, len(vectors) - 1)]

    def _opened(self) -> Any:
        if self._session is None:
            self._session = one_thread_session(str(self.model))
        return self._session


def one_thread_session(model: str | bytes) -> Any:
    """Open an ONNX model, a file or its bytes, on one thread of the CPU and without warnings."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def trimmed(samples: Samples) -> Samples:
    """Trim silence at both ends, up to a small margin."""
    n_windows = len(samples) // WINDOW_SAMPLES
    if n_windows < 2 * MARGIN_WINDOWS:
        return samples
    windows = samples[: n_windows * WINDOW_SAMPLES].reshape(n_windows, WINDOW_SAMPLES)
    rms = np.sqrt(np.mean(windows**2, axis=1))
    loud = np.flatnonzero(rms > SILENCE * rms.max())
    first = max(0, loud[0] - MARGIN_WINDOWS) * WINDOW_SAMPLES
    last = min(n_windows, loud[-1] + 1 + MARGIN_WINDOWS) * WINDOW_SAMPLES
    return samples[first:last]


def _resampled(samples: Samples, rate_hz: int) -> Samples:
    """Resample a whole utterance in the frequency domain."""
    n = round(len(samples) * SAMPLE_RATE_HZ / rate_hz)
    spectrum = np.fft.rfft(samples)
    resized = np.zeros(n // 2 + 1, spectrum.dtype)
    shared = min(len(resized), len(spectrum))
    resized[:shared] = spectrum[:shared]
    return (np.fft.irfft(resized, n) * (n / max(1, len(samples)))).astype(np.float32)


def _spoken(command: list[str]) -> Samples:
    """Run a program that writes `FILE`."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        filled = [file.name if part == FILE else part for part in command]
        subprocess.run(filled, check=True, timeout=TIMEOUT_S, capture_output=True)
        with wave.open(file.name) as spoken:
            rate_hz = spoken.getframerate()
            frames = spoken.readframes(spoken.getnframes())
    samples = np.frombuffer(frames, "<i2").astype(np.float32) / INT16_PEAK
    return trimmed(_resampled(samples, rate_hz))


def styles_of(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.bin"))}
