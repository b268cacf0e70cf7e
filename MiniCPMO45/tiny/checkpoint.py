"""A complete checkpoint at toy size with random weights, in the published layout.

It is for tests and for starting the system without a download.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.tiny.assets import write_assets
from MiniCPMO45.tiny.config import VARIANT, generation_config, model_config, preprocessor_config
from MiniCPMO45.tiny.tokenizer import TinyVocabulary, train_vocabulary, write_json, write_tokenizer
from MiniCPMO45.tiny.weights import tiny_tensors

LAST_SHARD_PREFIXES = ("vpm.", "resampler.")  # the published last shard holds all of these
INDEX_FILE = "model.safetensors.index.json"


class TinyCheckpointError(ValueError):
    """The folder cannot take a checkpoint."""


def write_tiny_checkpoint(folder: Path, seed: int = 0, *, show_progress: bool = False) -> None:
    """Write a tiny checkpoint; the same seed gives the same bytes.

    Args:
        folder: a new or empty folder, or one with an earlier tiny checkpoint to replace.
        seed: of every random weight.
        show_progress: show a bar on standard error.

    Raises:
        TinyCheckpointError: the folder holds something else.
    """
    _require_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = train_vocabulary()
    steps = {
        "configuration": lambda: _write_configuration(folder, vocabulary),
        "tokenizer": lambda: write_tokenizer(folder, vocabulary),
        "weights": lambda: _write_weights(folder, vocabulary, seed),
        "assets": lambda: write_assets(folder, seed),
    }
    bar = tqdm(steps.items(), unit="part", disable=not show_progress)
    for name, write in bar:
        bar.set_description(f"writing {name}")
        write()


def _require_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TinyCheckpointError(f"{folder} is a file, not a folder")
    config = folder / "config.json"
    if not any(folder.iterdir()):
        return
    if not config.is_file() or _variant(config) != VARIANT:
        raise TinyCheckpointError(
            f"{folder} is not empty and holds no tiny checkpoint; name another folder"
        )


def _variant(config: Path) -> str:
    try:
        return str(json.loads(config.read_text(encoding="utf8")).get("model_variant"))
    except (ValueError, AttributeError):
        return ""


def _write_configuration(folder: Path, vocabulary: TinyVocabulary) -> None:
    write_json(folder / "config.json", model_config(vocabulary))
    write_json(folder / "generation_config.json", generation_config(vocabulary))
    write_json(folder / "preprocessor_config.json", preprocessor_config())


def _write_weights(folder: Path, vocabulary: TinyVocabulary, seed: int) -> None:
    config = MiniCPMOConfig.from_dict(model_config(vocabulary))
    shards: list[dict[str, Tensor]] = [{}, {}]
    for name, tensor in tiny_tensors(config, vocabulary, seed):
        shards[name.startswith(LAST_SHARD_PREFIXES)][name] = tensor
    write_shards(folder, shards, len(shards))


def write_shards(folder: Path, shards: Iterable[Mapping[str, Tensor]], count: int) -> None:
    """Write weight files and their index.

    Args:
        folder: an existing folder.
        shards: tensors on the CPU by name, for one file after the other.
        count: how many shards there are.
    """
    places, total_bytes = {}, 0
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        save_file(dict(shard), folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
        total_bytes += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(places.items()))}
    write_json(folder / INDEX_FILE, index)
