"""State of a stream of speech between chunks, and the inputs of a batch of chunks.

The inputs are a table of integers and two tensors in static memory, as a captured graph requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.kernels.stream_memory import DROPPED, StreamCache, StreamTable
from MiniCPMO45.token2wav.config import (
    CONV_KERNEL,
    GUIDANCE_ROWS,
    HISTORY_FRAMES,
    LOOKAHEAD_TAIL,
    OVERLAP_FRAMES,
    UPSAMPLE_TAIL,
    UPSAMPLING,
    Token2WavConfig,
)


@dataclass(frozen=True)
class VoicePrompt:
    """One voice, ready for `Token2Wav.set_up`.

    Raises:
        ValueError: the shapes do not belong together.

    Source: docs/specification/model.md#7.1.
    """

    codes: Tensor  # speech codes of the recording, int64 [1, P]
    speaker: Tensor  # speaker vector before normalisation, float [1, 192]
    mel: Tensor  # 80-bin log mel at 24 kHz, hop 480, float [1, 2P, 80]

    def __post_init__(self) -> None:
        if self.codes.dim() != 2 or self.codes.shape[0] != 1 or self.codes.shape[1] == 0:
            raise ValueError(f"voice codes must be [1, P] with P > 0, got {list(self.codes.shape)}")
        if self.speaker.dim() != 2 or self.speaker.shape[0] != 1:
            raise ValueError(f"speaker vector must be [1, D], got {list(self.speaker.shape)}")
        frames = self.codes.shape[1] * UPSAMPLING
        if self.mel.dim() != 3 or tuple(self.mel.shape[:2]) != (1, frames):
            raise ValueError(f"prompt mel must be [1, {frames}, bins], got {list(self.mel.shape)}")

    @property
    def frames(self) -> int:
        return self.mel.shape[1]

    def to(self, device: torch.device | str) -> VoicePrompt:
        return VoicePrompt(self.codes.to(device), self.speaker.to(device), self.mel.to(device))


CONVOLUTIONS = 2  # causal convolutions in a block of the estimator

KNOWN_ORDERS = 4096  # a running turn repeats a few

Slots = NDArray[np.int32]


@dataclass(frozen=True)
class SlotRing:
    """Occupied slots of a cache in the order of its eviction rule.

    After every chunk slots 0 ... length - 1 are occupied.

    Source: docs/specification/model.md#7.2 and #7.3.
    """

    first: int  # slots retained from the front of the order
    last: int  # slots retained from its end
    newest_first: bool  # a new chunk goes to the front, as in the estimator; else to the end
    order: bytes = b""  # the occupied slots, 32-bit integers; bytes, for fast hashing

    @property
    def slots(self) -> Slots:
        return np.frombuffer(self.order, np.int32)

    @property
    def length(self) -> int:
        return len(self.order) // np.dtype(np.int32).itemsize

    @property
    def capacity(self) -> int:
        return self.first + self.last

    def filled(self, slots: Sequence[int]) -> Self:
        """Return a ring of the same rule with these slots, 0 ... n - 1 in some order."""
        return replace(self, order=np.array(slots, np.int32).tobytes())

    @lru_cache(maxsize=KNOWN_ORDERS)  # noqa: B019  # a ring is a small value
    def append(self, n_new: int) -> tuple[Slots, SlotRing]:
        """Place a chunk.

        Returns:
            Slot of each new entry, `DROPPED` if it is not retained; and the ring afterwards.
        """
        new = np.arange(-1, -1 - n_new, -1, dtype=np.int32)  # slots are assigned below
        parts = (new, self.slots) if self.newest_first else (self.slots, new)
        order = np.concatenate(parts)
        if len(order) > self.capacity:
            order = np.concatenate((order[: self.first], order[len(order) - self.last :]))
        is_new = order < 0
        is_free = np.ones(len(order), bool)
        is_free[order[~is_new]] = False
        places = np.flatnonzero(is_free).astype(np.int32)
        targets = np.full(n_new, DROPPED, np.int32)
        targets[-1 - order[is_new]] = places
        order[is_new] = places
        return targets, replace(self, order=order.tobytes())

    @lru_cache(maxsize=KNOWN_ORDERS)  # noqa: B019  # a ring is a small value
    def ages(self) -> Slots:
        """Distance of each slot's entry to the next new one [length], at least 1; read only."""
        ages = np.empty_like(self.slots)
        ages[self.slots] = np.arange(self.length, 0, -1)
        return ages


