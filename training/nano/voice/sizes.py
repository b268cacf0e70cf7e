"""Configuration of the embedded model's vocoder, in the published layout."""

from __future__ import annotations

from typing import Any

from MiniCPMO45.token2wav.config import Token2WavConfig
from training.nano.voice.alphabet import SILENCE

FLOW_WIDTH = 160
CODE_WIDTH = 64  # of the flow's code embedding
CODES = SILENCE + 1  # rows of the code embeddings
PROMPT_CODES = 50  # of the fixed voice, like the history in the caches


def vocoder_sizes() -> dict[str, Any]:
    """Return `assets/token2wav/config.json`, whose first entry is `flow.yaml`.

    It has the sizes that are not the published ones.
    """
    return {
        "flow": {
            "input_size": CODE_WIDTH,
            "vocab_size": CODES,
            "encoder": {
                "input_size": CODE_WIDTH,
                "output_size": FLOW_WIDTH,
                "num_blocks": 2,
                "num_up_blocks": 2,
                "attention_heads": 4,
                "linear_units": 3 * FLOW_WIDTH,
            },
            "decoder": {
                "estimator": {
                    "mlp_ratio": 2.0,
                    "depth": 4,
                    "num_heads": 4,
                    "head_dim": 40,
                    "hidden_size": FLOW_WIDTH,
                }
            },
        },
        "hift": {"base_channels": 128, "f0_predictor": {"cond_channels": 96}},
    }


def vocoder_config() -> Token2WavConfig:
    return Token2WavConfig.model_validate(vocoder_sizes())
