"""Compares the audio input: log-mels of clips and streams, encoder, KV cache and embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from MiniCPMO45.model.audio_encoder import (
    AudioCache,
    AudioEmbedder,
    AudioEncoder,
    EncodeStream,
    new_audio_cache,
    pool,
)
from MiniCPMO45.model.transformer import Projector
from MiniCPMO45.processing.mel import (
    FIRST_PAD_SAMPLES,
    FIRST_UNIT_SAMPLES,
    HOP_SAMPLES,
    UNIT_SAMPLES,
    MelState,
    clip_mels,
    push,
)
from tests.goldens.folder import GoldenFolder
from tests.goldens.recorded_model import recorded_clip_frames
from tests.goldens.report import Report

FILES: tuple[str, ...] = (
    "audio_offline",
    "audio_offline_long",
    "audio_streaming",
    "audio_streaming_long",
)

MEL_ATOL = 2e-4
HIDDEN_RTOL_OF_MAX = 1e-4
ENCODER_FRAMES_PER_S = 50
STREAM_INPUTS = {"audio_streaming": "speech_*.wav", "audio_streaming_long": "long_*.wav"}


@dataclass(frozen=True)
class Hearing:
    """Encoder and projection of a tiny checkpoint, with their settings."""

    encoder: AudioEncoder
    projection: Projector
    block_frames: int
    pool_step: int


@dataclass(frozen=True)
class Unit:
    """Results of one unit of a stream, and its recorded counters."""

    mel: Tensor
    frames: Tensor
    embeds: Tensor
    note: dict[str, Any]


def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare the folder's recordings of audio input."""
    hearing = load_hearing(folder)
    with torch.inference_mode():
        if folder.has("audio_offline"):
            _compare_clips(folder, hearing, report)
        if folder.has("audio_offline_long"):
            _compare_long_clip(folder, hearing, report)
        for name, pattern in STREAM_INPUTS.items():
            if folder.has(name):
                _compare_stream(folder, hearing, report, name, _wav(folder, pattern))


def load_hearing(folder: GoldenFolder) -> Hearing:
    """Build encoder and projection with a folder's tiny checkpoint, float32."""
    config = folder.config
    with torch.device("meta"):
        encoder = AudioEncoder(config.audio_config)
        projection = Projector(config.audio_config.d_model, config.hidden_size)
    encoder.load_state_dict(folder.weights("apm."), assign=True)
    projection.load_state_dict(folder.weights("audio_projection_layer."), assign=True)
    block_frames = round(config.audio_chunk_length * ENCODER_FRAMES_PER_S)
    return Hearing(encoder, projection, block_frames, config.audio_pool_step)


def _wav(folder: GoldenFolder, pattern: str) -> np.ndarray:
    return folder.wav(next(iter(sorted((folder.path / "inputs").glob(pattern)))).name)


def _compare_clips(folder: GoldenFolder, hearing: Hearing, report: Report) -> None:
    expected = folder.tensors("audio_offline")
    clips = {key.split("_")[0] for key in expected}
    for clip in sorted(clips):
        number = clip.lstrip("abcdefghijklmnopqrstuvwxyz")  # question1 is question_1.wav
        pattern = f"{clip.removesuffix(number)}_{number or '*'}.wav"
        mels = clip_mels(_wav(folder, pattern))
        actual = _clip_results(hearing, mels)
        for key in sorted(k for k in expected if k.split("_")[0] == clip):
            kind = key.removeprefix(f"{clip}_")
            if kind == "mel_len":
                lengths = np.array([mel.shape[1] for mel in mels], dtype=expected[key].dtype)
                report.exact(f"audio_offline/{key}", lengths, expected[key])
                continue
            _close(report, f"audio_offline/{key}", actual[kind], expected[key])


def _clip_results(hearing: Hearing, mels: list[Tensor]) -> dict[str, Tensor]:
    frames = torch.cat(_frames_of_clips(hearing, mels, hearing.block_frames))
    projected = hearing.projection(frames)
    full = _frames_of_clips(hearing, mels, None)
    return {
        "mel": torch.cat(mels, dim=1),
        "encoder_out": frames,
        "projected": projected,
        "embeds": pool(projected, hearing.pool_step),
        "embeds_full_attention": pool(hearing.projection(torch.cat(full)), hearing.pool_step),
    }


def _frames_of_clips(
    hearing: Hearing, mels: list[Tensor], block_frames: int | None
) -> list[Tensor]:
    return recorded_clip_frames(hearing.encoder, mels, block_frames)


