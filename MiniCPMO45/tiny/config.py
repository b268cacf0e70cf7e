"""The configuration of the tiny checkpoint: the published one at toy sizes."""

from __future__ import annotations

from typing import Any

from MiniCPMO45.configuration_minicpmo import AudioConfig, MiniCPMOConfig, TTSConfig, VisionConfig
from MiniCPMO45.tiny.tokenizer import TinyVocabulary

HIDDEN = 128  # one resampler head of 128 channels
WIDTH = 32  # of every part but the language model
LAYERS = 2
EMBEDDING_ROW_STEP = 64  # the speech decoder's text table is rounded up, as the published one is
VARIANT = "tiny"


def model_config(vocabulary: TinyVocabulary) -> MiniCPMOConfig:
    """Return the configuration for a vocabulary; what it does not name has the published value."""
    size = vocabulary.size
    return MiniCPMOConfig(
        model_variant=VARIANT,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
        vocab_size=size,
        bos_token_id=vocabulary.id_of("<|endoftext|>"),
        eos_token_id=vocabulary.id_of("<|im_end|>"),
        vision_config=VisionConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
        ),
        audio_config=AudioConfig(
            d_model=WIDTH,
            encoder_layers=LAYERS,
            encoder_attention_heads=2,
            encoder_ffn_dim=4 * WIDTH,
        ),
        tts_config=TTSConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
            llm_dim=HIDDEN,
            num_text_tokens=-(-size // EMBEDDING_ROW_STEP) * EMBEDDING_ROW_STEP,
            vocab_size=EMBEDDING_ROW_STEP,
            audio_bos_token_id=vocabulary.id_of("<focus>"),
            text_eos_token_id=vocabulary.id_of("</perception>"),
        ),
    )


def vocoder_config() -> dict[str, Any]:
    """Return the vocoder's `config.json`: field names as in the published `flow.yaml`."""
    return {
        "flow": {
            "input_size": 16,
            "encoder": {
                "input_size": 16,
                "output_size": WIDTH,
                "num_blocks": LAYERS,
                "num_up_blocks": LAYERS,
                "attention_heads": 2,
                "linear_units": 2 * WIDTH,
            },
            "decoder": {
                "estimator": {
                    "mlp_ratio": 2.0,
                    "depth": LAYERS,
                    "num_heads": 2,
                    "head_dim": 16,
                    "hidden_size": WIDTH,
                },
            },
        },
        "hift": {"base_channels": 32, "f0_predictor": {"cond_channels": 16}},
    }
