"""One chunk of a fixed number of streams, from speech codes to samples, on static memory.

What a graph captures is `ChunkProgram.run`; everything a chunk needs is written into the
program's inputs before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.device import stream_ops
from MiniCPMO45.device.vocoder_encoder import PackedEncoder
from MiniCPMO45.device.vocoder_flow import PackedEstimator
from MiniCPMO45.device.vocoder_plan import ChunkInput, ChunkPlan, ChunkShape
from MiniCPMO45.device.vocoder_streams import Ledgers, StreamMemory, TailLayout
from MiniCPMO45.token2wav.flow import FlowSchedule
from MiniCPMO45.token2wav.hift import OVERLAP_FRAMES, Ends, Overlap
from MiniCPMO45.token2wav.vocoder import Token2Wav

OVERLAP = ("mel", "source", "speech")  # names among a stream's tails


class PackedVocoder:
    """Weights of all three parts, laid out for the device; shares memory where types agree."""

    def __init__(self, vocoder: Token2Wav, longest: ChunkShape, dtype: torch.dtype) -> None:
        """Pack the weights.

        Args:
            vocoder: the checkpoint's.
            longest: the largest chunk and history that can occur.
            dtype: of the flow's products, keys and values.
        """
        self.encoder = PackedEncoder(vocoder.flow, longest, dtype)
        self.estimator = PackedEstimator(vocoder.flow, dtype)
        self.hift = vocoder.hift
        if vocoder.device.type == "cuda":
            self.hift.pack(dtype)
        self.config, self.dtype, self.device = vocoder.config, dtype, vocoder.device


class ChunkProgram:
    """A chunk of S streams.

    Attributes:
        shape: codes and history it is sized for.
        n_rows: S.
        schedule: the ODE's steps.
    """

    def __init__(
        self, weights: PackedVocoder, schedule: FlowSchedule, n_rows: int, shape: ChunkShape
    ) -> None:
        """Allocate inputs and outputs.

        Args:
            weights: what to run.
            schedule: the ODE's steps.
            n_rows: streams S; fewer are padded.
            shape: codes and history; smaller chunks are padded.
        """
        config, device = weights.config, weights.device
        self._weights, self.schedule = weights, schedule
        self.shape, self.n_rows = shape, n_rows
        self._layout = TailLayout.of(config, len(schedule.deltas))
        self._plan = ChunkPlan(n_rows, shape, config.flow, device)
        per_frame, bins = config.hift.samples_per_frame, config.flow.output_size
        self._held = OVERLAP_FRAMES * per_frame
        n_samples = self._held + shape.frames * per_frame
        self._start = torch.zeros(n_rows, shape.frames, bins, device=device)
        self._speaker = torch.zeros(n_rows, bins, device=device)
        self._noise = torch.zeros(n_rows, n_samples, config.hift.nb_harmonics + 1, device=device)
        n_steps = len(schedule.deltas)
        self._nobody = StreamMemory.allocate(config, n_steps, 0, self._start, weights.dtype)
        self.load(())

    def load(self, inputs: Sequence[ChunkInput]) -> list[Ledgers]:
        """Write a chunk's inputs.

        Args:
            inputs: at most S.

        Returns:
            The ledgers of each stream after the chunk; the streams are not changed.
        """
        after, n = self._plan.load(inputs, self._nobody), len(inputs)
        if inputs:
            torch.stack([self._flow_noise(each) for each in inputs], out=self._start[:n])
            torch.cat([each.stream.base.speaker for each in inputs], out=self._speaker[:n])
        for row, each in zip(self._noise, inputs, strict=False):
            self._draw_noise(row, each)
        return after

    def release(self) -> None:
        """Drop the streams of the last `load`; `run` needs another one first."""
        self._plan.table.release()

    def run(self) -> tuple[Tensor, Tensor]:
        """Compute the chunk; reads the inputs and writes the streams' memory.

        Returns:
            mel, float32 [S, T, bins]; and samples, float32 [S, (8 + 8 + T) * 480], the first
            8 * 480 zeros.
        """
        weights, plan = self._weights, self._plan
        old = stream_ops.load_tails(plan.table, self._layout.size)
        new = torch.empty_like(old)
        tails, new_tails = self._layout.split(old), self._layout.split(new)
        mu = weights.encoder(plan, tails, new_tails)
        mel = weights.estimator.solve(
            mu,
            self._speaker,
            self._start,
            self.schedule,
            plan,
            tails["convolution"],
            new_tails["convolution"],
        )
        overlap = Overlap(*(tails[name] for name in OVERLAP))
        ends = Ends(plan["n_frames"], plan["has_started"])
        speech, kept = weights.hift(mel, self._noise, overlap, ends)
        for name, part in zip(OVERLAP, (kept.mel, kept.source, kept.speech), strict=True):
            new_tails[name].copy_(part)
        stream_ops.store_tails(new, plan.table)
        return mel, F.pad(speech, (self._held, 0))

    def _flow_noise(self, each: ChunkInput) -> Tensor:
        """Starting points of a stream's chunk [T, bins]."""
        offset, needed = each.stream.noise_offset, 2 * each.n_codes
        part = each.stream.base.noise[0, :, offset : offset + self.shape.frames].T
        if part.shape[0] < needed:
            raise ValueError(f"the flow noise ends at frame {offset + part.shape[0]}")
        missing = self.shape.frames - part.shape[0]
        return F.pad(part, (0, 0, 0, missing)) if missing else part

    def _draw_noise(self, row: Tensor, each: ChunkInput) -> None:
        """Fill a stream's row of the excitation's noise."""
        generator = each.stream.generator
        if generator is None:
            row.zero_()
            return
        n_frames = 2 * each.n_codes + (OVERLAP_FRAMES if each.stream.has_started else 0)
        drawn = row[: n_frames * self._weights.config.hift.samples_per_frame]
        if generator.device == row.device:
            drawn.normal_(generator=generator)
        else:
            drawn.copy_(torch.randn(drawn.shape, generator=generator, device=generator.device))
