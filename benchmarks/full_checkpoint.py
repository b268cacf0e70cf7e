"""Writes a checkpoint of the published sizes: `python -m benchmarks.full_checkpoint OUT`.

Its weights are random and arranged as the tiny checkpoint's, so that it listens, speaks and stops.
Without a download it shows what the whole service takes: loading, memory and time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.tiny.checkpoint import (
    write_assets,
    write_campplus_onnx,
    write_speech_tokenizer_onnx,
    write_vocoder_weights,
    write_voice_sample,
)
from MiniCPMO45.tiny.tokenizer import TinyVocabulary, make_tokenizer, train_vocabulary
from MiniCPMO45.tiny.weights import tiny_model
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizerConfig

VARIANT = "random"
SHARD_BYTES = 5_000_000_000  # about what a published file holds
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
    vocabulary = _filled_up(train_vocabulary(), config.vocab_size)
    MiniCPMOProcessor.of(make_tokenizer(vocabulary)).save_pretrained(folder)
    if sizes.has_tiny_voice:
        write_assets(folder, seed)
    else:
        _write_voice(folder, device, seed)
    with device:
        model = tiny_model(config, vocabulary, seed)
    model.save_pretrained(folder, max_shard_size=sizes.shard_bytes)


def _filled_up(vocabulary: TinyVocabulary, size: int) -> TinyVocabulary:
    """Return the same with spare base entries, so that there are `size` ids in all."""
    n_spare = size - vocabulary.size
    spare = tuple(f"<spare_{number}>" for number in range(n_spare))
    return replace(vocabulary, base=(*vocabulary.base, *spare), n_spare=n_spare)


def full_config(changes: Mapping[str, object]) -> MiniCPMOConfig:
    """Return the published configuration, marked as one of random weights.

    Args:
        changes: other values by name, `part.name` inside a nested object.
    """
    values: Json = {"model_variant": VARIANT}
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
