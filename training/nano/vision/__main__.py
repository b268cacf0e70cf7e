"""`python -m training.nano.vision STAGE`: trains the embedded model's vision encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from training.nano.optimizing import allow_tf32
from training.nano.user_voices.make import folders
from training.nano.vision import stages
from training.nano.vision.stencils import write_stencils
from training.nano.voice.stage_clock import StageClock

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Stages of the vision encoder, in order."
)

StencilsFile = Annotated[Path, typer.Option(help="Output of `stencils`.")]
Out = Annotated[Path, typer.Option(help="Folder with the weights.")]
Llm = Annotated[Path, typer.Option(help="Folder with the trained language model.")]
Device = Annotated[str, typer.Option(help="Where to train.")]
Steps = Annotated[int, typer.Option(help="Steps at most.")]
Minutes = Annotated[float, typer.Option(help="Minutes at most.")]
Batch = Annotated[int, typer.Option(help="Pictures, or conversations, per step.")]


@app.command()
def stencils(
    out: Annotated[Path, typer.Option(help="File to write.")],
    fonts: Annotated[Path, typer.Option(help="Folder of fonts.")] = Path(
        "/usr/share/fonts/truetype"
    ),
) -> None:
    """Draw shapes, and digits in the machine's fonts."""
    drawn, held_out = write_stencils(out, fonts)
    typer.echo(f"{drawn} stencils, {held_out} held out")


@app.command()
def see(
    stencils: StencilsFile,
    out: Out,
    device: Device = "cpu",
    steps: Steps = 200_000,
    minutes: Minutes = 6.0,
    batch: Batch = 192,
) -> None:
    """Train on attributes; needs no language model."""
    stages.learn_attributes(_setting(stencils, out, device, steps, minutes, batch, 1.5e-3))


@app.command()
def tell(
    stencils: StencilsFile,
    out: Out,
    llm: Llm,
    device: Device = "cpu",
    steps: Steps = 200_000,
    minutes: Minutes = 2.0,
    batch: Batch = 192,
) -> None:
    """Train on the embeddings of caption words."""
    stages.learn_words(_setting(stencils, out, device, steps, minutes, batch, 5e-4), llm)


@app.command()
def asked(
    stencils: StencilsFile,
    out: Out,
    llm: Llm,
    bank: Annotated[list[Path], typer.Option(help="Output of `record`; repeatable.")],
    encoder: Annotated[Path, typer.Option(help="The frozen audio encoder.")],
    device: Device = "cpu",
    steps: Steps = 200_000,
    minutes: Minutes = 2.0,
    batch: Batch = 96,
    processes: int = 0,
) -> None:
    """Train on questions about pictures, through the frozen language model."""
    setting = _setting(stencils, out, device, steps, minutes, batch, 2e-4)
    stages.learn_questions(setting, llm, folders(bank), encoder, processes)


@app.command()
def examine(
    stencils: StencilsFile, out: Out, llm: Llm, device: Device = "cpu", batch: Batch = 64
) -> None:
    """Evaluate on held-out pictures."""
    stages.examine(_setting(stencils, out, device, 1, 1.0, batch, 0.0), llm)


def _setting(
    stencils_file: Path, out: Path, device: str, steps: int, minutes: float, batch: int, rate: float
) -> stages.Setting:
    allow_tf32()
    clock = StageClock(steps, minutes)
    return stages.Setting(stencils_file, out, clock, torch.device(device), batch, rate)


if __name__ == "__main__":
    app()
