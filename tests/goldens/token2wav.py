"""Compares the vocoder: voice prompt, streaming with both cache rules, whole utterance, HiFT."""

from __future__ import annotations

import json
import re

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import UPSAMPLING, Token2WavConfig
from MiniCPMO45.token2wav.load import build_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream, VoiceBase, VoicePrompt, rings_for
from tests.goldens.folder import GoldenFolder
from tests.goldens.recorded_vocoder import OutputLog, RecordedVocoder, recorded_caches
from tests.goldens.report import Report

OVERLAP = "token2wav_overlap"
CAUSAL = "token2wav_causal"
FILES: tuple[str, ...] = (OVERLAP, f"{OVERLAP}_meta", CAUSAL, f"{CAUSAL}_meta")

CACHE_RTOL_OF_MAX = 1e-4
HIDDEN_RTOL_OF_MAX = 1e-4
MEL_RTOL_OF_MAX = 5e-4
F0_RTOL = 1e-3
WAVE_ATOL = 2e-3
WAVE_MIN_CORRELATION = 0.999


def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare the folder's recordings of the vocoder."""
    if folder.has(OVERLAP):
        _compare_overlap(folder, report)
        if folder.has(CAUSAL):  # it was recorded with the other file's voice and noise
            _compare_causal(folder, report)


def load_vocoder(folder: GoldenFolder, options: LoadOptions) -> Token2Wav:
    sizes = json.loads((folder.path / "token2wav_weights" / "config.json").read_text("utf8"))
    return build_token2wav(
        Token2WavConfig.model_validate(sizes),
        folder.token2wav_weights("flow"),
        folder.token2wav_weights("hift"),
        options,
    )


def load_voice(folder: GoldenFolder) -> tuple[VoicePrompt, Tensor]:
    """Return the recorded voice prompt and the initial noise of the flow [1, bins, N]."""
    recorded = folder.tensors(OVERLAP)
    voice = VoicePrompt(
        codes=torch.from_numpy(recorded["prompt_tokens"]).long(),
        speaker=torch.from_numpy(recorded["prompt_speaker"]),
        mel=torch.from_numpy(recorded["prompt_mel"]),
    )
    return voice, torch.from_numpy(recorded["initial_noise"])


def _compare_overlap(folder: GoldenFolder, report: Report) -> None:
    recorded, meta = folder.tensors(OVERLAP), folder.meta(f"{OVERLAP}_meta")
    steps = meta["ode_steps"]
    loaded = load_vocoder(folder, LoadOptions(flow_steps=steps))
    vocoder = RecordedVocoder(loaded.flow, loaded.hift, loaded.options)
    voice, noise = load_voice(folder)
    inputs = ("prompt_tokens", "prompt_speaker", "prompt_mel", "initial_noise", "whole_tokens")
    report.given(*(f"{OVERLAP}/{name}" for name in inputs))
    base = vocoder.set_up(voice, noise=noise)
    _compare_prompt(vocoder, base, recorded, report)
    _compare_streaming(vocoder, base, recorded, meta, report)
    _compare_settings(OVERLAP, vocoder, base, meta, report)
    _compare_whole(vocoder, voice, noise, recorded, report)
    _compare_hift(vocoder, recorded, report)


def _compare_prompt(
    vocoder: Token2Wav, base: VoiceBase, recorded: dict[str, np.ndarray], report: Report
) -> None:
    """Compare the caches after the voice prompt."""
    filled = [ring.append(ring.capacity)[1] for ring in rings_for(base.frames, 0)]
    found = recorded_caches(vocoder, base.memory, (filled[0], filled[1], filled[2]))
    actual = {}
    for name in recorded:
        steps = [int(step) for step in re.findall(r"\d+", name)]
        for kind, value in found.items():
            if name.startswith(f"prompt_{kind}"):
                actual[name] = value[steps] if steps else value
    for name, value in actual.items():
        expected = recorded[name]
        report.close(f"{OVERLAP}/{name}", value, expected, rtol_of_max=CACHE_RTOL_OF_MAX)


def _compare_streaming(
    vocoder: Token2Wav,
    base: VoiceBase,
    recorded: dict[str, np.ndarray],
    meta: dict,
    report: Report,
) -> None:
    state, mels, shapes = vocoder.new_state(base), OutputLog(vocoder.flow), []
    codes = _chunks(recorded, "tokens")
    for index, chunk in enumerate(codes):
        name, is_last = f"{OVERLAP}/chunk{index}", index == len(codes) - 1
        report.given(f"{name}_tokens")
        wave = vocoder.stream(state, chunk.tolist(), is_last)
        expected = recorded[f"chunk{index}_mel"]
        report.close(f"{name}_mel", mels.last[0].T, expected, rtol_of_max=MEL_RTOL_OF_MAX)
        _close_wave(report, f"{name}_wav", wave, recorded[f"chunk{index}_wav"])
        shapes.append(_cache_shapes(vocoder, state))
    report.exact(f"{OVERLAP}_meta/chunk_sizes", [len(c) for c in codes], meta["chunk_sizes"])
    expected_shapes = meta["cache_shapes_after_chunk"]
    report.exact(f"{OVERLAP}_meta/cache_shapes_after_chunk", shapes, expected_shapes)


