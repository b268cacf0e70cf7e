"""A checkpoint small enough to be written in every test, with the real modules' names."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.rig import random_weights
from MiniCPMO45.configuration_minicpmo import AudioConfig, MiniCPMOConfig, TTSConfig, VisionConfig
from MiniCPMO45.loading.checkpoint import INDEX_FILE, SINGLE_FILE
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration

TOY = MiniCPMOConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=70,
    query_num=4,
    model_variant="toy",
    vision_config=VisionConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
    ),
    audio_config=AudioConfig(
        d_model=16,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        max_source_positions=20,
    ),
    tts_config=TTSConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        llm_dim=32,
        num_text_tokens=80,
        num_audio_tokens=30,
        vocab_size=50,
    ),
)


def empty_model(config: MiniCPMOConfig = TOY) -> MiniCPMOForConditionalGeneration:
    with torch.device("meta"):
        return MiniCPMOForConditionalGeneration(config)


def write_config(folder: Path, **changes: object) -> None:
    values = TOY.to_dict() | changes
    (folder / "config.json").write_text(json.dumps(values), encoding="utf8")


def write_single(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / SINGLE_FILE)


def write_shards(folder: Path, tensors: dict[str, Tensor], n_shards: int = 3) -> None:
    weight_map: dict[str, str] = {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::n_shards])
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf8")


def toy_weights(seed: int = 3) -> dict[str, Tensor]:
    model = empty_model()
    random_weights(model, device="cpu", dtype=torch.bfloat16, seed=seed)
    return dict(model.state_dict())
