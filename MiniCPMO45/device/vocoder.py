"""The vocoder of the device engine: streams of any age and voice answered in one batch.

A drop-in for `Token2Wav.new_state` and `Token2Wav.stream_many`, with streams of its own. Never
prepares a voice: that is done once, by `Token2Wav.set_up`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SpeechTiming
from MiniCPMO45.device.graphs import Piece
from MiniCPMO45.device.vocoder_chunk import ChunkProgram, PackedVocoder
from MiniCPMO45.device.vocoder_plan import ChunkInput, ChunkShape
from MiniCPMO45.device.vocoder_streams import Ledgers, VocoderStream
from MiniCPMO45.token2wav.chunking import HOP_CODES, WINDOW_CODES
from MiniCPMO45.token2wav.hift import OVERLAP_FRAMES
from MiniCPMO45.token2wav.vocoder import (
    LARGEST_CHUNK_FRAMES,
    MAX_FRAMES,
    Token2Wav,
    check_codes,
)
from MiniCPMO45.token2wav.vocoder_state import VoiceBase

TIMING = SpeechTiming()
FIRST_PART_CODES = 12  # an early part of a second
LARGEST_CALL_CODES = 50  # what `check_codes` lets through
CHUNK_CODES = (FIRST_PART_CODES, HOP_CODES, WINDOW_CODES, LARGEST_CALL_CODES)
HISTORY = MAX_FRAMES - LARGEST_CHUNK_FRAMES  # mel frames: the longest voice and its history
ROWS = (1, 2, 4, 8, 16, 32, 64)
USUAL_CODES = (FIRST_PART_CODES, HOP_CODES, WINDOW_CODES)


@dataclass(frozen=True)
class DeviceCall:
    """The next codes of one stream.

    Attributes:
        state: the stream; updated when the call succeeds.
        codes: speech codes, the last 3 of them look-ahead unless `is_last`.
        is_last: nothing follows in this turn.
    """

    state: VocoderStream
    codes: Sequence[int]
    is_last: bool = False

    @property
    def n_codes(self) -> int:
        """Codes consumed."""
        return len(self.codes) - (0 if self.is_last else TIMING.lookahead_codes)


ProgramKey = tuple[int, int, ChunkShape]  # ODE steps, streams, codes and history


class DeviceVocoder:
    """Flow and HiFT on static shapes."""

    def __init__(self, vocoder: Token2Wav, *, dtype: torch.dtype | None = None) -> None:
        """Pack the weights.

        Args:
            vocoder: the checkpoint's, where it shall run.
            dtype: of the flow's products, keys and values; None is float16 on a GPU, whose
                mantissa is that of TF32, and the weights' own elsewhere.
        """
        if dtype is None:
            dtype = torch.float16 if vocoder.device.type == "cuda" else vocoder.flow.dtype
        self.vocoder, self.dtype = vocoder, dtype
        longest = ChunkShape(LARGEST_CALL_CODES, HISTORY)
        with torch.no_grad():
            self._weights = PackedVocoder(vocoder, longest, dtype)
        self._pieces: dict[ProgramKey, tuple[ChunkProgram, Piece[tuple[Tensor, Tensor]]]] = {}

    @torch.no_grad()
    def new_state(self, base: VoiceBase, generator: torch.Generator | None = None) -> VocoderStream:
        """Allocate a stream that starts from `base`.

        Args:
            base: result of `Token2Wav.set_up`.
            generator: source of the excitation's noise; None leaves the noise out.
        """
        return VocoderStream.open(base, self._weights.config, dtype=self.dtype, generator=generator)

    @torch.no_grad()
    def stream_many(self, calls: Sequence[DeviceCall]) -> list[Tensor]:
        """Answer several streams in as few batches as their ODE steps allow.

        Args:
            calls: one per stream; a state may occur once.

        Returns:
            Samples per call at 24 kHz, float32 [n] beside the weights: 960 per code consumed; at
            the end 3840 more if anything came before (the first call of a turn starts with 3840
            zeros instead).

        Raises:
            ValueError: a call is wrong; no state has changed.
        """
        if len({id(call.state) for call in calls}) != len(calls):
            raise ValueError("a stream may be answered only once at a time")
        by_steps: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            check_codes(len(call.codes), call.is_last, call.state.has_started)
            by_steps.setdefault(call.state.base.n_steps, []).append(index)
        answers: dict[int, Tensor] = {}
        for indices in by_steps.values():
            for start in range(0, len(indices), ROWS[-1]):
                batch = indices[start : start + ROWS[-1]]
                answers.update(zip(batch, self._answer([calls[i] for i in batch]), strict=True))
        return [answers[index] for index in range(len(calls))]

    @torch.no_grad()
    def pieces(self, rows: Sequence[int] = ROWS) -> list[Piece[tuple[Tensor, Tensor]]]:
        """Return the usual chunks, to be captured before the first call; others are not captured.

        Args:
            rows: numbers of streams.
        """
        n_steps = self.vocoder.options.n_steps
        keys = [
            (n_steps, n_rows, ChunkShape(n_codes, HISTORY))
            for n_rows in sorted(rows, reverse=True)
            for n_codes in sorted(USUAL_CODES, reverse=True)
        ]
        return [self._piece(key)[1] for key in keys]

    def _answer(self, calls: Sequence[DeviceCall]) -> list[Tensor]:
        states = [call.state for call in calls]
        shape = ChunkShape(_smallest(CHUNK_CODES, max(call.n_codes for call in calls)), HISTORY)
        key = (states[0].base.n_steps, _smallest(ROWS, len(calls)), shape)
        program, piece = self._piece(key)
        try:
            after = program.load([ChunkInput(c.state, c.codes, c.n_codes) for c in calls])
            _, samples = piece.run()
        finally:
            program.release()
        kept = samples[: len(calls)].clone()  # the next replay writes over the original
        return [self._finish(*each) for each in zip(calls, after, kept.unbind(0), strict=True)]

    def _finish(self, call: DeviceCall, after: Ledgers, samples: Tensor) -> Tensor:
        """Adopt a chunk in its stream and cut out what it says."""
        state, per_frame = call.state, self._weights.config.hift.samples_per_frame
        held = OVERLAP_FRAMES * per_frame
        had_started, n_new = state.has_started, 2 * call.n_codes * per_frame
        state.ledgers = after
        state.chunks += 1
        total = n_new + (held if had_started else 0)
        state.has_started = total >= held
        if call.is_last:
            return samples[held : held + total]
        return samples[held : held + n_new] if had_started else samples[:n_new]

    def _piece(self, key: ProgramKey) -> tuple[ChunkProgram, Piece[tuple[Tensor, Tensor]]]:
        if key not in self._pieces:
            n_steps, n_rows, shape = key
            with torch.inference_mode(False), torch.no_grad():  # it outlives the call
                schedule = self.vocoder.flow.make_schedule(n_steps)
                program = ChunkProgram(self._weights, schedule, n_rows, shape)
            name = f"vocoder, {n_rows} x {shape.codes} codes"
            self._pieces[key] = program, Piece(name, program.run)
        return self._pieces[key]


def _smallest(sizes: Sequence[int], needed: int) -> int:
    """Smallest of ascending sizes that is enough."""
    return next(size for size in sizes if size >= needed)
