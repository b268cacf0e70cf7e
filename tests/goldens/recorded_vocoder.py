"""The vocoder with the defects of the reference, and its caches in the layout of recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from MiniCPMO45.engine.steps import Vocode
from MiniCPMO45.token2wav.config import HISTORY_FRAMES, UPSAMPLING
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import (
    LARGEST_CALL_CODES,
    SlotRing,
    SlotRings,
    SpeechStream,
    StreamMemory,
    TailLayout,
    VoiceBase,
)


class RecordedStream(SpeechStream):
    """Its ring at 25/s does not retain the prompt, so every cache has to be copied."""

    def reset(self) -> None:
        self.memory.load(self.base.memory)
        counts = [ring.length for ring in self.base.rings]
        self.rings = tuple(r.filled(range(n)) for r, n in zip(self.rings, counts, strict=True))
        self.has_started = False


class RecordedVocoder(Token2Wav):
    """D28: both rates of the flow encoder share one array, whose oldest columns are kept."""

    def new_state(self, base: VoiceBase, generator: torch.Generator | None = None) -> SpeechStream:
        usual = super().new_state(base, generator)
        stream = RecordedStream(base, usual.memory, usual.rings, generator=generator)
        (estimator, held, mel_rate), rings = stream.memory.caches, stream.rings
        of_estimator, of_codes, of_frames = rings
        n_slots = held.shape[3] + LARGEST_CALL_CODES
        room = held.new_empty(*held.shape[:3], n_slots, held.shape[4])
        room[:, :, :, : held.shape[3]] = held
        stream.memory = replace(stream.memory, caches=(estimator, room, mel_rate))
        ring = SlotRing(n_slots, 0, newest_first=False, order=of_codes.order)
        stream.rings = (of_estimator, ring, of_frames)
        return stream

    @torch.no_grad()
    def stream_many(self, calls: Sequence[Vocode]) -> list[Tensor]:
        samples = super().stream_many(calls)
        for state in (call.state for call in calls):
            of_estimator, ring, of_frames = state.rings
            kept = _frozen(ordered(state.memory.caches[1], ring), state.base.frames)
            state.memory.caches[1][:, :, :, : kept.shape[3]] = kept
            state.rings = (of_estimator, ring.filled(range(kept.shape[3])), of_frames)
        return samples


def _frozen(token_rate: Tensor, prompt_frames: int) -> Tensor:
    """Trim a history stored twice in one array to the prompt and the history at 50/s."""
    doubled = torch.cat((token_rate, token_rate), dim=3)
    length = doubled.shape[3]
    if length <= prompt_frames + HISTORY_FRAMES:
        return token_rate
    first, last = doubled[:, :, :, :prompt_frames], doubled[:, :, :, length - HISTORY_FRAMES :]
    cut = torch.cat((first, last), dim=3)
    return cut[:, :, :, : cut.shape[3] // UPSAMPLING]


class OutputLog:
    """Outputs of a module, in order."""

    def __init__(self, module: nn.Module) -> None:
        self.outputs: list[Tensor] = []
        module.register_forward_hook(lambda _module, _inputs, answer: self.outputs.append(answer))

    @property
    def last(self) -> Tensor:
        return self.outputs[-1]


def ordered(cache: Tensor, ring: SlotRing) -> Tensor:
    """The occupied slots of a cache [layers, group, heads, n, 2 * d] in their order."""
    return cache.index_select(3, torch.tensor(ring.slots.tolist(), dtype=torch.long))


def recorded_caches(
    vocoder: Token2Wav, memory: StreamMemory, rings: SlotRings
) -> dict[str, Tensor]:
    estimator, of_codes, of_frames = (
        ordered(cache, ring) for cache, ring in zip(memory.caches, rings, strict=True)
    )
    n_steps = vocoder.options.flow_steps
    tails = TailLayout.of(vocoder.config, n_steps).split(memory.tails)
    of_steps = tails["convolution"]  # [N, depth, convolution, row, tap, C]
    return {
        "conformer_cnn_cache": torch.cat((tails["lookahead"], tails["upsample"])).T[None],
        # Both rates in one array, the token-rate slots twice over.
        "conformer_att_cache": torch.cat((of_codes.repeat(1, 1, 1, UPSAMPLING, 1), of_frames)),
        "estimator_cnn_cache": of_steps.permute(0, 1, 3, 2, 5, 4).flatten(3, 4),
        "estimator_att_cache": estimator.unflatten(0, (n_steps, -1)),
    }
