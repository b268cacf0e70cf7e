"""Speech codes to 24 kHz samples: flow and HiFT for streams of any age and voice in one batch.

On a card batches have a few fixed sizes, captured as graphs; elsewhere they have the size of the
request. Holds no state of a stream or a voice.
Source: docs/specification/model.md#7.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.kernels.device import Capturable
from MiniCPMO45.kernels.stream_memory import load_tails, store_tails
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import HISTORY_FRAMES, OVERLAP_FRAMES, UPSAMPLING, Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow, draw_flow_noise
from MiniCPMO45.token2wav.hift import HiFT, Overlap
from MiniCPMO45.token2wav.vocoder_state import (
    LARGEST_CALL_CODES,
    LARGEST_VOICE_FRAMES,
    ChunkBatch,
    ChunkShape,
    SlotRings,
    SpeechStream,
    StreamMemory,
    Vocode,
    VoiceBase,
    VoicePrompt,
    check_voice_length,
    rings_for,
)

HOP_CODES = 25  # consumed by a full call: one second
WINDOW_CODES = HOP_CODES + TIMING.lookahead_codes
FEWEST_CODES = 8  # fewest of a call that is not the last; they fill the overlap
INT16_PEAK, INT16_SCALE = 32_767, 32_768.0
HISTORY = LARGEST_VOICE_FRAMES + HISTORY_FRAMES
FIRST_PART_CODES = 12  # of a second that is split for early audio
CHUNK_CODES = (FIRST_PART_CODES, HOP_CODES, WINDOW_CODES, LARGEST_CALL_CODES)
CAPTURED_CODES = (FIRST_PART_CODES, HOP_CODES, WINDOW_CODES)
ROWS = (1, 2, 4, 8, 16, 32, 64)
LOOKAHEAD = (TIMING.silence_code,) * TIMING.lookahead_codes  # follows a voice's prompt


@dataclass(frozen=True)
class CodeChunk:
    """Codes of one vocoder call, at most 28; the last 3 are look-ahead unless a turn ends."""

    codes: tuple[int, ...]
    is_last: bool


@dataclass
class SpeechBuffer:
    """Codes of a turn that lack their look-ahead; a turn starts with three codes of silence."""

    waiting: list[int] = field(
        default_factory=lambda: [TIMING.silence_code] * TIMING.lookahead_codes
    )

    def push(
        self, codes: Sequence[int], *, is_last: bool, fewest: int = FEWEST_CODES
    ) -> list[CodeChunk]:
        """Add new codes, possibly none, and remove and return the calls now possible, in order.

        A call that is not the last takes at least `fewest` codes, from 8 to 28; the last takes the
        remaining ones.
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


def cut_whole_reply(codes: Sequence[int]) -> list[CodeChunk]:
    """Split all codes of a chat reply into vocoder calls, without leading silence.

    They are windows of 28 codes, 25 apart, and the remainder; the last one ends the reply.
    """
    starts = range(0, max(len(codes) - TIMING.lookahead_codes, 1), HOP_CODES) if codes else ()
    windows = [(tuple(codes[start : start + WINDOW_CODES]), start) for start in starts]
    return [CodeChunk(each, start + WINDOW_CODES >= len(codes)) for each, start in windows]


def finish_unit(
    samples: np.ndarray, *, is_last: bool, unit_samples: int = TIMING.sample_rate_hz
) -> np.ndarray:
    """Convert the vocoder's samples to the audio of one unit.

    Returns:
        float32 [n]: quantised to 16 bits, rounded towards zero; padded in front with zeros to
        `unit_samples` unless empty or last.
    """
    steps = (np.clip(samples, -1.0, 1.0) * INT16_PEAK).astype(np.int16)
    stepped = (steps / INT16_SCALE).astype(np.float32)
    missing = unit_samples - len(stepped)
    if is_last or len(stepped) == 0 or missing <= 0:
        return stepped
    return np.concatenate((np.zeros(missing, np.float32), stepped))


