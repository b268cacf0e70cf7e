"""`python -m training.nano.voice STAGE`: trains the embedded model's voice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from training.nano.user_voices.make import folders
from training.nano.voice import stages
from training.nano.voice.flow_stage import train_flow
from training.nano.voice.hift_stage import train_hift
from training.nano.voice.stage_clock import StageClock

app = typer.Typer(add_completion=False, help="Stages of the voice, in order.")

Data = Annotated[Path, typer.Option(help="Folder with the recordings.")]
Out = Annotated[Path, typer.Option(help="Folder with the weights.")]
Device = Annotated[str, typer.Option(help="Where to train.")]
Steps = Annotated[int, typer.Option(help="Steps at most.")]
Minutes = Annotated[float, typer.Option(help="Minutes at most.")]
Batch = Annotated[int, typer.Option(help="Rows or segments per step.")]

app.command("texts")(stages.fetch_texts)
app.command("record")(stages.speak_texts)


@app.command()
def flow(
    data: Data,
    out: Out,
    device: Device = "cpu",
    steps: Steps = 20_000,
    minutes: Minutes = 6.0,
    batch: Batch = 32,
) -> None:
    """Train the flow: speech codes to mel."""
    recordings = stages.recordings_on(torch.device(device), data)
    train_flow(recordings, out, StageClock(steps, minutes), batch_size=batch)


@app.command()
def hift(
    data: Data,
    out: Out,
    device: Device = "cpu",
    steps: Steps = 40_000,
    minutes: Minutes = 14.0,
    batch: Batch = 32,
    discriminators_from: Annotated[
        float, typer.Option(help="Share of the stage without discriminators.")
    ] = 0.2,
) -> None:
    """Train the vocoder: mel to waveform."""
    recordings, clock = stages.recordings_on(torch.device(device), data), StageClock(steps, minutes)
    train_hift(recordings, out, clock, batch_size=batch, discriminators_from=discriminators_from)


@app.command()
def tts(
    data: Data,
    out: Out,
    device: Device = "cpu",
    steps: Steps = 20_000,
    minutes: Minutes = 7.0,
    batch: Annotated[int, typer.Option(help="Rows of text and codes per step.")] = 16_384,
    bank: Annotated[
        list[Path] | None, typer.Option(help="Recorded questions, for replies in conversations.")
    ] = None,
    encoder: Annotated[Path | None, typer.Option(help="The frozen encoder.")] = None,
) -> None:
    """Train the speech decoder: text and states of the language model to speech codes."""
    if bool(bank) != (encoder is not None):
        raise typer.BadParameter("conversations need --bank and --encoder, or neither")
    clock, banks = StageClock(steps, minutes), folders(bank or [])
    stages.learn_tts(data, out, clock, torch.device(device), batch, banks, encoder)


if __name__ == "__main__":
    app()
