"""The tiny checkpoint's `assets`: vocoder weights, voice models and a synthetic voice sample."""

from __future__ import annotations

import math
import wave
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from MiniCPMO45.tiny_config import vocoder_config
from MiniCPMO45.tiny_random import draw
from MiniCPMO45.tiny_tokenizer import write_json
from MiniCPMO45.tiny_voice import write_campplus_onnx, write_speech_tokenizer_onnx
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT

SAMPLE_RATE_HZ = 16_000
SAMPLE_S = 3.0
INT16_MAX = 32_767

BIAS_SPREAD = 0.02
GATE_SPREAD = 0.3  # of the estimator's modulation, so that blocks neither vanish nor explode
PITCH_HZ = 150.0  # what the pitch predictor says whatever it hears, give or take
LOG_MAGNITUDE = -0.9  # of the vocoder's spectrum: audible, far from the limit
SPECTRUM_BINS = 9
LOG_MAGNITUDE_SPREAD = 0.2


def write_assets(folder: Path, seed: int) -> None:
    """Write everything under `assets`.

    Args:
        folder: the checkpoint folder.
        seed: of every random weight.
    """
    target = folder / "assets" / "token2wav"
    target.mkdir(parents=True, exist_ok=True)
    write_speech_tokenizer_onnx(target / "speech_tokenizer_v2_25hz.onnx", seed)
    write_campplus_onnx(target / "campplus.onnx", seed)
    write_vocoder(target, seed)
    write_voice_sample(folder / "assets" / "system_ref_audio.wav")


def write_vocoder(folder: Path, seed: int) -> None:
    """Write the tiny `flow.yaml`, `flow.pt`, `hift.pt` and, for the sizes of both, `config.json`.

    The published `flow.yaml` says nothing about the second half, whose published sizes are
    fixed; toy sizes have to be written down somewhere.

    Args:
        folder: `assets/token2wav`.
        seed: of every random weight.
    """
    sizes = vocoder_config()
    write_vocoder_weights(folder, seed, Token2WavConfig.from_dict(sizes))
    text = yaml.safe_dump({"flow": sizes["flow"]}, sort_keys=False)
    (folder / "flow.yaml").write_text(text, encoding="utf8")
    write_json(folder / "config.json", sizes)


def write_vocoder_weights(folder: Path, seed: int, config: Token2WavConfig) -> None:
    """Write `flow.pt` and `hift.pt`.

    Args:
        folder: `assets/token2wav`.
        seed: of every random weight.
        config: sizes.
    """
    with torch.device("meta"):
        flow, hift = Flow(config.flow), HiFT(config.hift)
    _save(folder / "flow.pt", {n: _flow_tensor(n, t, seed) for n, t in flow.state_dict().items()})
    _save(folder / "hift.pt", {n: _hift_tensor(n, t, seed) for n, t in hift.state_dict().items()})


def voice_sample() -> np.ndarray:
    """Return a voiced tone by formula: gliding pitch, two formants, syllables.

    Returns:
        float32 [n] at 16 kHz, within ±0.7.
    """
    time_s = np.arange(int(SAMPLE_S * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    pitch_hz = (
        130.0 + 25.0 * np.sin(2 * np.pi * 0.7 * time_s) + 6.0 * np.sin(2 * np.pi * 5 * time_s)
    )
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE_HZ
    first_hz = 500.0 + 220.0 * np.sin(2 * np.pi * 1.1 * time_s)
    second_hz = 1500.0 + 500.0 * np.cos(2 * np.pi * 0.9 * time_s)
    tone = np.zeros_like(time_s)
    for harmonic in range(1, 31):
        at_hz = harmonic * pitch_hz
        weight = np.exp(-(((at_hz - first_hz) / 180.0) ** 2))
        weight += 0.5 * np.exp(-(((at_hz - second_hz) / 260.0) ** 2)) + 0.15 / harmonic
        tone += weight * np.sin(harmonic * phase)
    syllables = 0.25 + 0.75 * np.sin(np.pi * 3.5 * time_s) ** 2
    tone *= syllables * np.minimum(1.0, 20.0 * np.minimum(time_s, SAMPLE_S - time_s))
    return (0.7 * tone / np.abs(tone).max()).astype(np.float32)


def write_voice_sample(path: Path) -> None:
    """Write `voice_sample` as a 16-bit mono WAV file."""
    samples = np.round(voice_sample() * INT16_MAX).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(samples.tobytes())


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, path)


def _plain(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    if "norm" in name and name.endswith("weight"):
        return torch.ones(shape)
    if len(shape) == 1 or name.endswith(("pos_bias_u", "pos_bias_v")):
        return draw(name, shape, seed, BIAS_SPREAD)
    return draw(name, shape, seed, 1.0 / math.sqrt(math.prod(shape[1:])))


def _flow_tensor(name: str, like: Tensor, seed: int) -> Tensor:
    shape = tuple(like.shape)
    if name == "input_embedding.weight":
        return draw(name, shape, seed)
    tensor = _plain(name, shape, seed)
    if "adaLN_modulation" in name and name.endswith("weight"):
        return tensor * GATE_SPREAD
    if name.startswith("encoder.after_norm") or "conv.block.3." in name or "embed.out.1." in name:
        return torch.full(shape, float(name.endswith("weight")))  # layer norms without the name
    return tensor


def _hift_tensor(name: str, like: Tensor, seed: int) -> Tensor:
    shape = tuple(like.shape)
    if name.endswith("alpha"):
        return torch.ones(shape)
    if name.endswith("original0"):  # length of the rows: keeps what passes through at one size
        spread = LOG_MAGNITUDE_SPREAD if name.startswith("conv_post.") else 1.0
        return torch.full(shape, spread)
    if name.startswith("f0_predictor.classifier."):
        return torch.full(shape, PITCH_HZ) if name.endswith("bias") else draw(name, shape, seed)
    if name == "conv_post.bias":
        bias = draw(name, shape, seed, BIAS_SPREAD)
        bias[:SPECTRUM_BINS] += LOG_MAGNITUDE
        return bias
    return _plain(name, shape, seed)
