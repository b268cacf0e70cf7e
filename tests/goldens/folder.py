"""Reads a folder of recordings: tensors, metadata, inputs, checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from tests.goldens.report import ABSENT


class Recording(dict[str, np.ndarray]):
    """Tensors of one file by name, `ABSENT` if a name was not recorded."""

    def __missing__(self, name: str) -> Any:
        return ABSENT


@dataclass(frozen=True)
class GoldenFolder:
    """A folder in the layout its own README describes.

    Attributes:
        path: the folder.
        checkpoint: the tiny checkpoint beside the recordings.
    """

    path: Path
    checkpoint: Path

    def has(self, name: str) -> bool:
        """Return whether `name.safetensors` or `name.npz` was recorded."""
        return any((self.path / f"{name}{ext}").is_file() for ext in (".safetensors", ".npz"))

    def tensors(self, name: str) -> Recording:
        """Return all arrays of `name.safetensors` or `name.npz`; bfloat16 widened to float32."""
        archive = self.path / f"{name}.npz"
        if archive.is_file():
            with np.load(archive) as opened:
                return Recording((key, opened[key]) for key in opened.files)
        path = self.path / f"{name}.safetensors"
        with safe_open(path, "pt") as opened:
            has_bf16 = any(opened.get_slice(k).get_dtype() == "BF16" for k in opened.keys())
            if has_bf16:
                return Recording((k, opened.get_tensor(k).float().numpy()) for k in opened.keys())
        return Recording(load_file(path))

    def meta(self, name: str) -> Any:
        return json.loads((self.path / f"{name}.json").read_text(encoding="utf8"))

    def wav(self, name: str) -> np.ndarray:
        """`inputs/name` as float32 mono [n]: 16-bit samples / 32768."""
        samples, _ = soundfile.read(self.path / "inputs" / name, dtype="int16")
        return samples.astype(np.float32) / 32768.0

    def image(self, name: str) -> Image.Image:
        return Image.open(self.path / "inputs" / name).convert("RGB")

    @cached_property
    def config(self) -> MiniCPMOConfig:
        return MiniCPMOConfig.from_pretrained(self.checkpoint)

    def weights(self, prefix: str) -> dict[str, torch.Tensor]:
        """Checkpoint tensors under `prefix`, prefix removed, widened to float32."""
        found = {}
        for shard in sorted(self.checkpoint.glob("*.safetensors")):
            with safe_open(shard, "pt") as opened:
                for key in opened.keys():
                    if key.startswith(prefix):
                        found[key.removeprefix(prefix)] = opened.get_tensor(key).float()
        return found

    def token2wav_weights(self, name: str) -> dict[str, torch.Tensor]:
        """Tensors of `token2wav_weights/name.safetensors`, float32."""
        with safe_open(self.path / "token2wav_weights" / f"{name}.safetensors", "pt") as opened:
            return {key: opened.get_tensor(key).float() for key in opened.keys()}
