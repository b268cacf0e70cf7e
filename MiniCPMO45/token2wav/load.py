"""Loads the vocoder's weights: `flow.pt` and `hift.pt` (or safetensors), never executing them.

Modules are built on the meta device and adopt the file's tensors, so no weight is held twice.
"""

from __future__ import annotations

import logging
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from MiniCPMO45.loading.checkpoint import adopt_weights
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import Token2WavConfig, read_flow_yaml
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT, fold_weight_norm
from MiniCPMO45.token2wav.vocoder import Token2Wav

logger = logging.getLogger(__name__)

_PREFIXES = ("module.", "generator.")
_OLD_WEIGHT_NORM = {  # names of weight-norm pairs before they became parametrizations
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a `.pt` or `.safetensors` file on the CPU.

    Pickled code is refused. Files in the zip format are mapped, not read.

    Raises:
        CheckpointError: the file is damaged, or more than plain tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        is_mapped = zipfile.is_zipfile(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except (pickle.UnpicklingError, RuntimeError, EOFError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as plain tensors: {error}") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no tensors by name")
    if isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def clean_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert tensor names to those of the modules.

    Removes a `generator.` or `module.` prefix and renames old weight-norm pairs.
    """
    cleaned = {}
    for name, value in tensors.items():
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        for old, new in _OLD_WEIGHT_NORM.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        cleaned[name] = value
    return cleaned


def build_token2wav(
    config: Token2WavConfig,
    flow: Mapping[str, Tensor],
    hift: Mapping[str, Tensor],
    options: LoadOptions | None = None,
) -> Token2Wav:
    options = options or LoadOptions()
    with torch.device("meta"):
        modules = Flow(config.flow), HiFT(config.hift)
    for module, tensors, name in zip(modules, (flow, hift), ("flow", "hift"), strict=True):
        adopt_weights(module, clean_names(tensors), name)
        fold_weight_norm(module.to(torch.float32))
        module.to(options.device).requires_grad_(False).eval()
    return Token2Wav(*modules, options)


def read_config(folder: Path) -> Token2WavConfig:
    """Read the sizes of the weights in a folder.

    They come from `config.json` (names `flow` and `hift`), else from the published `flow.yaml`,
    whose differences from the published sizes are logged; else they are the published ones.

    Raises:
        CheckpointError: the file with the sizes is damaged or names an unsupported variant.
    """
    published = Token2WavConfig()
    path = folder / "config.json"
    try:
        if path.is_file():
            return Token2WavConfig.model_validate_json(path.read_bytes())
        path = folder / "flow.yaml"
        if not path.is_file():
            return published
        config = Token2WavConfig(flow=read_flow_yaml(path))
    except ValueError as error:
        raise CheckpointError(f"{path} holds no sizes of a vocoder: {error}") from error
    if config != published:
        logger.warning("the vocoder's sizes differ from the published ones: %s", config.flow)
    return config


def load_token2wav(folder: Path, options: LoadOptions | None = None) -> Token2Wav:
    """Load the vocoder from a folder with `flow` and `hift` as `.safetensors` or `.pt`.

    Raises:
        CheckpointError: a file is missing or damaged, or the weights do not fit the sizes.
    """
    return build_token2wav(
        read_config(folder),
        read_state_dict(_find_weights(folder, "flow")),
        read_state_dict(_find_weights(folder, "hift")),
        options,
    )


def _find_weights(folder: Path, name: str) -> Path:
    for suffix in (".safetensors", ".pt"):
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return path
    raise CheckpointError(f"neither {name}.safetensors nor {name}.pt in {folder}")
