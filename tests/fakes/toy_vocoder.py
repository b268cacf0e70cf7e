"""The vocoder at toy size with random weights; real classes, float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.token2wav.config import (
    EstimatorConfig,
    F0Config,
    FlowConfig,
    FlowEncoderConfig,
    HiFTConfig,
    Token2WavConfig,
)
from MiniCPMO45.token2wav.load import build_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav, VocoderOptions
from MiniCPMO45.token2wav.voice import VoicePrompt

PROMPT_CODES = 52  # a little over two seconds: P = 104 frames, so that trimming keeps both ends
PITCH_HZ = 150.0


def toy_config() -> Token2WavConfig:
    """Published structure, few channels and layers."""
    return Token2WavConfig(
        flow=FlowConfig(
            input_size=16,
            encoder=FlowEncoderConfig(
                input_size=16,
                output_size=16,
                num_blocks=2,
                num_up_blocks=2,
                attention_heads=2,
                linear_units=24,
            ),
            estimator=EstimatorConfig(
                mlp_ratio=2.0, depth=2, num_heads=2, head_dim=8, hidden_size=16
            ),
        ),
        hift=HiFTConfig(base_channels=16, f0_predictor=F0Config(cond_channels=8)),
    )


def toy_weights(seed: int = 7) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random tensors of flow and generator under the checkpoint's names."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Token2Wav(toy_config())
        hift = model.hift.state_dict()
        hift["f0_predictor.classifier.bias"] = torch.tensor([PITCH_HZ])
        flow = model.flow.state_dict()
        for name in flow:
            if "pos_bias" in name:
                flow[name] = torch.randn(flow[name].shape)
        return flow, hift


def toy_vocoder(options: VocoderOptions | None = None, seed: int = 7) -> Token2Wav:
    """A ready vocoder; two ODE steps unless asked otherwise."""
    flow, hift = toy_weights(seed)
    return build_token2wav(toy_config(), flow, hift, options or VocoderOptions(n_steps=2))


def toy_voice(n_codes: int = PROMPT_CODES, seed: int = 3) -> VoicePrompt:
    """A random voice."""
    generator = torch.Generator().manual_seed(seed)
    return VoicePrompt(
        codes=torch.randint(0, 6561, (1, n_codes), generator=generator),
        speaker=torch.randn(1, 192, generator=generator),
        mel=torch.randn(1, 2 * n_codes, 80, generator=generator),
    )


def toy_codes(n_codes: int, seed: int = 11) -> list[int]:
    """Random speech codes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 6561, (n_codes,), generator=generator).tolist()
