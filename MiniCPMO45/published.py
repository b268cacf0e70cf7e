"""What the published checkpoint says of itself: configuration values and file sizes, as data.

Source: docs/specification/model.md#1.2 and #1.9. Nothing here is read by the model's code;
a loaded checkpoint is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Scalar = str | int | float | bool | None
Value = Scalar | tuple[Scalar, ...]

HUGGINGFACE_ID = "openbmb/MiniCPM-o-4_5"
MODELSCOPE_ID = "OpenBMB/MiniCPM-o-4_5"

PARTS = ("slice_config", "vision_config", "audio_config", "tts_config")
"""Nested objects of `config.json`."""

UNUSED_PREFIXES = ("tts.model.embed_tokens.", "tts.projector_spk.")
"""Tensors that are stored but that no path reads (28.3 M parameters)."""


class Certainty(StrEnum):
    """How sure the specification is of a value."""

    CERTAIN = "certain"
    HIGH = "high"


@dataclass(frozen=True)
class PublishedField:
    """One configuration value.

    Attributes:
        path: name in the file, `part.name` inside a nested object.
        value: the published value; a JSON list is a tuple.
        certainty: how well the value is known.
        changes_shape: whether it decides the shape or the presence of a tensor.
        other_default: the original code falls back to something else when the field is absent.
    """

    path: str
    value: Value
    certainty: Certainty
    changes_shape: bool = False
    other_default: bool = False


def _shapes(part: str, **values: Value) -> tuple[PublishedField, ...]:
    return tuple(
        PublishedField(f"{part}{name}", value, Certainty.CERTAIN, changes_shape=True)
        for name, value in values.items()
    )


def _certain(part: str, **values: Value) -> tuple[PublishedField, ...]:
    return tuple(
        PublishedField(f"{part}{name}", value, Certainty.CERTAIN) for name, value in values.items()
    )


def _likely(part: str, **values: Value) -> tuple[PublishedField, ...]:
    return tuple(
        PublishedField(f"{part}{name}", value, Certainty.HIGH) for name, value in values.items()
    )


CONFIG: tuple[PublishedField, ...] = (
    *_certain("", model_type="minicpmo", architectures=("MiniCPMO",), version="4.5"),
    *_shapes(
        "",
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151_748,
        tie_word_embeddings=False,
        attention_bias=False,
        query_num=64,
        init_vision=True,
        init_audio=True,
        init_tts=True,
    ),
    *_certain(
        "",
        hidden_act="silu",
        rms_norm_eps=1e-6,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        rope_scaling=None,
        attention_dropout=0.0,
        image_size=448,
        use_image_id=True,
        audio_pool_step=5,
        audio_chunk_length=1.0,
    ),
    *_likely(
        "",
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=36,
        bos_token_id=151_643,
        eos_token_id=151_645,
        initializer_range=0.02,
        torch_dtype="bfloat16",
        batch_vision_input=True,
        vision_batch_size=16,
        listen_speak_type="asr",
    ),
    PublishedField(
        "drop_vision_last_layer", False, Certainty.HIGH, changes_shape=True, other_default=True
    ),
    PublishedField("stream_input", True, Certainty.HIGH, other_default=True),
    *_likely(
        "slice_config.",
        patch_size=14,
        max_slice_nums=9,
        scale_resolution=448,
        model_type="minicpmv",
    ),
    *_shapes(
        "vision_config.",
        hidden_size=1152,
        num_hidden_layers=27,
        intermediate_size=4304,
        patch_size=14,
        image_size=980,
        num_channels=3,
    ),
    *_certain(
        "vision_config.",
        num_attention_heads=16,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        attention_dropout=0.0,
    ),
    *_shapes(
        "audio_config.",
        d_model=1024,
        encoder_layers=24,
        encoder_ffn_dim=4096,
        num_mel_bins=80,
        max_source_positions=1500,
    ),
    *_certain(
        "audio_config.",
        encoder_attention_heads=16,
        activation_function="gelu",
        scale_embedding=False,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    ),
    *_shapes(
        "tts_config.",
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=20,
        num_attention_heads=12,
        num_key_value_heads=12,
        llm_dim=4096,
        projector_type="mlp",
        num_text_tokens=152_064,
        num_audio_tokens=6562,
        num_vq=1,
        vocab_size=32_000,
    ),
    *_certain(
        "tts_config.",
        model_type="minicpmtts",
        max_position_embeddings=4096,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        audio_bos_token_id=151_687,
        text_eos_token_id=151_692,
        streaming_sliding_window_audio_window_size=300,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
    ),
    PublishedField(
        "tts_config.condition_type", "hidden_text_merge", Certainty.CERTAIN, other_default=True
    ),
    PublishedField(
        "tts_config.normalize_projected_hidden", True, Certainty.CERTAIN, other_default=True
    ),
    PublishedField(
        "tts_config.attention_type", "full_attention", Certainty.HIGH, other_default=True
    ),
    *_likely(
        "tts_config.",
        interleaved=False,
        recomputed_chunks=1,
        window_size=2,
        audio_tokenizer_type="s3tokenizer",
        audio_tokenizer_sample_rate=16_000,
        s3_stream_chunk_size=25,
        s3_stream_n_timesteps=10,
        s3_stream_prelook_size=3,
        s3_stream_generate=False,
    ),
)
"""`config.json`."""

GENERATION: tuple[PublishedField, ...] = _certain(
    "",
    bos_token_id=151_643,
    eos_token_id=(151_645, 151_643),
    pad_token_id=151_643,
    do_sample=True,
    temperature=0.6,
    top_k=20,
    top_p=0.95,
)
"""`generation_config.json`."""

PREPROCESSOR: tuple[PublishedField, ...] = _certain(
    "",
    max_slice_nums=9,
    scale_resolution=448,
    patch_size=14,
    use_image_id=True,
    image_feature_size=64,
    slice_mode=True,
    audio_pool_step=5,
    norm_mean=(0.5, 0.5, 0.5),
    norm_std=(0.5, 0.5, 0.5),
    version=4.5,
    im_start="<image>",
    im_end="</image>",
    slice_start="<slice>",
    slice_end="</slice>",
    unk="<unk>",
    im_id_start="<image_id>",
    im_id_end="</image_id>",
)
"""`preprocessor_config.json`."""

FILE_SIZES_BYTES: tuple[tuple[str, int], ...] = (
    ("assets/token2wav/speech_tokenizer_v2_25hz.onnx", 496_082_973),
    ("assets/token2wav/campplus.onnx", 28_303_423),
    ("assets/token2wav/flow.yaml", 1_099),
    ("assets/token2wav/flow.pt", 623_466_603),
    ("assets/token2wav/hift.pt", 83_390_254),
    ("assets/system_ref_audio.wav", 539_032),
)
"""Files beside the weights and their published sizes."""
