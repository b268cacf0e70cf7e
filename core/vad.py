"""Silero VAD (version 6) over ONNX, its recurrent state passed in and out, and speech segments.

The model file is the one inside the `silero-vad` package; the package's code is never imported.
Nothing here may run on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as onnx

from core.audio import NO_SAMPLES, FloatArray
from core.endpointing import (
    Endpointer,
    EndpointOptions,
    SpeechDiscarded,
    SpeechEnded,
    SpeechEvent,
    SpeechStarted,
)
from core.errors import ModelError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from settings.fields import install_command

MODEL_PACKAGE: Final = "silero_vad"
MODEL_FILE: Final = "data/silero_vad.onnx"
MODEL_INPUTS: Final = frozenset({"input", "state", "sr"})
MODEL_WINDOW_SAMPLES: Final = 512  # what the model judges at once, at 16 kHz
CONTEXT_SAMPLES: Final = 64  # the end of the window before, put in front of each window
STATE_SHAPE: Final = (2, 1, 128)
LOAD_ERRORS: Final = (onnx.Fail, onnx.InvalidArgument, onnx.InvalidGraph, onnx.InvalidProtobuf)
ERRORS_ONLY: Final = 3  # onnxruntime's log severity

LIVE_OPTIONS: Final = EndpointOptions()


@dataclass(frozen=True)
class VadState:
    recurrent: FloatArray  # [2, 1, 128]
    context: FloatArray  # [64]


@dataclass(frozen=True)
class SpeechSegment:
    samples: FloatArray  # [T], 16 kHz, padding included
    start_samples: int
    speech_samples: int  # without padding


VadEvent = SpeechStarted | SpeechSegment | SpeechDiscarded


class SileroVad:
    """The model: weights only, to be shared by any number of streams."""

    def __init__(self, model_path: Path | None = None) -> None:
        """Load the ONNX file, by default that of the package, or raise `ModelError`."""
        path = model_path or _packaged_model()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a window is too small to share
        options.inter_op_num_threads = 1
        options.log_severity_level = ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except (OSError, *LOAD_ERRORS) as error:
            raise ModelError(f"{path.name} cannot be loaded: {error}") from error
        if {given.name for given in self._session.get_inputs()} != MODEL_INPUTS:
            raise ModelError(f"{path.name} is not a Silero VAD model of version 5 or 6.")

    @staticmethod
    def initial_state() -> VadState:
        return VadState(np.zeros(STATE_SHAPE, np.float32), np.zeros(CONTEXT_SAMPLES, np.float32))

    def probabilities(self, samples: FloatArray, state: VadState) -> tuple[FloatArray, VadState]:
        """Return the probability of speech [N] of consecutive windows, and the last state.

        `samples` are [N · 512], 16 kHz mono, -1..1; the state before them is not changed.
        """
        assert len(samples) % MODEL_WINDOW_SAMPLES == 0
        windows = samples.reshape(-1, MODEL_WINDOW_SAMPLES)  # [N, 512]
        rate = np.array(INPUT_SAMPLE_RATE_HZ, np.int64)
        recurrent, context = state.recurrent, state.context
        found = np.empty(len(windows), np.float32)
        for index, window in enumerate(windows):
            padded = np.concatenate([context, window])[None]  # [1, 576]
            inputs = {"input": padded, "state": recurrent, "sr": rate}
            probability, recurrent = self._session.run(None, inputs)
            found[index] = probability.item()
            context = window[-CONTEXT_SAMPLES:]
        return found, VadState(recurrent, context.copy())


class StreamingVAD:
    """Finds the speech in one live stream."""

    def __init__(
        self, options: EndpointOptions = LIVE_OPTIONS, detector: SileroVad | None = None
    ) -> None:
        """Start a stream; the window of `options` is a multiple of 512 samples."""
        if options.window_samples % MODEL_WINDOW_SAMPLES:
            raise ValueError(f"window_samples must be a multiple of {MODEL_WINDOW_SAMPLES}")
        self._options = options
        self._detector = detector or SileroVad()
        self.reset()

    def reset(self) -> None:
        self._state = self._detector.initial_state()
        self._endpointer = Endpointer(self._options)
        self._kept = NO_SAMPLES  # what a segment may still need, and what is unjudged
        self._kept_from_samples = 0

    @property
    def speech_samples(self) -> int:
        """How long the speech that has started is so far, without silence behind it."""
        return self._endpointer.speech_samples

    def process(self, chunk: FloatArray) -> list[VadEvent]:
        """Return what happened in [T], 16 kHz mono, of any length, oldest first.

        What does not fill a window waits for the next call.
        """
        self._kept = np.concatenate([self._kept, chunk])
        clock = self._endpointer.clock_samples
        unjudged = self._kept[clock - self._kept_from_samples :]
        whole = len(unjudged) - len(unjudged) % self._options.window_samples
        found, self._state = self._detector.probabilities(unjudged[:whole], self._state)
        # A documented window takes the highest probability of the model's windows in it.
        per_window = self._options.window_samples // MODEL_WINDOW_SAMPLES
        largest = found.reshape(-1, per_window).max(axis=1)  # [N · per_window] → [N]
        events = self._with_sound(self._endpointer.feed(largest.tolist()))
        unneeded = self._endpointer.needed_from_samples - self._kept_from_samples
        if unneeded > 0:
            self._kept = self._kept[unneeded:].copy()
            self._kept_from_samples += unneeded
        return events

    def flush(self) -> list[SpeechSegment]:
        """End the stream: return what unfinished speech becomes; a new stream begins."""
        end = self._kept_from_samples + len(self._kept)
        missing = -(end - self._endpointer.clock_samples) % self._options.window_samples
        events = self.process(np.zeros(missing, np.float32))
        events += self._with_sound(self._endpointer.flush())
        found = []
        for event in events:
            if isinstance(event, SpeechSegment):
                real = end - event.start_samples  # without the zeros behind the stream
                sound, speech = event.samples[:real], min(event.speech_samples, real)
                found.append(replace(event, samples=sound, speech_samples=speech))
        self.reset()
        return found

    def _with_sound(self, events: Sequence[SpeechEvent]) -> list[VadEvent]:
        return [self._cut(event) if isinstance(event, SpeechEnded) else event for event in events]

    def _cut(self, event: SpeechEnded) -> SpeechSegment:
        first = event.start_samples - self._kept_from_samples
        last = event.stop_samples - self._kept_from_samples
        sound = self._kept[first:last].copy()
        return SpeechSegment(sound, event.start_samples, event.speech_samples)


def _packaged_model() -> Path:
    spec = find_spec(MODEL_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / MODEL_FILE
        if path.is_file():
            return path
    raise ModelError(f"The voice activity detector is not installed: {install_command('worker')}")
