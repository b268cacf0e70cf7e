"""The CAM++ speaker encoder, an ONNX graph run on the CPU.

The only file that knows onnxruntime on the speech side; must never compute features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

SPEAKER_SIZE = 192


class SpeakerEncoder:
    """Runs `campplus.onnx`; the graph is read when it is first needed.

    Attributes:
        path: the graph's file.
    """

    def __init__(self, path: Path) -> None:
        """Remember where the graph is.

        Args:
            path: the `.onnx` file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if not path.is_file():
            raise FileNotFoundError(f"the speaker encoder {path} is missing")
        self.path = path
        self._session: onnxruntime.InferenceSession | None = None

    def embed(self, filter_bank: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the embedding of one speaker.

        Args:
            filter_bank: float32 [T, 80], see `features.speaker_filter_bank`.

        Returns:
            float32 [1, 192], not normalised.

        Raises:
            ValueError: the graph gives another shape.
        """
        if self._session is None:
            self._session = self._open()
        # The published graph calls its input "input"; a re-exported one may call it otherwise.
        name = self._session.get_inputs()[0].name
        embedding = self._session.run(None, {name: filter_bank[None]})[0]
        if embedding.shape != (1, SPEAKER_SIZE):
            raise ValueError(
                f"{self.path} gives {embedding.shape}, a speaker is (1, {SPEAKER_SIZE})"
            )
        return embedding

    def close(self) -> None:
        """Free the graph; the next `embed` reads it again."""
        self._session = None

    def _open(self) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a short run once per voice, beside a busy model thread
        return onnxruntime.InferenceSession(
            str(self.path), sess_options=options, providers=["CPUExecutionProvider"]
        )
