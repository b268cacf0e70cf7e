"""Positions and whole clips with the defects of the reference.

Only defects that show in a recording. Source: docs/specification/model.md#10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.steps import Collect, DrawCodes, EncodeClips
from MiniCPMO45.kernels.products import Rope
from MiniCPMO45.model.audio_encoder import AudioEncoder, pool
from MiniCPMO45.model.transformer import DenseAttention
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.mel import encoder_frame_count
from MiniCPMO45.token2wav.vocoder import Token2Wav


@dataclass(frozen=True, eq=False)
class GappedRope(Rope):
    """D16: positions of one conversation with gaps.

    Attributes:
        gaps: cache lengths before which a position is skipped, ascending.
    """

    gaps: list[int] = field(default_factory=list)

    def place(self, positions: Tensor) -> Tensor:
        """Return the reference's positions of cached rows."""
        return positions + sum((positions >= gap).long() for gap in self.gaps)

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin; see `Rope.tables`."""
        return super().tables(self.place(positions), dtype)


def recorded_clip_frames(
    encoder: AudioEncoder, mels: Sequence[Tensor], block_frames: int | None
) -> list[Tensor]:
    """Encode clips as `AudioEmbedder.embed_clips` does, but for D3.

    The convolutions include the padding, and the mask compares encoder frames with lengths in mel
    frames, so a clip attends to some of its padding.
    """
    batch = nn.utils.rnn.pad_sequence([mel.T for mel in mels], batch_first=True)
    hidden = encoder.convolve(batch.transpose(1, 2))
    seen = torch.arange(hidden.shape[1])
    lengths = torch.tensor([mel.shape[1] for mel in mels])
    mask = (seen < lengths[:, None])[:, None, :].expand(-1, len(seen), -1)
    if block_frames is not None:
        block = seen // block_frames
        mask = mask & (block[None, :] <= block[:, None])
    hidden = hidden + encoder.embed_positions.weight[: len(seen)]
    rows = encoder.transform(hidden, DenseAttention(encoder.heads, mask[:, None]))
    return [row[: encoder_frame_count(mel.shape[1])] for row, mel in zip(rows, mels, strict=True)]


class RecordedExecutor(Executor):
    """The executor with D3, and with position gaps in speech."""

    def __init__(self, model: MiniCPMOForConditionalGeneration, vocoder: Token2Wav | None) -> None:
        super().__init__(model, vocoder)
        self.speech_rope = GappedRope(self.tts_store.rope.frequencies)
        self.tts_store.rope = self.speech_rope
        self._draw, self._handlers[DrawCodes] = self._handlers[DrawCodes], self._draw_codes

    def _draw_codes(self, requests: Sequence[DrawCodes]) -> Collect:
        everywhere = torch.arange(self.tts_store.shape.max_position_embeddings)
        self.tts_store.tables = self.speech_rope.tables(everywhere, torch.float32)
        return self._draw(requests)

    def _encode_clips(self, requests: Sequence[EncodeClips]) -> list[list[Tensor]]:
        model, step = self.model, self.model.config.audio_pool_step
        frames = [
            recorded_clip_frames(model.apm, each.mels, each.block_frames) for each in requests
        ]
        return [
            [pool(model.audio_projection_layer(rows), step) for rows in of_one] for of_one in frames
        ]
