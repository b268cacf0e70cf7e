"""One chunk of several speech streams: the inputs of the flow, on static memory.

What differs from chunk to chunk is a table of integers and two tensors, so a captured graph reads
the same places every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import SpeechTiming
from MiniCPMO45.kernels.stream_memory import DROPPED, ColumnCache, StreamTable
from MiniCPMO45.token2wav.config import HISTORY_FRAMES, OVERLAP_FRAMES, UPSAMPLING, Token2WavConfig
from MiniCPMO45.token2wav.vocoder_state import (
    ColumnLedger,
    Ledgers,
    SpeechStream,
    StreamMemory,
    TailLayout,
    VoiceBase,
)

TIMING = SpeechTiming()
HOP_CODES = 25  # progress of a full call: one second
WINDOW_CODES = HOP_CODES + TIMING.lookahead_codes
FEWEST_CODES = 8  # of a call that is not the last; fewer do not fill the overlap
INT16_PEAK = 32_767
INT16_SCALE = 32_768.0


@dataclass(frozen=True)
class CodeChunk:
    """Codes of one vocoder call, at most 28; the last 3 are look-ahead unless a turn ends."""

    codes: tuple[int, ...]
    is_last: bool


@dataclass
class SpeechBuffer:
    """Codes of one turn that wait for their look-ahead.

    A turn starts with three codes of silence.
    """

    waiting: list[int] = field(
        default_factory=lambda: [TIMING.silence_code] * TIMING.lookahead_codes
    )

    def push(
        self, codes: Sequence[int], *, is_last: bool, fewest: int = FEWEST_CODES
    ) -> list[CodeChunk]:
        """Add new codes, possibly none, and take out every call that can be made now, in order.

        A call that is not the last takes at least `fewest` codes, from 8 to 28; the last takes the
        rest.
        """
        self.waiting += codes
        pieces = []
        while len(self.waiting) >= fewest:
            taken = min(WINDOW_CODES, len(self.waiting))
            pieces.append(CodeChunk(tuple(self.waiting[:taken]), is_last=False))
            del self.waiting[: min(HOP_CODES, taken - TIMING.lookahead_codes)]
        if is_last and self.waiting:
            pieces.append(CodeChunk(tuple(self.waiting), is_last=True))
            self.waiting.clear()
        return pieces

    def reset(self) -> None:
        self.waiting = SpeechBuffer().waiting


def cut_whole_reply(codes: Sequence[int]) -> list[CodeChunk]:
    """Cut all codes of a chat reply into vocoder calls; no silence is put in front.

    They are windows of 28 codes, 25 apart, and the rest; the last one ends the reply.
    """
    pieces = []
    start = 0
    while len(codes) - start >= WINDOW_CODES:
        window = tuple(codes[start : start + WINDOW_CODES])
        is_final = start + WINDOW_CODES == len(codes)
        pieces.append(CodeChunk(window, is_last=is_final))
        start += HOP_CODES
        if is_final:
            return pieces
    if start < len(codes):
        pieces.append(CodeChunk(tuple(codes[start:]), is_last=True))
    return pieces


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Round samples in -1...1 (clipped) towards zero to 16 bits; any shape."""
    return (np.clip(samples, -1.0, 1.0) * INT16_PEAK).astype(np.int16)


def finish_unit(
    samples: np.ndarray, *, is_last: bool, unit_samples: int = TIMING.sample_rate_hz
) -> np.ndarray:
    """Make the audio of one unit from what the vocoder answered.

    Returns:
        float32 [n]: 16-bit steps, zeros in front up to `unit_samples`; empty stays empty.
    """
    stepped = (to_int16(samples) / INT16_SCALE).astype(np.float32)
    missing = unit_samples - len(stepped)
    if is_last or len(stepped) == 0 or missing <= 0:
        return stepped
    return np.concatenate((np.zeros(missing, np.float32), stepped))


MAX_FRAMES = 1000  # prompt, history and one usual chunk; section 7.1
LARGEST_CHUNK_FRAMES = 56  # 28 codes without look-ahead
LARGEST_VOICE_FRAMES = MAX_FRAMES - HISTORY_FRAMES - LARGEST_CHUNK_FRAMES
LARGEST_CALL_CODES = 50  # consumed by one call
COUNTS = ("n_given", "n_codes", "n_frames")  # of a stream's codes and mel frames


