"""Configuration and vocabulary of the embedded model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import WhisperFeatureExtractor

from MiniCPMO45.configuration_minicpmo import (
    AudioConfig,
    MiniCPMOConfig,
    SliceConfig,
    TTSConfig,
    VisionConfig,
)
from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.pictures import MiniCPMOImageProcessor
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.tiny.tokenizer import (
    TinyVocabulary,
    make_tokenizer,
    train_vocabulary,
    training_texts,
    write_json,
)
from MiniCPMO45.tiny.weights import model_config
from MiniCPMO45.token2wav.config import Token2WavConfig
from training.nano.domain.catalogue import intents, reply_texts
from training.nano.domain.facts import ROLES, draw_facts, system_text
from training.nano.voice.alphabet import SILENCE

VARIANT = "nano"
VOCABULARY_FILE = Path(__file__).with_name("vocabulary.json")
MERGES = 1650
QUESTIONS_PER_INTENT = 60  # in the vocabulary's training texts
REPLY_REPEATS = 6  # so that words of replies become tokens before words of questions
REPLIES_ALIKE = 40  # most replies that begin with the same two words
RARE_REPEATS = 3  # of replies with a unique beginning

HIDDEN = 256
LAYERS = 6
FEED_FORWARD = 768
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
AUDIO_WIDTH, AUDIO_LAYERS, AUDIO_HEADS = 384, 4, 6  # Source: Whisper tiny.en
VISION_WIDTH, VISION_LAYERS = 128, 4
VISION_SIDE = 490  # pixels; its position table is 35 x 35
MAX_SLICES, SLICE_RESOLUTION = 1, 336  # as in training
TTS_WIDTH, TTS_LAYERS, TTS_HEADS = 256, 4, 4
FLOW_WIDTH = 160
CODE_WIDTH = 64  # of the flow's code embedding
CODES = SILENCE + 1  # rows of the code embeddings


@cache
def vocabulary() -> TinyVocabulary:
    """Return the stored vocabulary, which does not change with the domain."""
    stored = json.loads(VOCABULARY_FILE.read_text(encoding="utf8"))
    pairs = tuple((left, right) for left, right in (pair.split(" ") for pair in stored["merges"]))
    return TinyVocabulary(tuple(stored["base"]), pairs, tuple(stored["added"]))


def renew_vocabulary() -> TinyVocabulary:
    """Train the vocabulary on the current domain and replace the stored one."""
    random = Random(0)
    systems = [system_text(role, draw_facts(random)) for role in ROLES for _ in range(20)]
    asked = [
        question.text
        for intent in intents().values()
        for question in intent.questions[:: max(1, len(intent.questions) // QUESTIONS_PER_INTENT)]
    ]
    replies = _thinned(reply_texts())
    marks = [prompts.DUPLEX_SYSTEM_PROMPT, prompts.CONTEXT_MARKER]
    texts = [*training_texts(), *systems, *asked, *marks, *replies * REPLY_REPEATS]
    trained = train_vocabulary(texts, MERGES)
    merges = [f"{left} {right}" for left, right in trained.merges]
    values = {"base": trained.base, "merges": merges, "added": trained.added}
    write_json(VOCABULARY_FILE, values, indent=0)
    return trained


def config() -> MiniCPMOConfig:
    tiny = model_config(vocabulary())
    return MiniCPMOConfig(
        model_variant=VARIANT,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=tiny.vocab_size,
        bos_token_id=tiny.bos_token_id,
        eos_token_id=tiny.eos_token_id,
        slice_config=SliceConfig(max_slice_nums=MAX_SLICES, scale_resolution=SLICE_RESOLUTION),
        vision_config=VisionConfig(
            hidden_size=VISION_WIDTH,
            image_size=VISION_SIDE,
            intermediate_size=4 * VISION_WIDTH,
            num_hidden_layers=VISION_LAYERS,
            num_attention_heads=4,
        ),
        audio_config=AudioConfig(
            d_model=AUDIO_WIDTH,
            encoder_layers=AUDIO_LAYERS,
            encoder_attention_heads=AUDIO_HEADS,
            encoder_ffn_dim=4 * AUDIO_WIDTH,
        ),
        tts_config=TTSConfig(
            hidden_size=TTS_WIDTH,
            intermediate_size=3 * TTS_WIDTH,
            num_hidden_layers=TTS_LAYERS,
            num_attention_heads=TTS_HEADS,
            llm_dim=HIDDEN,
            num_text_tokens=tiny.tts_config.num_text_tokens,
            num_audio_tokens=CODES + 1,
            vocab_size=tiny.tts_config.vocab_size,
            audio_bos_token_id=tiny.tts_config.audio_bos_token_id,
            text_eos_token_id=tiny.tts_config.text_eos_token_id,
        ),
    )


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


def write_side_files(folder: Path) -> None:
    stored = config()
    stored.dtype = torch.float16
    stored.save_pretrained(folder)
    pictures = MiniCPMOImageProcessor(max_slice_nums=MAX_SLICES, scale_resolution=SLICE_RESOLUTION)
    MiniCPMOProcessor(pictures, WhisperFeatureExtractor(), tokenizer()).save_pretrained(folder)


def tokenizer() -> MiniCPMOTokenizerFast:
    return make_tokenizer(vocabulary())


def _thinned(replies: Sequence[str]) -> list[str]:
    """Balance the sizes of groups of replies with the same beginning."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for reply in replies:
        alike.setdefault(tuple(reply.split()[:2]), []).append(reply)
    balanced = []
    for group in alike.values():
        thinned = group[:: -(-len(group) // REPLIES_ALIKE)]
        balanced += thinned * (RARE_REPEATS if len(thinned) == 1 else 1)
    return balanced
