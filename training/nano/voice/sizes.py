"""Configuration of the embedded model's vocoder, in the published layout."""

from __future__ import annotations

from typing import Any

from MiniCPMO45.token2wav.config import Token2WavConfig
from training.nano.voice.alphabet import SILENCE

FLOW_WIDTH = 160
CODE_WIDTH = 64  # of the flow's code embedding
CODES = SILENCE + 1  # rows of the code embeddings
PROMPT_CODES = 50  # of the fixed voice, like the history in the caches
GUIDANCE_RATE = 0.7


def vocoder_sizes() -> dict[str, Any]:
    """Return `assets/token2wav/config.json`; `flow.yaml` is its first entry."""
    return {
        "flow": {
            "input_size": CODE_WIDTH,
            "output_size": 80,
            "spk_embed_dim": 192,
            "output_type": "mel",
            "vocab_size": CODES,
            "encoder": {
                "input_size": CODE_WIDTH,
                "output_size": FLOW_WIDTH,
                "input_layer": "linear",
                "pre_lookahead_len": 3,
                "num_blocks": 2,
                "num_up_blocks": 2,
                "up_stride": 2,
                "up_scale_factor": 2,
                "attention_heads": 4,
                "linear_units": 3 * FLOW_WIDTH,
                "pos_enc_layer_type": "rel_pos_espnet",
                "selfattention_layer_type": "rel_selfattn",
                "key_bias": True,
                "normalize_before": True,
            },
            "decoder": {
                "inference_cfg_rate": GUIDANCE_RATE,
                "estimator": {
                    "in_channels": 320,
                    "out_channels": 80,
                    "mlp_ratio": 2.0,
                    "depth": 4,
                    "num_heads": 4,
                    "head_dim": 40,
                    "hidden_size": FLOW_WIDTH,
                },
            },
        },
        "hift": {
            "in_channels": 80,
            "base_channels": 128,
            "nb_harmonics": 8,
            "sampling_rate": 24_000,
            "f0_predictor": {"in_channels": 80, "cond_channels": 96, "num_class": 1},
        },
    }


def vocoder_config() -> Token2WavConfig:
    return Token2WavConfig.model_validate(vocoder_sizes())
