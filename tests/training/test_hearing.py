"""Batched encoding of conversations equals unit-by-unit encoding in serving."""

from __future__ import annotations

import torch
from torch import nn

from MiniCPMO45.model.audio_encoder import AudioEmbedder, EncodeStream, new_audio_cache
from MiniCPMO45.processing.mel import MelState, clip_mels, push
from tests.training.conftest import Nano
from training.nano.hearing import (
    clip_frames,
    encoder_rows,
    stream_frames,
    stream_mels,
    stream_samples,
)

UNITS = 32  # past the point at which mel buffer and encoder begin anew


def test_streams_equal_serving(nano: Nano) -> None:
    encoder = nano.fresh_model().apm.eval()
    embedder = AudioEmbedder(encoder, nn.Identity(), pool_step=1)
    torch.manual_seed(3)
    audio = 0.05 * torch.randn(2, stream_samples(UNITS))
    audio[1, 190_000:200_000] *= 20
    audio[1, -40_000:] *= 0.01
    with torch.inference_mode():
        batched = stream_frames(encoder, stream_mels(audio, UNITS))[1]
        state, cache, served = (
            MelState(),
            new_audio_cache(nano.fresh_model().config.audio_config),
            [],
        )
        for unit in range(UNITS):
            first = stream_samples(unit) if unit else 0
            mel = push(state, audio[1, first : stream_samples(unit + 1)])
            item = EncodeStream(mel, cache, is_first=unit == 0)
            served += embedder.embed_streams([item])
    torch.testing.assert_close(batched, torch.cat(served), atol=1e-3, rtol=1e-3)


def test_clips_equal_serving(nano: Nano) -> None:
    encoder = nano.fresh_model().apm.eval()
    torch.manual_seed(4)
    clips = [0.1 * torch.randn(n) for n in (16_560, 23_456, 48_001)]
    with torch.inference_mode():
        for block in (None, 50):
            embedder = AudioEmbedder(encoder, nn.Identity(), pool_step=1)
            served = embedder.embed_clips([clip_mels(clip)[0] for clip in clips], block)
            padded = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
            sizes = torch.tensor([len(clip) for clip in clips])
            rows = clip_frames(encoder, padded, sizes, block)
            for mine, clip, theirs in zip(rows, clips, served, strict=True):
                assert encoder_rows(len(clip)) == len(theirs)
                torch.testing.assert_close(mine[: len(theirs)], theirs, atol=1e-4, rtol=1e-4)
