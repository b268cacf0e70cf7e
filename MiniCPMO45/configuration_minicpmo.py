"""The model's configuration, made of `transformers` configurations, and its timing constants.

`config.json` has the published layout: the language model's fields at the top level, the other
parts nested. Defaults are the published values, so `MiniCPMOConfig()` is the public 9 B checkpoint.
Reading a configuration never executes code: `auto_map` is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from transformers import (
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    SiglipVisionConfig,
    WhisperConfig,
)

ENCODER_FRAMES_PER_SECOND = 50  # 100 mel frames a second, halved by the second convolution
RESAMPLER_HEAD_SIZE = 128  # channels


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

    @classmethod
    def of(cls, config: Qwen3Config | LlamaConfig) -> DecoderConfig:
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        assert kv_heads is not None and head_dim is not None and config.rope_parameters is not None
        rope_theta = config.rope_parameters["rope_theta"]
        assert rope_theta is not None  # the library gives all of these a value
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=float(rope_theta),
            max_position_embeddings=config.max_position_embeddings,
            has_qk_norm=isinstance(config, Qwen3Config),
        )


class VisionConfig(SiglipVisionConfig):
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    image_size: int = 980
    patch_size: int = 14


class AudioConfig(WhisperConfig):
    """Whisper encoder; the decoder's fields are unused."""

    d_model: int = 1024
    encoder_layers: int = 24
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096


class TTSConfig(LlamaConfig):
    """Speech-token decoder; `vocab_size` counts the rows of a word embedding that is never read."""

    model_type = "minicpmtts"

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 20
    num_attention_heads: int = 12
    max_position_embeddings: int = 4096
    llm_dim: int = 4096
    projector_type: str = "mlp"
    num_text_tokens: int = 152_064
    num_audio_tokens: int = 6562
    num_vq: int = 1
    audio_bos_token_id: int = 151_687
    text_eos_token_id: int = 151_692
    condition_type: str = "hidden_text_merge"
    normalize_projected_hidden: bool = True
    attention_type: str = "full_attention"
    interleaved: bool = False

    def validate_token_ids(self) -> None:
        """Accept every id: they count in the language model's vocabulary, not in this one's."""

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        return self

    @property
    def speech_eos_id(self) -> int:
        """Code that ends a run of speech tokens."""
        return self.num_audio_tokens - 1

    @property
    def decoder(self) -> DecoderConfig:
        return DecoderConfig.of(self)


class SliceConfig(PreTrainedConfig):
    model_type = "minicpmv"

    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14


class MiniCPMOConfig(Qwen3Config):
    """The whole model. Language-model fields stand at the top level, as in the published file."""

    model_type = "minicpmo"
    sub_configs: ClassVar[dict[str, type[PreTrainedConfig]]] = {
        "slice_config": SliceConfig,
        "vision_config": VisionConfig,
        "audio_config": AudioConfig,
        "tts_config": TTSConfig,
    }
    default_theta = 1_000_000.0

    intermediate_size: int = 12_288
    num_hidden_layers: int = 36
    num_key_value_heads: int = 8
    vocab_size: int = 151_748
    max_position_embeddings: int = 40_960
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

    def __post_init__(self, **kwargs: Any) -> None:
        self.slice_config = _made(SliceConfig, self.slice_config)
        self.vision_config = _made(VisionConfig, self.vision_config)
        self.audio_config = _made(AudioConfig, self.audio_config)
        self.tts_config = _made(TTSConfig, self.tts_config)
        kwargs.pop("auto_map", None)  # names code of the checkpoint, which is never run
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """Return the configuration itself: the language model's fields are at the top level."""
        return self

    @property
    def decoder(self) -> DecoderConfig:
        return DecoderConfig.of(self)

    @property
    def audio_block_frames(self) -> int:
        """Encoder frames per attention block of a whole clip; the encoder makes 50 a second."""
        return round(self.audio_chunk_length * ENCODER_FRAMES_PER_SECOND)

    @property
    def resampler_heads(self) -> int:
        return max(1, self.hidden_size // RESAMPLER_HEAD_SIZE)


Part = TypeVar("Part", bound=PreTrainedConfig)


def _made(kind: type[Part], values: Part | Mapping[str, Any] | None) -> Part:
    return values if isinstance(values, kind) else kind(**(values or {}))


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