SlotRings = tuple[SlotRing, ...]  # estimator, token rate, mel rate


@dataclass(frozen=True)
class TailLayout:
    """Layout of a stream's flat tails, its state of fixed size."""

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, config: Token2WavConfig, n_steps: int) -> TailLayout:
        estimator, width = config.flow.estimator, config.flow.encoder.output_size
        held = OVERLAP_FRAMES * config.hift.samples_per_frame
        blocks = (n_steps, estimator.depth, CONVOLUTIONS, GUIDANCE_ROWS)
        return cls(
            {
                "convolution": (*blocks, CONV_KERNEL - 1, estimator.hidden_size),
                "lookahead": (LOOKAHEAD_TAIL, width),
                "upsample": (UPSAMPLE_TAIL, width),
                "mel": (OVERLAP_FRAMES, config.hift.in_channels),
                "source": (held,),
                "speech": (held,),
            }
        )

    @property
    def size(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())

    def split(self, tails: Tensor) -> dict[str, Tensor]:
        """Return views of tails [..., size] as [..., *shape] by name."""
        sizes = [prod(shape) for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), tails.split(sizes, dim=-1), strict=True)
        return {name: part.unflatten(-1, shape) for (name, shape), part in parts}


@dataclass(frozen=True)
class StreamMemory:
    """State of one stream; updated in place."""

    # Keys and values, in the order of a stream's rings: of the estimator [steps * depth, 2, heads,
    # slots, 2 * head_dim], and of the encoder's layers at 25/s [layers, 1, heads, slots / 2, 2 *
    # head_dim] and at 50/s [layers, 1, heads, slots, 2 * head_dim].
    caches: tuple[Tensor, ...]
    tails: Tensor

    @classmethod
    def allocate(
        cls,
        config: Token2WavConfig,
        n_steps: int,
        slots: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> StreamMemory:
        """Allocate caches of `slots` mel frames; 0 for a row without a stream."""
        encoder, estimator = config.flow.encoder, config.flow.estimator
        steps, width = n_steps * estimator.depth, 2 * estimator.head_dim
        heads, width_of_encoder = encoder.attention_heads, 2 * encoder.head_dim
        shapes = (
            (steps, GUIDANCE_ROWS, estimator.num_heads, slots, width),
            (encoder.num_blocks, 1, heads, slots // UPSAMPLING, width_of_encoder),
            (encoder.num_up_blocks, 1, heads, slots, width_of_encoder),
        )
        caches = tuple(torch.empty(shape, device=device, dtype=dtype) for shape in shapes)
        return cls(caches, torch.zeros(TailLayout.of(config, n_steps).size, device=device))

    def load(self, other: StreamMemory) -> None:
        """Copy the state of another with at most as many slots."""
        for mine, theirs in zip(self.caches, other.caches, strict=True):
            mine[:, :, :, : theirs.shape[3]] = theirs
        self.tails.copy_(other.tails)


def rings_for(prompt_frames: int, history_frames: int) -> SlotRings:
    """Rings of a new stream, which retain the prompt's frames and the newest `history_frames`."""
    of_codes = prompt_frames // UPSAMPLING, history_frames // UPSAMPLING
    return (
        SlotRing(prompt_frames, history_frames, newest_first=True),
        SlotRing(*of_codes, newest_first=False),
        SlotRing(prompt_frames, history_frames, newest_first=False),
    )


@dataclass(frozen=True)
class VoiceBase:
    """State after a voice prompt, from which every turn of every stream starts."""

    frames: int
    speaker: Tensor  # the estimator's speaker condition [1, bins]
    noise: Tensor  # starting noise of the flow [1, bins, N]
    memory: StreamMemory  # the prompt's state, exactly P slots in order

    @cached_property
    def rings(self) -> SlotRings:
        """Rings at the start of a turn, over the prompt's slots."""
        rings = rings_for(self.frames, HISTORY_FRAMES)
        return tuple(ring.filled(range(ring.first)) for ring in rings)

    @cached_property
    def padded_noise(self) -> Tensor:
        """The noise by frame, [N + frames of the largest call, bins], zero after the end."""
        return F.pad(self.noise[0].T, (0, 0, 0, UPSAMPLING * LARGEST_CALL_CODES))


@dataclass
class SpeechStream:
    """One stream of speech."""

    base: VoiceBase
    memory: StreamMemory
    rings: SlotRings
    has_started: bool = False  # whether a turn is running, whose last samples are to be cross-faded
    # Source of the excitation's noise; None means no noise.
    generator: torch.Generator | None = field(default=None, repr=False)
    chunks: int = 0  # number of calls completed

    @property
    def noise_offset(self) -> int:
        """First mel frame of the next chunk's slice of the flow noise."""
        return self.rings[0].length

    def reset(self) -> None:
        """Start a new turn with the same voice; the generator is not reset."""
        caches = zip(self.base.rings, self.memory.caches, self.base.memory.caches, strict=True)
        for ring, mine, theirs in caches:
            if ring.newest_first:  # the others retain the prompt
                mine[:, :, :, : theirs.shape[3]] = theirs
        self.memory.tails.copy_(self.base.memory.tails)
        self.rings, self.has_started = self.base.rings, False


@dataclass(frozen=True, eq=False)
class Vocode:
    """Request to convert the next codes of a stream to waveform, float32 [samples] at 24 kHz.

    The stream changes only on success.
    """

    state: SpeechStream
    codes: Sequence[int]  # speech codes, the last 3 of them look-ahead unless `is_last`
    is_last: bool = False  # whether the turn ends here

    @property
    def n_codes(self) -> int:
        return len(self.codes) - (0 if self.is_last else TIMING.lookahead_codes)


MAX_FRAMES = 1000  # prompt, history and a usual chunk; section 7.1
LARGEST_CHUNK_FRAMES = 56  # 28 codes without look-ahead
LARGEST_VOICE_FRAMES = MAX_FRAMES - HISTORY_FRAMES - LARGEST_CHUNK_FRAMES
LARGEST_CALL_CODES = 50  # consumed by one call


class VoiceTooLongError(ValueError):
    """The voice prompt leaves too few frames for history and a chunk."""


def check_voice_length(frames: int) -> None:
    most = LARGEST_VOICE_FRAMES
    if frames > most:
        per_second = TIMING.codes_per_second * TIMING.mel_frames_per_code
        raise VoiceTooLongError(
            f"the reference voice lasts {frames / per_second:.1f} s ({frames} mel frames); at "
            f"most {most / per_second:.1f} s ({most} frames) can be used, 3 to 10 s are best"
        )


@dataclass(frozen=True)
class FlowSchedule:
    """The ODE's time steps and the estimator's tables that depend on them alone.

    The scales include the added 1, so that they are the weights of a layer norm.
    """

    deltas: tuple[float, ...]
    blocks: Tensor  # shifts, scales and gates per step and block [N, depth, 9, C]
    final: Tensor  # shift and scale of the output layer per step [N, 2, C]


@dataclass(frozen=True)
class ChunkShape:
    """Size of a batch."""

    rows: int  # most streams; missing rows are padded
    codes: int  # most codes of a chunk, without look-ahead; smaller chunks are padded
    history: int  # most mel frames in a stream's caches
    has_overlap: bool = True  # whether streams may have started

    @property
    def frames(self) -> int:
        return UPSAMPLING * self.codes


class ChunkBatch:
    """Inputs of a chunk of S streams.

    `start` [S, T, bins] are the starting points of the flow, `speaker` [S, bins] its condition, and
    `prompt` [S, T, bins] the mel given as condition; None for speech.
    """

    def __init__(
        self, config: Token2WavConfig, shape: ChunkShape, schedule: FlowSchedule, dtype: torch.dtype
    ) -> None:
        """Allocate the inputs on the schedule's device; keys and values are of `dtype`."""
        self.shape, self.schedule = shape, schedule
        device, encoder = schedule.final.device, config.flow.encoder
        n_given = shape.codes + encoder.pre_lookahead_len
        fields = ("tails", "n_given", "n_codes", "n_frames", "has_started")
        sizes = {**dict.fromkeys(fields, 1), "codes": n_given}
        sizes |= StreamCache.sizes("estimator", shape.frames)
        sizes |= StreamCache.sizes("token rate", shape.codes, shape.history // UPSAMPLING)
        sizes |= StreamCache.sizes("mel rate", shape.frames, shape.history)
        self.table = table = StreamTable(shape.rows, sizes, device)
        heads = encoder.attention_heads
        estimator_heads = config.flow.estimator.num_heads
        self.estimator = StreamCache(table, "estimator", "n_frames", estimator_heads)
        self.token_rate = StreamCache(table, "token rate", "n_codes", heads)
        self.mel_rate = StreamCache(table, "mel rate", "n_frames", heads)
        bins, n_steps = config.flow.output_size, len(schedule.deltas)
        self.start = torch.zeros(shape.rows, shape.frames, bins, device=device)
        self.speaker = torch.zeros(shape.rows, bins, device=device)
        self.prompt: Tensor | None = None
        self.layout = TailLayout.of(config, n_steps)
        self._unused = StreamMemory.allocate(config, n_steps, 0, device=device, dtype=dtype)

    def load(self, calls: Sequence[Vocode]) -> list[SlotRings]:
        """Write the inputs of at most one call per row.

        Returns:
            Each stream's rings after the chunk; the streams are unchanged.

        Raises:
            ValueError: a stream's flow noise is too short.
        """
        n = len(calls)
        if calls:
            torch.stack([self._noise_of(each) for each in calls], out=self.start[:n])
            torch.cat([each.state.base.speaker for each in calls], out=self.speaker[:n])
        host = self.table.on_host()
        host["n_given"][:n, 0] = [len(each.codes) for each in calls]
        host["n_codes"][:n, 0] = [each.n_codes for each in calls]
        host["n_frames"][:n, 0] = [UPSAMPLING * each.n_codes for each in calls]
        host["has_started"][:n, 0] = [each.state.has_started for each in calls]
        host["n_given"][n:] = host["has_started"][n:] = 0
        host["n_codes"][n:], host["n_frames"][n:] = self.shape.codes, self.shape.frames
        for row, each in enumerate(calls):
            host["codes"][row, : len(each.codes)] = each.codes
        caches = (self.estimator, self.token_rate, self.mel_rate)
        after = [self._place(host, index, cache, calls) for index, cache in enumerate(caches)]
        unused = [self._unused] * (self.shape.rows - n)
        memories = [each.state.memory for each in calls] + unused
        addresses = {"tails": [memory.tails for memory in memories]}
        for index, cache in enumerate(caches):
            addresses[cache.field("address")] = [memory.caches[index] for memory in memories]
        self.table.upload(addresses)
        return list(zip(*after, strict=True))

    def _noise_of(self, call: Vocode) -> Tensor:
        base, offset = call.state.base, call.state.noise_offset
        n_frames = base.noise.shape[2]
        if n_frames < offset + UPSAMPLING * call.n_codes:
            raise ValueError(f"the flow noise ends at frame {n_frames}")
        return base.padded_noise[offset : offset + self.shape.frames]

    def _place(
        self,
        host: dict[str, NDArray[np.int64]],
        index: int,
        cache: StreamCache,
        calls: Sequence[Vocode],
    ) -> list[SlotRing]:
        """Write the table's fields of one cache; return its rings after the chunk."""
        n = len(calls)
        rings = [each.state.rings[index] for each in calls]
        capacity, length = host[cache.field("capacity")], host[cache.field("length")]
        capacity[:n, 0] = [each.state.memory.caches[index].shape[3] for each in calls]
        length[:n, 0] = [ring.length for ring in rings]
        capacity[n:], length[n:] = 0, 0
        places, ages = host[cache.field("targets")], host[cache.field("ages")]
        places[:] = DROPPED
        after = []
        for row, (each, ring) in enumerate(zip(calls, rings, strict=True)):
            n_new = each.n_codes * (1 if cache is self.token_rate else UPSAMPLING)
            places[row, :n_new], grown = ring.append(n_new)
            if cache is not self.estimator:
                ages[row, : ring.length] = ring.ages()
            after.append(grown)
        return after
