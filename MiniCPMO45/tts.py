"""The speech decoder: text and language-model states in, speech-code logits out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from MiniCPMO45.configuration_minicpmo import TTSConfig
from MiniCPMO45.transformer import Decoder


class Projector(nn.Module):
    """Language-model width to speech width: linear, ReLU, linear."""

    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(from_width, to_width)
        self.linear2 = nn.Linear(to_width, to_width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [n, from_width] to [n, to_width]."""
        return self.linear2(F.relu(self.linear1(hidden)))


class MiniCPMTTS(nn.Module):
    """Modules of the speech decoder under the checkpoint's names."""

    def __init__(self, config: TTSConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.emb_text = nn.Embedding(config.num_text_tokens, width)
        self.projector_spk = Projector(config.llm_dim, width)
        self.projector_semantic = Projector(config.llm_dim, width)
        self.model = Decoder(config.decoder, config.vocab_size)
        self.emb_code = nn.ModuleList(
            nn.Embedding(config.num_audio_tokens, width) for _ in range(config.num_vq)
        )
        self.head_code = nn.ModuleList(
            weight_norm(nn.Linear(width, config.num_audio_tokens, bias=False), dim=0)
            for _ in range(config.num_vq)
        )

    def folded_head(self) -> Tensor:
        """Return the output matrix [codes, width] with the weight norm multiplied out."""
        prefix = "head_code.0.parametrizations.weight"
        gain = self.get_parameter(f"{prefix}.original0")  # [codes, 1]
        direction = self.get_parameter(f"{prefix}.original1")  # [codes, width]
        return torch._weight_norm(direction, gain, 0)