def _compare_long_clip(folder: GoldenFolder, hearing: Hearing, report: Report) -> None:
    expected = folder.tensors("audio_offline_long")
    mels = clip_mels(_wav(folder, STREAM_INPUTS["audio_streaming_long"]))
    lengths = np.array([mel.shape[1] for mel in mels], dtype=expected["mel_lens"].dtype)
    actual: dict[str, Tensor] = {}
    for kind, block_frames in (("blocks", hearing.block_frames), ("full", None)):
        for i, frames in enumerate(_frames_of_clips(hearing, mels, block_frames)):
            actual[f"embeds_{kind}_part{i}"] = pool(hearing.projection(frames), hearing.pool_step)
    actual |= {f"mel_part{i}_first": mel for i, mel in enumerate(mels)}
    for key, want in sorted(expected.items()):
        if key == "mel_lens":
            report.exact(f"audio_offline_long/{key}", lengths, want)
        elif key.startswith("mel_"):
            _close(report, f"audio_offline_long/{key}", actual[key][:, : want.shape[1]], want)
        else:
            _close(report, f"audio_offline_long/{key}", actual[key], want)


def _compare_stream(
    folder: GoldenFolder, hearing: Hearing, report: Report, name: str, audio: np.ndarray
) -> None:
    expected = folder.tensors(name)
    notes = folder.meta(f"{name}_meta")
    cache = new_audio_cache(folder.config.audio_config)
    actual: dict[str, Tensor] = {}
    units = _stream(hearing, cache, audio, len(notes))
    for index, (unit, note) in enumerate(zip(units, notes, strict=True)):
        report.exact(f"{name}_meta/{index}", unit.note, note)
        actual[f"chunk{index}_mel"] = unit.mel
        actual[f"chunk{index}_encoder_out"] = unit.frames
        actual[f"chunk{index}_embeds"] = unit.embeds
    for layer, held in enumerate(cache.kv[:, 0, :, : cache.length]):
        actual[f"final_kv_key_{layer}"], actual[f"final_kv_value_{layer}"] = held.chunk(2, dim=-1)
    for key, want in sorted(expected.items()):
        _close(report, f"{name}/{key}", actual[key], want)


def _stream(hearing: Hearing, cache: AudioCache, audio: np.ndarray, n_units: int) -> Iterator[Unit]:
    """Run a stream as a duplex session would: left-padded first unit, then a second at a time."""
    embedder = AudioEmbedder(hearing.encoder, nn.Identity(), pool_step=1)
    state = MelState()
    buffer = np.zeros(0, dtype=np.float32)
    for index in range(n_units):
        given = UNIT_SAMPLES
        buffer = np.concatenate([buffer, audio[index * given : (index + 1) * given]])
        if index == 0:
            buffer = np.pad(buffer, (FIRST_PAD_SAMPLES - len(buffer), 0))
        taken = UNIT_SAMPLES if index else FIRST_UNIT_SAMPLES
        samples, buffer = buffer[:taken], buffer[taken:]
        mel = push(state, samples)
        item = EncodeStream(mel, cache, is_first=index == 0)
        length_before = cache.length
        [frames] = embedder.embed_streams([item])
        embeds = pool(hearing.projection(frames), hearing.pool_step)
        note = {
            "chunk": index,
            "samples_consumed_from_buffer": taken,
            "samples_given": len(samples),
            "mel_frames": mel.shape[1],
            "kv_before": length_before,
            "kv_after": cache.length,
            "n_embeds": embeds.shape[0],
            "mel_info": _mel_note(state, mel),
        }
        yield Unit(mel, frames, embeds, note)


def _mel_note(state: MelState, mel: Tensor) -> dict[str, Any]:
    return {
        "type": "exact_chunk",
        "chunk_number": state.core_end * HOP_SAMPLES // UNIT_SAMPLES,
        "emitted_frames": mel.shape[1],
        "stable_T": state.stable_frames,
        "T_full": state.full_frames,
        "base_T": state.base_frames,
        "stable_T_global": state.base_frames + state.stable_frames,
        "buffer_len_samples": len(state.samples),
        "left_samples_dropped": state.base_frames * HOP_SAMPLES,
        "core_start": state.core_end - UNIT_SAMPLES // HOP_SAMPLES,
        "core_end": state.core_end,
    }


def _close(report: Report, name: str, actual: Tensor, expected: np.ndarray) -> None:
    is_mel = name.split("/")[1].split("_")[-1] in ("mel", "first")
    if is_mel:
        report.close(name, actual.numpy(), expected, atol=MEL_ATOL)
    else:
        report.close(name, actual.numpy(), expected, rtol_of_max=HIDDEN_RTOL_OF_MAX)