def run_flow(flow: Flow, batch: ChunkBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Run the flow alone.

    Returns:
        mel, float32 [S, T, bins]; the streams' flat tails before and after the chunk, the latter
        without those of HiFT.
    """
    old = load_tails(batch.table, batch.layout.size)
    new = torch.empty_like(old)
    mel = flow(batch, batch.layout.split(old), batch.layout.split(new))
    return mel, old, new


class VocoderPass(Capturable[Tensor]):
    """Flow and HiFT over a batch of chunks."""

    def __init__(self, flow: Flow, hift: HiFT, batch: ChunkBatch) -> None:
        shape, config = batch.shape, hift.config
        super().__init__(f"vocoder, {shape.rows} x {shape.codes} codes")
        self.batch, self._flow, self._hift = batch, flow, hift
        samples = (shape.frames + OVERLAP_FRAMES * shape.has_overlap) * config.samples_per_frame
        self._noise = torch.zeros(
            shape.rows, samples, config.nb_harmonics + 1, device=batch.start.device
        )
        self._noise_rows = self._noise.unbind()

    def load(self, calls: Sequence[Vocode]) -> list[SlotRings]:
        """Write the inputs as `ChunkBatch.load` does, and draw the excitation's noise."""
        after = self.batch.load(calls)
        for row, each in zip(self._noise_rows, calls, strict=False):
            generator = each.state.generator
            if generator is None:
                row.zero_()
                continue
            n_frames = UPSAMPLING * each.n_codes + (OVERLAP_FRAMES if each.state.has_started else 0)
            drawn = row[: n_frames * self._hift.config.samples_per_frame]
            if generator.device == row.device:
                drawn.normal_(generator=generator)
            else:
                drawn.copy_(torch.randn(drawn.shape, generator=generator, device=generator.device))
        return after

    def _work(self) -> Tensor:
        """Compute the chunk and update the streams' state.

        Returns:
            Samples, float32 [S, 8 * 480 and those of the chunk], the first 8 * 480 zeros; with an
            overlap followed by 8 * 480 more.
        """
        batch = self.batch
        mel, old, new = run_flow(self._flow, batch)
        tails, new_tails = batch.layout.split(old), batch.layout.split(new)
        overlap = Overlap(*(tails[name] for name in Overlap._fields))
        speech, kept = self._hift(
            mel,
            self._noise,
            overlap if batch.shape.has_overlap else None,
            batch.table["n_frames"],
            batch.table["has_started"],
        )
        for name, part in kept._asdict().items():
            new_tails[name].copy_(part)
        store_tails(new, batch.table)
        return F.pad(speech, (OVERLAP_FRAMES * self._hift.config.samples_per_frame, 0))


class Token2Wav:
    """Flow and HiFT with their captured passes."""

    def __init__(self, flow: Flow, hift: HiFT, options: LoadOptions | None = None) -> None:
        """Pack the weights, float32; HiFT's weight norms must be folded."""
        self.flow, self.hift, self.options = flow, hift, options or LoadOptions()
        self.config = Token2WavConfig(flow=flow.config, hift=hift.config)
        is_on_card = flow.device.type == "cuda"
        dtype = self.options.flow_dtype or (torch.float16 if is_on_card else torch.float32)
        flow.pack(HISTORY + UPSAMPLING * LARGEST_CALL_CODES, dtype)
        if is_on_card:
            hift.pack(dtype)
        fixed = self.options.has_fixed_sizes
        self._has_fixed_sizes = is_on_card if fixed is None else fixed
        with torch.inference_mode(False):  # cached beyond the call
            self._schedule = flow.make_schedule(self.options.flow_steps)
        if is_on_card:
            flow.decoder.estimator.drop_modulation()
        self._passes: dict[ChunkShape, VocoderPass] = {}

    @property
    def device(self) -> torch.device:
        return self.flow.device

    @torch.no_grad()
    def set_up(
        self,
        voice: VoicePrompt,
        *,
        noise: Tensor | None = None,
        lookahead: Sequence[int] = LOOKAHEAD,
    ) -> VoiceBase:
        """Run the voice prompt once, for any number of streams.

        Without `noise` [1, bins, N] for the prompt, 100 frames of history and the largest chunk, it
        is drawn from a fixed seed. The `lookahead` codes follow the prompt.

        Raises:
            VoiceTooLongError: P + 100 + 56 frames are more than 1000.
            ValueError: the noise is shorter than the prompt.
        """
        check_voice_length(voice.frames)
        flow, voice = self.flow, voice.to(self.device)
        if noise is None:
            n_frames = voice.frames + HISTORY_FRAMES + UPSAMPLING * LARGEST_CALL_CODES
            noise = draw_flow_noise(n_frames, self.config.flow.output_size)
        memory = self._memory(voice.frames)
        speaker = flow.project_speaker(voice.speaker)
        base = VoiceBase(voice.frames, speaker, noise.to(self.device), memory)
        batch = self._batch(ChunkShape(1, voice.codes.shape[1], 0))
        batch.prompt = voice.mel
        codes = [*voice.codes[0].tolist(), *lookahead]
        stream = SpeechStream(base, memory, rings_for(voice.frames, 0))
        batch.load([Vocode(stream, codes, is_last=not lookahead)])
        _, old, new = run_flow(flow, batch)
        before, after = batch.layout.split(old), batch.layout.split(new)
        for name in Overlap._fields:
            after[name].copy_(before[name])
        store_tails(new, batch.table)
        return base

    @torch.no_grad()
    def new_state(self, base: VoiceBase, generator: torch.Generator | None = None) -> SpeechStream:
        """Allocate a stream at the start of a turn.

        Without a generator its excitation has no noise.
        """
        memory = self._memory(base.frames + HISTORY_FRAMES)
        memory.load(base.memory)
        return SpeechStream(base, memory, base.rings, generator=generator)

    def stream(self, state: SpeechStream, codes: Sequence[int], is_last: bool = False) -> Tensor:
        return self.stream_many([Vocode(state, codes, is_last)])[0]

    @torch.no_grad()
    def stream_many(self, calls: Sequence[Vocode]) -> list[Tensor]:
        """Process calls of different streams in as few batches as possible.

        Returns:
            Samples per call at 24 kHz, float32 [n] beside the weights: 960 per code consumed; at
            the end 3840 more if anything came before (the first call of a turn starts with 3840
            zeros instead).

        Raises:
            ValueError: a call is invalid; no state has changed.
        """
        if len({id(call.state) for call in calls}) != len(calls):
            raise ValueError("a stream may be answered only once at a time")
        groups: dict[Hashable, list[int]] = {}
        for index, call in enumerate(calls):
            n_codes, has_started = call.n_codes, call.state.has_started
            if not 0 < n_codes <= LARGEST_CALL_CODES:
                amount = "few" if n_codes <= 0 else "many"
                raise ValueError(f"{len(call.codes)} codes are too {amount} for a chunk")
            if not (call.is_last or has_started) and UPSAMPLING * n_codes < OVERLAP_FRAMES:
                raise ValueError(f"{len(call.codes)} codes are too few for a turn's first chunk")
            alike = None if self._has_fixed_sizes else (n_codes, has_started)
            groups.setdefault(alike, []).append(index)
        answers: dict[int, Tensor] = {}
        for indices in groups.values():
            for start in range(0, len(indices), ROWS[-1]):
                batch = indices[start : start + ROWS[-1]]
                answers.update(zip(batch, self._answer([calls[i] for i in batch]), strict=True))
        return [answers[index] for index in range(len(calls))]

    @torch.no_grad()
    def pieces(self, rows: Sequence[int] = ROWS) -> list[Capturable[Tensor]]:
        """Return the passes of the usual chunks, to be captured before the first call."""
        shapes = [
            ChunkShape(n_rows, n_codes, HISTORY)
            for n_rows in sorted(rows, reverse=True)
            for n_codes in sorted(CAPTURED_CODES, reverse=True)
        ]
        pieces: list[Capturable[Tensor]] = []
        for shape in shapes:
            usual = self._kept(shape)
            usual.load(())  # so that the capture changes no stream
            pieces.append(usual)
        return pieces

    def _answer(self, calls: Sequence[Vocode]) -> list[Tensor]:
        chosen = self._pass_for(calls)
        try:
            after = chosen.load(calls)
            samples = chosen.run()
        finally:
            chosen.batch.table.release()  # so that a closed stream's memory is freed
        if self._has_fixed_sizes:
            samples = samples[: len(calls)].clone()  # the next replay overwrites the original
        return [self._finish(*each) for each in zip(calls, after, samples.unbind(0), strict=True)]

    def _pass_for(self, calls: Sequence[Vocode]) -> VocoderPass:
        """Return a pass of the next fixed size, or of the exact one."""
        states, n_codes = [call.state for call in calls], max(call.n_codes for call in calls)
        if self._has_fixed_sizes:
            n_rows = _smallest(ROWS, len(calls))
            return self._kept(ChunkShape(n_rows, _smallest(CHUNK_CODES, n_codes), HISTORY))
        history = max(state.noise_offset for state in states)
        return self._pass(ChunkShape(len(calls), n_codes, history, states[0].has_started))

    def _finish(self, call: Vocode, after: SlotRings, samples: Tensor) -> Tensor:
        """Update a stream after its chunk and return the chunk's samples."""
        state, per_frame = call.state, self.config.hift.samples_per_frame
        held = OVERLAP_FRAMES * per_frame
        had_started, n_new = state.has_started, UPSAMPLING * call.n_codes * per_frame
        state.rings = after
        state.chunks += 1
        total = n_new + (held if had_started else 0)
        state.has_started = total >= held
        if call.is_last:
            return samples[held : held + total]
        return samples[held : held + n_new] if had_started else samples[:n_new]

    def _kept(self, shape: ChunkShape) -> VocoderPass:
        if shape not in self._passes:
            with torch.inference_mode(False), torch.no_grad():  # it outlives the call
                self._passes[shape] = self._pass(shape)
        return self._passes[shape]

    def _pass(self, shape: ChunkShape) -> VocoderPass:
        return VocoderPass(self.flow, self.hift, self._batch(shape))

    def _batch(self, shape: ChunkShape) -> ChunkBatch:
        return ChunkBatch(self.config, shape, self._schedule, self.flow.dtype)

    def _memory(self, slots: int) -> StreamMemory:
        steps, dtype = self.options.flow_steps, self.flow.dtype
        return StreamMemory.allocate(self.config, steps, slots, device=self.device, dtype=dtype)


def _smallest(sizes: Sequence[int], needed: int) -> int:
    return next(size for size in sizes if size >= needed)
