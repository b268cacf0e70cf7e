"""The audio encoder's convolutions as matrix products."""

from __future__ import annotations

import torch

from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.model.audio_encoder import AudioEncoder

CONFIG = AudioConfig(d_model=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64)


@torch.no_grad()
def test_convolutions_are_products_on_a_card() -> None:
    torch.manual_seed(0)
    encoder, mel = AudioEncoder(CONFIG), torch.randn(2, 80, 31)
    is_sound = torch.arange(31) < torch.tensor([[20], [31]])
    wanted = encoder.convolve(mel, is_sound)
    for conv in (encoder.conv1, encoder.conv2):
        conv.pack()
    torch.testing.assert_close(encoder.convolve(mel, is_sound), wanted)
