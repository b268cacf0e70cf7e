"""Writes a checkpoint of the published size: `python -m benchmarks.full_checkpoint OUT`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
import typer

from benchmarks.summary import BYTES_PER_GB, EXIT_REFUSED
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.tiny.checkpoint import write_assets
from MiniCPMO45.tiny.tokenizer import TinyVocabulary, make_tokenizer, train_vocabulary
from MiniCPMO45.tiny.weights import tiny_model

VARIANT = "random"
SHARD_BYTES = 5_000_000_000  # about what a published file holds

Json = dict[str, Any]  # Any: a configuration file is JSON


def write_full_checkpoint(
    folder: Path,
    device: torch.device,
    seed: int = 0,
    changes: Mapping[str, object] = MappingProxyType({}),
    *,
    has_tiny_voice: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a checkpoint in the published layout and with the published ids of control tokens.

    Weights are drawn on the device. `changes` are other values for `config.json` by name,
    `part.name` inside a nested object; with a tiny voice vocoder and voice encoders are the tiny
    checkpoint's. A file is larger than `shard_bytes` only for a single tensor. FileExistsError if
    the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    config = full_config(changes)
    vocabulary = _padded(train_vocabulary(), config.vocab_size)
    MiniCPMOProcessor.of(make_tokenizer(vocabulary)).save_pretrained(folder)
    with device:
        write_assets(folder, seed, has_published_size=not has_tiny_voice)
        model = tiny_model(config, vocabulary, seed)
    model.save_pretrained(folder, max_shard_size=shard_bytes)


def _padded(vocabulary: TinyVocabulary, size: int) -> TinyVocabulary:
    """Add unused base entries up to `size` ids."""
    n_spare = size - vocabulary.size
    spare = tuple(f"<spare_{number}>" for number in range(n_spare))
    return replace(vocabulary, base=(*vocabulary.base, *spare), n_spare=n_spare)


def full_config(changes: Mapping[str, object]) -> MiniCPMOConfig:
    """Return the published configuration with changes, marked as of random weights."""
    values: Json = {"model_variant": VARIANT}
    for path, value in changes.items():
        part, _, name = path.rpartition(".")
        (values.setdefault(part, {}) if part else values)[name] = value
    return MiniCPMOConfig(**values)


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write, new or empty.")],
    device: Annotated[
        str | None, typer.Option(help="Where weights are drawn; by default a GPU if there is one.")
    ] = None,
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
