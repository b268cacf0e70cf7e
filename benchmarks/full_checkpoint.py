"""Writes a checkpoint of the published sizes: `python -m benchmarks.full_checkpoint OUT`.

Its weights are random and arranged as the tiny checkpoint's, so that it listens, speaks and stops.
Without a download it shows what the whole service takes: loading, memory and time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.loading.checkpoint import expected_shapes
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.tiny.assets import (
    write_assets,
    write_campplus_onnx,
    write_speech_tokenizer_onnx,
    write_vocoder_weights,
    write_voice_sample,
)
from MiniCPMO45.tiny.checkpoint import write_shards
from MiniCPMO45.tiny.config import generation_config, preprocessor_config
from MiniCPMO45.tiny.tokenizer import TinyVocabulary, train_vocabulary, write_json, write_tokenizer
from MiniCPMO45.tiny.weights import tiny_tensors
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizerConfig

VARIANT = "random"
SHARD_BYTES = 5_000_000_000  # about what a published file holds
ITEM_BYTES = 2  # bfloat16
BYTES_PER_GB = 1e9
EXIT_REFUSED = 2

Json = dict[str, Any]  # Any: a configuration file is JSON


@dataclass(frozen=True)
class Sizes:
    """What to write; the published sizes unless said otherwise.

    Attributes:
        changes: values for `config.json` by name, `part.name` inside a nested object.
        has_tiny_voice: vocoder and voice models are the tiny checkpoint's.
        shard_bytes: most of one file, unless a single tensor is larger.
    """

    changes: Mapping[str, object] = field(default_factory=dict)
    has_tiny_voice: bool = False
    shard_bytes: int = SHARD_BYTES


def write_full_checkpoint(
    folder: Path, device: torch.device, seed: int = 0, sizes: Sizes | None = None
) -> None:
    """Write a checkpoint in the published layout and with the published ids of control tokens.

    Args:
        folder: a new or empty folder.
        device: where the weights are drawn.
        seed: of every random weight.
        sizes: the published ones when None.

    Raises:
        FileExistsError: the folder is not empty.
    """
    sizes = sizes or Sizes()
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    config = full_config(sizes.changes)
    config.save_pretrained(folder)
    vocabulary = train_vocabulary().filled_up(config.vocab_size)
    write_json(folder / "generation_config.json", generation_config(vocabulary))
    write_json(folder / "preprocessor_config.json", preprocessor_config())
    write_tokenizer(folder, vocabulary)
    if sizes.has_tiny_voice:
        write_assets(folder, seed)
    else:
        _write_voice(folder, device, seed)
    with device:
        _write_weights(folder, config, vocabulary, seed, sizes.shard_bytes)


def full_config(changes: Mapping[str, object]) -> MiniCPMOConfig:
    """Return the published configuration, marked as one of random weights.

    Args:
        changes: other values by name, `part.name` inside a nested object.
    """
    values: Json = {"model_variant": VARIANT, "dtype": "bfloat16", "architectures": ["MiniCPMO"]}
    for path, value in changes.items():
        part, _, name = path.rpartition(".")
        (values.setdefault(part, {}) if part else values)[name] = value
    return MiniCPMOConfig(**values)


def _write_voice(folder: Path, device: torch.device, seed: int) -> None:
    """Write `assets`; what says nothing of its sizes is taken to have the published ones."""
    target = folder / "assets" / "token2wav"
    target.mkdir(parents=True, exist_ok=True)
    graph = target / "speech_tokenizer_v2_25hz.onnx"
    write_speech_tokenizer_onnx(graph, seed, SpeechTokenizerConfig())
    write_campplus_onnx(target / "campplus.onnx", seed)
    write_voice_sample(folder / "assets" / "system_ref_audio.wav")
    with device:
        write_vocoder_weights(target, seed, Token2WavConfig())


def _write_weights(
    folder: Path, config: MiniCPMOConfig, vocabulary: TinyVocabulary, seed: int, shard_bytes: int
) -> None:
    lengths = shard_lengths(config, shard_bytes)
    drawn = tiny_tensors(config, vocabulary, seed)
    write_shards(folder, _shards(drawn, lengths), len(lengths))


def shard_lengths(config: MiniCPMOConfig, shard_bytes: int) -> list[int]:
    """Return how many tensors go into each weight file, in the model's order.

    Args:
        config: sizes.
        shard_bytes: most of one file, unless a single tensor is larger.
    """
    with torch.device("meta"):
        shapes = expected_shapes(MiniCPMOForConditionalGeneration(config))
    lengths, held_bytes = [0], 0
    for shape in shapes.values():
        n_bytes = prod(shape) * ITEM_BYTES
        if lengths[-1] and held_bytes + n_bytes > shard_bytes:
            lengths.append(0)
            held_bytes = 0
        lengths[-1] += 1
        held_bytes += n_bytes
    return lengths


def _shards(drawn: Iterator[tuple[str, Tensor]], lengths: list[int]) -> Iterator[dict[str, Tensor]]:
    for length in lengths:
        yield {name: tensor.cpu() for name, tensor in islice(drawn, length)}


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write, new or empty.")],
    device: Annotated[str | None, typer.Option(help="Draws them; a card if there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Write 20 GB of random weights that take turns."""
    start_s = time.monotonic()
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        write_full_checkpoint(out, torch.device(chosen), seed)
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from None
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    took_s = time.monotonic() - start_s
    typer.echo(f"{written / BYTES_PER_GB:.2f} GB of RANDOM weights in {took_s:.1f} s: {out}")


if __name__ == "__main__":
    typer.run(main)
