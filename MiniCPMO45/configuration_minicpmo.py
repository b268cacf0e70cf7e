"""The model's configuration and its timing constants, as plain frozen records.

Reading a configuration never executes code: `auto_map` and every unknown key are ignored.
Defaults are the published values, so `MiniCPMOConfig()` is the public 9 B checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

ENCODER_FRAMES_PER_SECOND = 50  # 100 mel frames a second, halved by the second convolution


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder-only transformer (the language model or the speech decoder)."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    has_qk_norm: bool


@dataclass(frozen=True)
class VisionConfig:
    """SigLIP vision tower."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    num_channels: int = 3
    image_size: int = 980
    patch_size: int = 14
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    attention_dropout: float = 0.0


@dataclass(frozen=True)
class AudioConfig:
    """Whisper encoder."""

    d_model: int = 1024
    encoder_layers: int = 24
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    activation_function: str = "gelu"
    scale_embedding: bool = False


@dataclass(frozen=True)
class TTSConfig:
    """Speech-token decoder."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 20
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    llm_dim: int = 4096
    projector_type: str = "mlp"
    hidden_act: str = "silu"
    num_text_tokens: int = 152_064
    num_audio_tokens: int = 6562
    num_vq: int = 1
    vocab_size: int = 32_000  # rows of the unused word embedding
    audio_bos_token_id: int = 151_687
    text_eos_token_id: int = 151_692
    condition_type: str = "hidden_text_merge"
    normalize_projected_hidden: bool = True
    attention_type: str = "full_attention"
    interleaved: bool = False

    @property
    def speech_eos_id(self) -> int:
        """Code that ends a run of speech tokens."""
        return self.num_audio_tokens - 1

    @property
    def decoder(self) -> DecoderConfig:
        """The backbone's shape."""
        return DecoderConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            rms_norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
            max_position_embeddings=self.max_position_embeddings,
            has_qk_norm=False,
        )


@dataclass(frozen=True)
class SliceConfig:
    """How a large picture is cut into slices."""

    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14


@dataclass(frozen=True)
class MiniCPMOConfig:
    """The whole model. Language-model fields sit at the top level, as in the published file."""

    hidden_size: int = 4096
    intermediate_size: int = 12_288
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    vocab_size: int = 151_748
    max_position_embeddings: int = 40_960
    rope_theta: float = 1_000_000.0
    rope_scaling: None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: float = 0.0
    use_sliding_window: bool = False
    bos_token_id: int = 151_643
    eos_token_id: int = 151_645
    version: str = "4.5"
    query_num: int = 64
    image_size: int = 448
    use_image_id: bool = True
    batch_vision_input: bool = True
    vision_batch_size: int = 16
    drop_vision_last_layer: bool = False
    audio_pool_step: int = 5
    audio_chunk_length: float = 1.0
    stream_input: bool = True
    init_vision: bool = True
    init_audio: bool = True
    init_tts: bool = True
    model_variant: str = ""  # "tiny" or another name for checkpoints that are not the public one
    slice_config: SliceConfig = field(default_factory=SliceConfig)
    vision_config: VisionConfig = field(default_factory=VisionConfig)
    audio_config: AudioConfig = field(default_factory=AudioConfig)
    tts_config: TTSConfig = field(default_factory=TTSConfig)

    @property
    def decoder(self) -> DecoderConfig:
        """The language model's shape."""
        return DecoderConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
            max_position_embeddings=self.max_position_embeddings,
            has_qk_norm=True,
        )

    @property
    def audio_block_frames(self) -> int:
        """Encoder frames per attention block of a whole clip; the encoder makes 50 a second."""
        return round(self.audio_chunk_length * ENCODER_FRAMES_PER_SECOND)

    @property
    def resampler_heads(self) -> int:
        """Attention heads of the resampler: 128 channels each, at least one."""
        return max(1, self.hidden_size // 128)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MiniCPMOConfig:
        """Build a configuration from a parsed `config.json`; unknown keys are ignored."""
        nested = {
            "slice_config": SliceConfig,
            "vision_config": VisionConfig,
            "audio_config": AudioConfig,
            "tts_config": TTSConfig,
        }
        plain = _known(cls, {k: v for k, v in values.items() if k not in nested})
        parts = {
            name: kind(**_known(kind, values.get(name) or {})) for name, kind in nested.items()
        }
        return cls(**plain, **parts)

    @classmethod
    def from_folder(cls, folder: Path) -> MiniCPMOConfig:
        """Read `folder/config.json`."""
        return cls.from_dict(json.loads((folder / "config.json").read_text(encoding="utf8")))


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {k: v for k, v in values.items() if k in names}


@dataclass(frozen=True)
class StreamTiming:
    """Clock of the input stream. Source: docs/specification/model.md#4.5 and #6.2."""

    sample_rate_hz: int = 16_000
    chunk_ms: int = 1000
    first_chunk_ms: int = 1035
    cnn_redundancy_ms: int = 20
    hop_samples: int = 160
    mel_frames_per_embedding: int = 10

    @property
    def unit_samples(self) -> int:
        """Samples one unit consumes after the first (16 000)."""
        return self.sample_rate_hz * self.chunk_ms // 1000

    @property
    def first_pad_samples(self) -> int:
        """Length the first unit is left-padded to (16 560)."""
        return self.sample_rate_hz * self.first_chunk_ms // 1000

    @property
    def first_unit_samples(self) -> int:
        """Samples the first unit consumes: the first chunk on the hop grid (16 480)."""
        return self.first_pad_samples // self.hop_samples * self.hop_samples

    @property
    def redundancy_frames(self) -> int:
        """Mel frames of convolution context on each side (2)."""
        return self.cnn_redundancy_ms * self.sample_rate_hz // 1000 // self.hop_samples


@dataclass(frozen=True)
class SpeechTiming:
    """Clock of the speech output. Source: docs/specification/model.md#6.7 and #7."""

    sample_rate_hz: int = 24_000
    codes_per_second: int = 25
    lookahead_codes: int = 3
    silence_code: int = 4218
    mel_frames_per_code: int = 2
    samples_per_mel_frame: int = 480

    @property
    def samples_per_code(self) -> int:
        """Waveform samples one speech code stands for (960)."""
        return self.mel_frames_per_code * self.samples_per_mel_frame
