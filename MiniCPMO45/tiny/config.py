"""The configuration files of the tiny checkpoint: published field names, toy sizes."""

from __future__ import annotations

from typing import Any

from MiniCPMO45.tiny.tokenizer import TinyVocabulary

HIDDEN = 128  # one resampler head of 128 channels
AUDIO_WIDTH = 32
VISION_WIDTH = 32
TTS_WIDTH = 32
LAYERS = 2
EMBEDDING_ROW_STEP = 64  # the speech decoder's text table is rounded up, as the published one is
VARIANT = "tiny"


def model_config(vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return `config.json`."""
    size = len(vocabulary.base) + len(vocabulary.added)
    return {
        "architectures": ["MiniCPMO"],
        "model_type": "minicpmo",
        "model_variant": VARIANT,
        "version": "4.5",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HIDDEN // 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": size,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": LAYERS,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": vocabulary.id_of("<|endoftext|>"),
        "eos_token_id": vocabulary.id_of("<|im_end|>"),
        "query_num": 64,
        "image_size": 448,
        "patch_size": 14,
        "slice_mode": True,
        "use_image_id": True,
        "batch_vision_input": True,
        "vision_batch_size": 16,
        "drop_vision_last_layer": False,
        "audio_pool_step": 5,
        "audio_chunk_length": 1.0,
        "stream_input": True,
        "listen_speak_type": "asr",
        "init_vision": True,
        "init_audio": True,
        "init_tts": True,
        "slice_config": {
            "model_type": "minicpmv",
            "max_slice_nums": 9,
            "patch_size": 14,
            "scale_resolution": 448,
        },
        "vision_config": _vision_config(),
        "audio_config": _audio_config(),
        "tts_config": _tts_config(vocabulary, size),
    }


def _vision_config() -> dict[str, Any]:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 2 * VISION_WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_channels": 3,
        "image_size": 980,
        "patch_size": 14,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "attention_dropout": 0.0,
    }


def _audio_config() -> dict[str, Any]:
    return {
        "model_type": "whisper",
        "d_model": AUDIO_WIDTH,
        "encoder_layers": LAYERS,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 4 * AUDIO_WIDTH,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "activation_function": "gelu",
        "scale_embedding": False,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    }


def _tts_config(vocabulary: TinyVocabulary, size: int) -> dict[str, Any]:
    return {
        "model_type": "minicpmtts",
        "hidden_size": TTS_WIDTH,
        "intermediate_size": 2 * TTS_WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "llm_dim": HIDDEN,
        "projector_type": "mlp",
        "num_text_tokens": -(-size // EMBEDDING_ROW_STEP) * EMBEDDING_ROW_STEP,
        "num_audio_tokens": 6562,
        "num_vq": 1,
        "vocab_size": EMBEDDING_ROW_STEP,
        "audio_bos_token_id": vocabulary.id_of("<focus>"),
        "text_eos_token_id": vocabulary.id_of("</perception>"),
        "condition_type": "hidden_text_merge",
        "normalize_projected_hidden": True,
        "attention_type": "full_attention",
        "interleaved": False,
        "recomputed_chunks": 1,
        "window_size": 2,
        "streaming_sliding_window_audio_window_size": 300,
        "audio_tokenizer_type": "s3tokenizer",
        "audio_tokenizer_sample_rate": 16_000,
        "s3_stream_chunk_size": 25,
        "s3_stream_n_timesteps": 10,
        "s3_stream_prelook_size": 3,
        "s3_stream_generate": False,
    }


def generation_config(vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return `generation_config.json`."""
    end_of_text = vocabulary.id_of("<|endoftext|>")
    return {
        "bos_token_id": end_of_text,
        "do_sample": True,
        "eos_token_id": [vocabulary.id_of("<|im_end|>"), end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def preprocessor_config() -> dict[str, Any]:
    """Return `preprocessor_config.json`."""
    return {
        "image_processor_type": "MiniCPMVImageProcessor",
        "feature_extractor_type": "MiniCPMAAudioProcessor",
        "processor_class": "MiniCPMOProcessor",
        "max_slice_nums": 9,
        "scale_resolution": 448,
        "patch_size": 14,
        "use_image_id": True,
        "image_feature_size": 64,
        "im_start": "<image>",
        "im_end": "</image>",
        "slice_start": "<slice>",
        "slice_end": "</slice>",
        "unk": "<unk>",
        "im_id_start": "<image_id>",
        "im_id_end": "</image_id>",
        "slice_mode": True,
        "audio_pool_step": 5,
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.5, 0.5, 0.5],
        "version": 4.5,
    }


def vocoder_config() -> dict[str, Any]:
    """Return what `flow.yaml` says: the vocoder's two halves, field names as published."""
    width = 32
    return {
        "flow": {
            "input_size": 16,
            "output_size": 80,
            "spk_embed_dim": 192,
            "output_type": "mel",
            "vocab_size": 6561,
            "encoder": {
                "input_size": 16,
                "output_size": width,
                "input_layer": "linear",
                "pre_lookahead_len": 3,
                "num_blocks": LAYERS,
                "num_up_blocks": LAYERS,
                "up_stride": 2,
                "up_scale_factor": 2,
                "attention_heads": 2,
                "linear_units": 2 * width,
                "pos_enc_layer_type": "rel_pos_espnet",
                "selfattention_layer_type": "rel_selfattn",
                "key_bias": True,
                "normalize_before": True,
            },
            "decoder": {
                "inference_cfg_rate": 0.7,
                "estimator": {
                    "in_channels": 320,
                    "out_channels": 80,
                    "mlp_ratio": 2.0,
                    "depth": LAYERS,
                    "num_heads": 2,
                    "head_dim": 16,
                    "hidden_size": width,
                },
            },
        },
        "hift": {
            "in_channels": 80,
            "base_channels": 32,
            "nb_harmonics": 8,
            "sampling_rate": 24_000,
            "f0_predictor": {"in_channels": 80, "cond_channels": 16, "num_class": 1},
        },
    }
