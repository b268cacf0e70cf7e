"""Compares the voice encoder: features and speech codes."""

from __future__ import annotations

import numpy as np
import torch

from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig
from MiniCPMO45.token2wav.voices import (
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
from tests.goldens.report import Report

FILES: tuple[str, ...] = ("voice_prompt",)

FEATURE_ATOL = 2e-4
HIDDEN_RTOL_OF_MAX = 1e-4
ROUNDING_EDGES = (0.5, 1.5)  # of 1 + tanh(x), where a digit changes
ROUNDING_MARGIN = 1e-3


def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare the folder's recordings of voices."""
    with torch.inference_mode():
        if folder.has("voice_prompt"):
            _compare_features(folder, report)
            _compare_speech_tokens(folder, report)


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
    """Return the float32 rounding error of each band's log energy [T, 80].

    A transform rounds all amplitudes by half a step of the largest, which is much for a nearly
    silent band. Both the recording and our result have this error.
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
    """Return which rows have no value too close to a rounding edge, bool [n]."""
    levels = 1.0 + np.tanh(projected.astype(np.float64))
    distances = np.stack([np.abs(levels - edge) for edge in ROUNDING_EDGES])
    return np.asarray((distances > ROUNDING_MARGIN).all(axis=(0, 2)))
