"""Command line of `python -m core.talk`; unusable input is one sentence and exit code 2."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console
from rich.markup import escape

from core.errors import OmniError
from core.processors.unified import UnifiedProcessor
from core.talk.conversation import Conversation, Row, make_table, read_inputs, summarise

UNUSABLE_INPUT = 2  # exit code


class Mode(StrEnum):
    DUPLEX = "duplex"
    HALF_DUPLEX = "half_duplex"
    STREAMING = "streaming"


NOUNS = {Mode.DUPLEX: "unit", Mode.HALF_DUPLEX: "turn", Mode.STREAMING: "reply"}

app = typer.Typer(add_completion=False)


@app.command()
def talk(
    checkpoint: Annotated[str, typer.Option(help="Checkpoint folder or hub id.")],
    out: Annotated[Path, typer.Option(help="Stereo WAV to write: you left, the model right.")],
    mode: Annotated[Mode, typer.Option(help="Mode of the conversation.")] = Mode.DUPLEX,
    audio: Annotated[Path | None, typer.Option(help="Audio file to feed.")] = None,
    video: Annotated[Path | None, typer.Option(help="Video to feed, one picture a second.")] = None,
    frames: Annotated[Path | None, typer.Option(help="Folder of pictures, one a second.")] = None,
    voice: Annotated[
        Path | None, typer.Option(help="Recording of the voice to speak with.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes every draw repeatable.")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1.")] = "cpu",
    overlay: Annotated[Path | None, typer.Option(help="A .pt file applied over it.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write every row here.")] = None,
    max_minutes: Annotated[float, typer.Option(help="Longest input accepted.")] = 30.0,
    text_only: Annotated[bool, typer.Option("--text-only", help="No speech.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
) -> None:
    """Hold a conversation with a recorded file as fast as possible; write both voices in sync."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        given = read_inputs(audio, video, frames, voice, max_duration_s=max_minutes * 60)
        for path in (out, json_path):
            if path is not None and not path.absolute().parent.is_dir():
                folder = path.absolute().parent
                _refuse(f"There is no folder {folder} to write {path.name} to.")
        processor = UnifiedProcessor(checkpoint, pt_path=overlay, device=device, seed=seed)
        if threads is not None or processor.model.model.config.model_variant:
            torch.set_num_threads(threads or 1)  # a second one slows toy models down
        conversation = Conversation(processor, given, system, speaks=not text_only)
        rows: list[Row] = []
        with Console(stderr=True).status("listening") as status:
            for row in conversation.hold(mode.value):
                rows.append(row)
                status.update(f"{row.at_s:.0f} of {given.duration_s:.0f} s")
        summary = summarise(rows, given.duration_s)
        conversation.timeline.write(out)
        if json_path is not None:
            report = {
                "mode": mode,
                "checkpoint": checkpoint,
                "seed": seed,
                "summary": summary,
                "rows": [asdict(row) for row in rows],
            }
            text = json.dumps(report, ensure_ascii=False, indent=2)
            json_path.write_text(text, encoding="utf8")
    except OmniError as error:
        _refuse(error.message)
    except OSError as error:
        _refuse(f"{error.filename or out}: {error.strerror}.")
    _print(rows, NOUNS[mode], summary)
    length_s = conversation.timeline.duration_s
    Console().print(f"[bold]{escape(str(out))}[/bold]: {length_s:.1f} s, you left, the model right")


def _print(rows: Sequence[Row], noun: str, summary: Mapping[str, Any]) -> None:
    console = Console()
    console.print(make_table(rows, noun=noun, width=console.width))
    medians = ", ".join(
        f"{name} {median_ms:.0f} ms"
        for name in ("listen", "speak")
        if (median_ms := summary[f"median_{name}_ms"]) is not None
    )
    if rows:
        console.print(f"medians: {medians}; real-time factor {summary['real_time_factor']:.2f}")
    else:
        console.print("No speech was found in the recording, so there was nothing to answer.")


def _refuse(sentence: str) -> NoReturn:
    Console(stderr=True).print(escape(sentence), soft_wrap=True)
    raise typer.Exit(UNUSABLE_INPUT)


if __name__ == "__main__":
    app()