class VoiceTooLongError(ValueError):
    """The voice prompt leaves no room for history and a chunk."""


@dataclass(frozen=True)
class FlowSchedule:
    """The ODE's time steps and everything in the estimator that depends on them alone.

    The scales have their 1 added, so that they are the weights of a layer norm.

    Attributes:
        blocks: shifts, scales and gates per step and block [N, depth, 9, C].
        final: shift and scale of the output layer per step [N, 2, C].
    """

    deltas: tuple[float, ...]
    blocks: Tensor
    final: Tensor


@dataclass(frozen=True)
class ChunkShape:
    """What a batch is sized for.

    Attributes:
        history: mel frames the streams may remember.
        is_exact: every row has just these codes; else smaller chunks and missing rows are padded.
    """

    codes: int
    history: int
    is_exact: bool

    @property
    def frames(self) -> int:
        return UPSAMPLING * self.codes


@dataclass(frozen=True)
class ChunkInput:
    """One stream's share of a chunk; `n_codes` of the codes are consumed."""

    codes: Sequence[int]
    n_codes: int
    base: VoiceBase
    memory: StreamMemory
    ledgers: Ledgers
    has_started: bool = False

    @classmethod
    def of(cls, stream: SpeechStream, codes: Sequence[int], n_codes: int) -> ChunkInput:
        return cls(codes, n_codes, stream.base, stream.memory, stream.ledgers, stream.has_started)


