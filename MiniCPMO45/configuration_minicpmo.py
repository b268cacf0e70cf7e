"""The model's configuration, composed of `transformers` configurations, and its timing constants.

`config.json` has the published layout: the language model's fields at the top level, the other
parts nested. The defaults are those of the public 9 B checkpoint. `auto_map` is ignored, so reading
a configuration never executes code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar

import torch
from transformers import (
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    SiglipVisionConfig,
    WhisperConfig,
)

ENCODER_FRAMES_PER_SECOND = 50  # 100 mel frames a second, halved by the second convolution
RESAMPLER_HEAD_SIZE = 128


DecoderConfig: TypeAlias = Qwen3Config | LlamaConfig
"""Of a decoder-only transformer: the language model, or the speech decoder.

Only the former normalises queries and keys.
"""


class VisionConfig(SiglipVisionConfig):
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    image_size: int = 980
    patch_size: int = 14


class AudioConfig(WhisperConfig):
    """Whisper encoder; fields of Whisper's decoder are unused."""

    d_model: int = 1024
    encoder_layers: int = 24
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096


class TTSConfig(LlamaConfig):
    """Speech decoder; `vocab_size` is that of an unused word embedding."""

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
        """Skip the library's check: the ids are from the language model's vocabulary."""

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        return self

    @property
    def speech_eos_id(self) -> int:
        """Code that ends the speech."""
        return self.num_audio_tokens - 1


class SliceConfig(PreTrainedConfig):
    model_type = "minicpmv"

    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14


class MiniCPMOConfig(Qwen3Config):
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
    model_variant: str = ""  # not empty for other checkpoints than the public one
    slice_config: SliceConfig = field(default_factory=SliceConfig)
    vision_config: VisionConfig = field(default_factory=VisionConfig)
    audio_config: AudioConfig = field(default_factory=AudioConfig)
    tts_config: TTSConfig = field(default_factory=TTSConfig)

    def __post_init__(self, **kwargs: Any) -> None:
        self.slice_config = _as_config(SliceConfig, self.slice_config)
        self.vision_config = _as_config(VisionConfig, self.vision_config)
        self.audio_config = _as_config(AudioConfig, self.audio_config)
        self.tts_config = _as_config(TTSConfig, self.tts_config)
        kwargs.pop("auto_map", None)  # names code of the checkpoint, which is never executed
        dtype = self.dtype or kwargs.get("torch_dtype")
        if isinstance(dtype, str) and not isinstance(vars(torch).get(dtype), torch.dtype):
            raise ValueError(f"dtype is {dtype}, which PyTorch does not have; bfloat16 is one")
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """Return the configuration itself: the language model's fields are at the top level."""
        return self

    @property
    def omitted(self) -> tuple[str, ...]:
        """Prefixes of the tensors of parts that the model is built without."""
        parts = (
            (self.init_vision, ("vpm.", "resampler.")),
            (self.init_audio, ("apm.", "audio_projection_layer.")),
            (self.init_tts, ("tts.",)),
        )
        return tuple(name for is_built, names in parts if not is_built for name in names)

    @property
    def audio_block_frames(self) -> int:
        """Encoder frames per attention block of a whole clip."""
        return round(self.audio_chunk_length * ENCODER_FRAMES_PER_SECOND)

    @property
    def resampler_heads(self) -> int:
        return max(1, self.hidden_size // RESAMPLER_HEAD_SIZE)


Part = TypeVar("Part", bound=PreTrainedConfig)


def _as_config(kind: type[Part], values: Part | Mapping[str, Any] | None) -> Part:
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
        """Waveform samples per speech code (960)."""
        return self.mel_frames_per_code * self.samples_per_mel_frame


TIMING: Final = SpeechTiming()
