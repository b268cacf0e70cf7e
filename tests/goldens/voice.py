"""Compares a voice's ingredients and the causal vocoder."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.token2wav.config import HiFTConfig
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig
from MiniCPMO45.token2wav.voice_features import (
    SAMPLE_RATE_HZ,
    VOICE_RATE_HZ,
    kaldi_filters,
    resample,
    speaker_filter_bank,
    speaker_power,
    tokenizer_log_mel,
    voice_log_mel,
)
from tests.goldens.folder import GoldenFolder
from tests.goldens.hift_causal import CausalHift, stream_with_lead_in
from tests.goldens.report import Report

FILES: tuple[str, ...] = ("voice_prompt", "vocoder_causal")

FEATURE_ATOL = 2e-4
HIDDEN_RTOL_OF_MAX = 1e-4
F0_RTOL = 1e-3
WAVE_ATOL = 2e-3
WAVE_MIN_CORRELATION = 0.999
ROUNDING_EDGES = (0.5, 1.5)  # of 1 + tanh(x), where a digit changes
ROUNDING_MARGIN = 1e-3


def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare every recording of the voice area that the folder has."""
    with torch.inference_mode():
        if folder.has("voice_prompt"):
            _compare_features(folder, report)
            _compare_speech_tokens(folder, report)
        if folder.has("vocoder_causal"):
            _compare_vocoder(folder, report)


def compare_causal_waves(folder: GoldenFolder, report: Report, mels: Sequence[Tensor]) -> None:
    """Compare the waveform pieces of `token2wav_causal`.

    Args:
        folder: holds the recording and the vocoder's weights.
        report: gets one row `token2wav_causal/chunk<i>_wav` per piece.
        mels: mel of every piece in order, float32 [80, frames] each.
    """
    expected = folder.tensors("token2wav_causal")
    vocoder = load_causal_hift(folder)
    state = vocoder.new_state()
    with torch.inference_mode():
        for index, mel in enumerate(mels):
            is_last = index == len(mels) - 1
            wave, state = stream_with_lead_in(vocoder, mel[None], state, is_last=is_last)
            name = f"chunk{index}_wav"
            _close_wave(report, f"token2wav_causal/{name}", wave[0], expected[name])


def load_causal_hift(folder: GoldenFolder) -> CausalHift:
    """Build the causal vocoder with a folder's tiny weights, float32."""
    sizes = json.loads((folder.path / "token2wav_weights" / "config.json").read_text("utf8"))
    look_right = sizes["hift_causal"]["conv_pre_look_right"]
    with torch.device("meta"):
        vocoder = CausalHift(HiFTConfig.from_dict(sizes["hift"]), look_right)
    vocoder.load_state_dict(folder.token2wav_weights("hift_causal"), assign=True)
    return vocoder


def _voice_sample(folder: GoldenFolder) -> np.ndarray:
    return folder.wav(min((folder.path / "inputs").glob("ref_*.wav")).name)


def _compare_features(folder: GoldenFolder, report: Report) -> None:
    expected = folder.tensors("voice_prompt")
    audio = _voice_sample(folder)
    upsampled = resample(audio, SAMPLE_RATE_HZ, VOICE_RATE_HZ)
    actual = {
        "logmel128": tokenizer_log_mel(torch.from_numpy(audio)).numpy(),
        "wav24k": upsampled[: expected["wav24k"].size],
        "mel24k": voice_log_mel(torch.from_numpy(upsampled)).numpy(),
    }
    for name, value in actual.items():
        report.close(f"voice_prompt/{name}", value, expected[name], atol=FEATURE_ATOL)
    name = "fbank80_centered"
    bank, rounding = speaker_filter_bank(torch.from_numpy(audio)), _log_rounding(audio)
    report.close(
        f"voice_prompt/{name}", bank.numpy(), expected[name], atol=FEATURE_ATOL, rounding=rounding
    )


def _log_rounding(audio: np.ndarray) -> np.ndarray:
    """How far float32 may move the logarithm of each band's energy [T, 80].

    A transform rounds all its amplitudes by half a step of the largest; to a band that is nearly
    silent that is much. The recording has such an error, and so has what is compared with it.
    """
    power = speaker_power(torch.from_numpy(audio).double())
    energies = (power @ kaldi_filters().double().T).clamp(min=torch.finfo(torch.float32).eps)
    step = torch.finfo(torch.float32).eps / 2 * power.amax(dim=1, keepdim=True).sqrt()
    relative: np.ndarray = (2 * 2 * step / energies.sqrt()).numpy()  # of both, and of a square
    return relative


def _compare_speech_tokens(folder: GoldenFolder, report: Report) -> None:
    expected = folder.tensors("voice_prompt")
    weights = folder.token2wav_weights("speech_tokenizer")
    with torch.device("meta"):
        tokenizer = SpeechTokenizer(SpeechTokenizerConfig.from_tensors(weights))
    tokenizer.load_state_dict(weights, assign=True)
    mel = tokenizer_log_mel(torch.from_numpy(_voice_sample(folder)))
    hidden = tokenizer.encoder(mel[None])
    actual = {"s3_hidden": hidden[0], "s3_preround": tokenizer.quantizer.project(hidden)[0]}
    for name, value in actual.items():
        report.close(f"voice_prompt/{name}", value, expected[name], rtol_of_max=HIDDEN_RTOL_OF_MAX)
    codes = tokenizer.encode(mel).numpy().astype(expected["s3_codes"].dtype)
    report.exact("voice_prompt/s3_len", np.array([codes.size]), expected["s3_len"])
    is_clear = _is_clear_of_rounding(expected["s3_preround"])
    report.exact("voice_prompt/s3_codes", codes[is_clear], expected["s3_codes"][is_clear])


def _is_clear_of_rounding(projected: np.ndarray) -> np.ndarray:
    """Which rows have no value so close to a rounding edge that float noise decides, bool [n]."""
    levels = 1.0 + np.tanh(projected.astype(np.float64))
    distances = np.stack([np.abs(levels - edge) for edge in ROUNDING_EDGES])
    return np.asarray((distances > ROUNDING_MARGIN).all(axis=(0, 2)))


def _compare_vocoder(folder: GoldenFolder, report: Report) -> None:
    expected = folder.tensors("vocoder_causal")
    vocoder = load_causal_hift(folder)
    mel = torch.from_numpy(expected["mel"])[None]
    report.given("vocoder_causal/mel")
    report.close("vocoder_causal/f0", vocoder.predict_f0(mel)[0], expected["f0"], rtol=F0_RTOL)
    lengths = expected["wav_lengths"]
    ends = np.cumsum(lengths)[:-1] // vocoder.config.samples_per_frame + vocoder.delay_frames
    state, start = vocoder.new_state(), 0
    pieces: list[Tensor] = []
    for end in (*ends.tolist(), mel.shape[2]):
        is_last = len(pieces) == len(lengths) - 1
        piece, state = vocoder.stream(mel[:, :, start:end], state, is_last=is_last)
        pieces.append(piece[0])
        start = end
    found = np.array([piece.numel() for piece in pieces], dtype=lengths.dtype)
    report.exact("vocoder_causal/wav_lengths", found, lengths)
    _close_wave(report, "vocoder_causal/wav", torch.cat(pieces), expected["wav"])


def _close_wave(report: Report, name: str, actual: Tensor, expected: np.ndarray) -> None:
    report.close(name, actual, expected, atol=WAVE_ATOL, min_correlation=WAVE_MIN_CORRELATION)