def _compare_settings(
    file: str, vocoder: Token2Wav, base: VoiceBase, meta: dict, report: Report
) -> None:
    report.exact(f"{file}_meta/ode_steps", vocoder.options.flow_steps, meta["ode_steps"])
    report.exact(f"{file}_meta/cfg_rate", vocoder.config.flow.cfg_rate, meta["cfg_rate"])
    report.exact(f"{file}_meta/prompt_len", base.frames // 2, meta["prompt_len"])


def _compare_whole(
    vocoder: Token2Wav,
    voice: VoicePrompt,
    noise: Tensor,
    recorded: dict[str, np.ndarray],
    report: Report,
) -> None:
    """Compare a whole utterance: a prompt of which only a part has a mel."""
    codes = torch.from_numpy(recorded["whole_tokens"]).long()[None]
    features, mels = OutputLog(vocoder.flow.encoder), OutputLog(vocoder.flow)
    no_mel = torch.zeros(1, UPSAMPLING * codes.shape[1], voice.mel.shape[2])
    vocoder.set_up(VoicePrompt(codes, voice.speaker, no_mel), noise=noise, lookahead=())
    name, expected = f"{OVERLAP}/whole_encoder_out", recorded["whole_encoder_out"]
    report.close(name, features.last[0], expected, rtol_of_max=HIDDEN_RTOL_OF_MAX)
    joined = VoicePrompt(
        torch.cat((voice.codes, codes), dim=1),
        voice.speaker,
        torch.cat((voice.mel, no_mel), dim=1),
    )
    vocoder.set_up(joined, noise=noise, lookahead=())
    name, mel = f"{OVERLAP}/whole_mel", mels.last[0, voice.frames :].T
    report.close(name, mel, recorded["whole_mel"], rtol_of_max=MEL_RTOL_OF_MAX)


def _compare_hift(vocoder: Token2Wav, recorded: dict[str, np.ndarray], report: Report) -> None:
    hift = vocoder.hift
    mel = torch.from_numpy(recorded["vocoder_mel"])[None].transpose(1, 2)
    report.given(f"{OVERLAP}/vocoder_mel")
    f0 = hift.f0_predictor(mel)
    report.close(f"{OVERLAP}/vocoder_f0", f0[0], recorded["vocoder_f0"], rtol=F0_RTOL)
    n_frames, config = mel.shape[1], hift.config
    noise = torch.zeros(1, n_frames * config.samples_per_frame, config.nb_harmonics + 1)
    source = hift.excite(f0, noise)[0]
    _close_wave(report, f"{OVERLAP}/vocoder_source", source, recorded["vocoder_source"])
    wave, _ = hift(mel, noise, None, torch.tensor([[n_frames]]), torch.tensor([[0]]))
    _close_wave(report, f"{OVERLAP}/vocoder_wav", wave[0], recorded["vocoder_wav"])
    if "noisy_source" in recorded:
        _compare_noisy_source(vocoder, recorded, report)


def _compare_noisy_source(
    vocoder: Token2Wav, recorded: dict[str, np.ndarray], report: Report
) -> None:
    """The recorded phase acts on the first sample, which the reference's resampling never reads."""
    hift = vocoder.hift
    f0 = torch.from_numpy(recorded["noisy_f0_upsampled"])[None, :: hift.config.samples_per_frame]
    noise = torch.from_numpy(recorded["noisy_noise"])[None]
    inputs = ("noisy_f0_upsampled", "noisy_noise", "noisy_initial_phase")
    report.given(*(f"{OVERLAP}/{name}" for name in inputs))
    source = hift.excite(f0, noise)[0]
    _close_wave(report, f"{OVERLAP}/noisy_source", source, recorded["noisy_source"])


def _compare_causal(folder: GoldenFolder, report: Report) -> None:
    """The flow with look-ahead from the prompt and per-rate trimming.

    Waveforms are left out: they are of a vocoder that cannot load the published files.
    Source: docs/specification/model.md#1.9.
    """
    recorded, meta = folder.tensors(CAUSAL), folder.meta(f"{CAUSAL}_meta")
    vocoder = load_vocoder(folder, LoadOptions(flow_steps=meta["ode_steps"]))
    voice, noise = load_voice(folder)
    n_ahead = vocoder.config.flow.encoder.pre_lookahead_len
    base = vocoder.set_up(voice, noise=noise, lookahead=voice.codes[0, :n_ahead].tolist())
    state, log = vocoder.new_state(base), OutputLog(vocoder.flow)
    codes = _chunks(recorded, "tokens")
    shapes = []
    for index, chunk in enumerate(codes):
        name = f"{CAUSAL}/chunk{index}"
        report.given(f"{name}_tokens", f"{name}_wav")
        vocoder.stream(state, chunk.tolist(), index == len(codes) - 1)
        expected = recorded[f"chunk{index}_mel"]
        report.close(f"{name}_mel", log.last[0].T, expected, rtol_of_max=MEL_RTOL_OF_MAX)
        shapes.append(_cache_shapes(vocoder, state))
    report.exact(f"{CAUSAL}_meta/chunk_sizes", [len(c) for c in codes], meta["chunk_sizes"])
    expected_shapes = meta["cache_shapes_after_chunk"]
    report.exact(f"{CAUSAL}_meta/cache_shapes_after_chunk", shapes, expected_shapes)
    _compare_settings(CAUSAL, vocoder, base, meta, report)
    report.given(*(f"vocoder_causal/{name}" for name in folder.tensors("vocoder_causal")))


def _chunks(recorded: dict[str, np.ndarray], what: str) -> list[np.ndarray]:
    pattern = re.compile(rf"chunk(\d+)_{what}")
    found = {int(m[1]): recorded[m[0]] for m in map(pattern.fullmatch, recorded) if m}
    return [found[index] for index in sorted(found)]


def _cache_shapes(vocoder: Token2Wav, state: SpeechStream) -> dict[str, list[int]]:
    caches = recorded_caches(vocoder, state.memory, state.rings)
    return {name: list(tensor.shape) for name, tensor in caches.items()}


def _close_wave(report: Report, name: str, actual: Tensor, expected: np.ndarray) -> None:
    report.close(name, actual, expected, atol=WAVE_ATOL, min_correlation=WAVE_MIN_CORRELATION)
