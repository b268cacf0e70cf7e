"""`MiniCPMO`: every module of the checkpoint under its published name, and nothing else."""

from __future__ import annotations

from torch import nn

from MiniCPMO45.audio_encoder import AudioEncoder, AudioProjection
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.modeling_navit_siglip import SiglipVisionTransformer
from MiniCPMO45.resampler import Resampler
from MiniCPMO45.transformer import CausalLM
from MiniCPMO45.tts import MiniCPMTTS


class MiniCPMO(nn.Module):
    """The weights of the model; 1,414 tensors at the published size.

    Nothing of a conversation is ever stored here. The executor is the only caller of the parts.
    """

    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__()
        self.config = config
        self.llm = CausalLM(config.decoder, config.vocab_size)
        self.vpm = SiglipVisionTransformer(
            config.vision_config, drop_last_layer=config.drop_vision_last_layer
        )
        self.resampler = Resampler(
            config.query_num,
            config.hidden_size,
            config.vision_config.hidden_size,
            config.resampler_heads,
        )
        self.apm = AudioEncoder(config.audio_config)
        self.audio_projection_layer = AudioProjection(
            config.audio_config.d_model, config.hidden_size
        )
        self.tts = MiniCPMTTS(config.tts_config)