class ChunkBatch:
    """The inputs of a chunk of S streams.

    `start` [S, T, bins] are the starting points of the flow, `speaker` [S, bins] its condition, and
    `prompt` [S, T, bins] the mel given as condition; None for speech.
    """

    def __init__(
        self,
        config: Token2WavConfig,
        shape: ChunkShape,
        n_rows: int,
        schedule: FlowSchedule,
        dtype: torch.dtype,
    ) -> None:
        """Allocate the inputs where the schedule is; keys and values are of `dtype`."""
        self.shape, self.schedule = shape, schedule
        device, encoder = schedule.final.device, config.flow.encoder
        n_given = shape.codes + encoder.pre_lookahead_len
        sizes = {"tails": 1, "n_given": 1, "n_codes": 1, "n_frames": 1, "has_started": 1}
        sizes |= {"codes": n_given}
        sizes |= ColumnCache.sizes("estimator", shape.frames)
        sizes |= ColumnCache.sizes("token rate", shape.codes, shape.history // UPSAMPLING)
        sizes |= ColumnCache.sizes("mel rate", shape.frames, shape.history)
        self.table = table = StreamTable(n_rows, sizes, device)
        heads = encoder.attention_heads
        n_heads = config.flow.estimator.num_heads
        self.estimator = ColumnCache(table, "estimator", "n_frames", n_heads)
        self.token_rate = ColumnCache(table, "token rate", "n_codes", heads)
        self.mel_rate = ColumnCache(table, "mel rate", "n_frames", heads)
        bins, n_steps = config.flow.output_size, len(schedule.deltas)
        self.start = torch.zeros(n_rows, shape.frames, bins, device=device)
        self.speaker = torch.zeros(n_rows, bins, device=device)
        self.prompt: Tensor | None = None
        self.layout = TailLayout.of(config, n_steps)
        self._unused = StreamMemory.allocate(config, n_steps, 0, device=device, dtype=dtype)

    @property
    def n_codes(self) -> Tensor | None:
        """Codes of each stream that count, int64 [S, 1]; None if all do."""
        return None if self.shape.is_exact else self.table["n_codes"]

    @property
    def n_frames(self) -> Tensor | None:
        """Mel frames of each stream that count, int64 [S, 1]; None if all do."""
        return None if self.shape.is_exact else self.table["n_frames"]

    def load(self, inputs: Sequence[ChunkInput]) -> list[Ledgers]:
        """Write a chunk's inputs, at most one per row.

        Returns:
            The ledgers of each stream after the chunk; the streams are not changed.

        Raises:
            ValueError: a stream's flow noise is too short.
        """
        n = len(inputs)
        if inputs:
            torch.stack([self._noise_of(each) for each in inputs], out=self.start[:n])
            torch.cat([each.base.speaker for each in inputs], out=self.speaker[:n])
        host = self.table.on_host()
        counts = [(len(e.codes), e.n_codes, UPSAMPLING * e.n_codes) for e in inputs]
        for name, values in zip(COUNTS, zip(*counts, strict=True), strict=False):
            host[name][:n, 0] = values
        host["has_started"][:n, 0] = [each.has_started for each in inputs]
        host["n_given"][n:] = host["has_started"][n:] = 0
        host["n_codes"][n:], host["n_frames"][n:] = self.shape.codes, self.shape.frames
        for row, each in enumerate(inputs):
            host["codes"][row, : len(each.codes)] = each.codes
        caches = (self.estimator, self.token_rate, self.mel_rate)
        after = [self._place(host, index, cache, inputs) for index, cache in enumerate(caches)]
        unused = [self._unused] * (len(self.table.rows) - n)
        memories = [each.memory for each in inputs] + unused
        addresses = {"tails": [memory.tails for memory in memories]}
        for index, cache in enumerate(caches):
            addresses[cache.column("address")] = [memory.caches[index] for memory in memories]
        self.table.upload(addresses)
        return list(zip(*after, strict=True))

    def release(self) -> None:
        """Drop the streams of the last `load`, which a run needs before it."""
        self.table.release()

    def _noise_of(self, each: ChunkInput) -> Tensor:
        offset, needed = each.ledgers[0].length, UPSAMPLING * each.n_codes
        part = each.base.noise[0, :, offset : offset + self.shape.frames].T
        if part.shape[0] < needed:
            raise ValueError(f"the flow noise ends at frame {offset + part.shape[0]}")
        missing = self.shape.frames - part.shape[0]
        return F.pad(part, (0, 0, 0, missing)) if missing else part

    def _place(
        self,
        host: dict[str, NDArray[np.int64]],
        index: int,
        cache: ColumnCache,
        inputs: Sequence[ChunkInput],
    ) -> list[ColumnLedger]:
        """Fill in one cache of every stream; returns its ledgers after the chunk."""
        n = len(inputs)
        ledgers = [each.ledgers[index] for each in inputs]
        capacity, length = host[cache.column("capacity")], host[cache.column("length")]
        capacity[:n, 0] = [each.memory.caches[index].shape[3] for each in inputs]
        length[:n, 0] = [ledger.length for ledger in ledgers]
        capacity[n:], length[n:] = 0, 0
        places, ages = host[cache.column("targets")], host[cache.column("ages")]
        places[:] = DROPPED
        after = []
        for row, (each, ledger) in enumerate(zip(inputs, ledgers, strict=True)):
            n_new = each.n_codes * (1 if cache is self.token_rate else UPSAMPLING)
            places[row, :n_new], grown = ledger.append(n_new)
            if cache is not self.estimator:
                ages[row, : ledger.length] = ledger.ages()
            after.append(grown)
        return after


def check_voice_length(frames: int) -> None:
    """Refuse a voice prompt that is too long to stream with.

    Raises:
        VoiceTooLongError: P + 100 + 56 frames are more than 1000.
    """
    most = LARGEST_VOICE_FRAMES
    if frames > most:
        per_second = TIMING.codes_per_second * TIMING.mel_frames_per_code
        raise VoiceTooLongError(
            f"the reference voice lasts {frames / per_second:.1f} s ({frames} mel frames); at "
            f"most {most / per_second:.1f} s ({most} frames) can be used, 3 to 10 s are best"
        )


def check_codes(n_codes: int, is_last: bool, has_started: bool) -> None:
    """Refuse a call, its look-ahead included, that no stream can answer.

    Raises:
        ValueError: too few or too many codes.
    """
    consumed = n_codes if is_last else n_codes - TIMING.lookahead_codes
    if consumed <= 0:
        raise ValueError(f"{n_codes} codes are too few for a chunk")
    if consumed > LARGEST_CALL_CODES:
        raise ValueError(f"{n_codes} codes are too many for one chunk")
    if not is_last and not has_started and UPSAMPLING * consumed < OVERLAP_FRAMES:
        raise ValueError(f"{n_codes} codes are too few for the first chunk of a turn")
