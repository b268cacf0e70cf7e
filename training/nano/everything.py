"""All stages on one machine: their commands, dependencies and execution."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

MOST_COMPOSERS: Final = 12  # processes that keep one GPU busy in "listen"
DONE_FOLDER: Final = "done"
LOG_FOLDER: Final = "logs"

# What the commands of `RECIPE` have in common.
PARTS: Final = {
    "BANKS": "--bank {work}/bank/quick --bank {work}/bank/foreign --bank {work}/bank/kokoro",
    "RECORD": "training.nano record --pico {inputs} --kokoro {inputs}/kokoro.onnx"
    " --styles {inputs}/styles --processes {cores}",
    "QUICK": "--engines flite,espeak,pico,hibari",
    "VOICE": "--data {work}/voice --out {work}/weights --steps 1000000",
    "VISION": "--stencils {work}/stencils.npz --out {work}/weights --device {seeing}",
    "ENCODER": "--encoder {inputs}/encoder.pt",
}
# Name, dependencies and command of each stage. `stages` inserts `PARTS` and fills in the braces;
# {minutes:0.3} is three tenths of all minutes. Stages that need all processors wait for each other.
RECIPE: Final = """
texts: training.nano.voice texts --downloads {inputs}/downloads --out {work}/texts.json
stencils: training.nano.vision stencils --out {work}/stencils.npz
record_voice texts: training.nano.voice record --texts {work}/texts.json --data {work}/voice
record_quick record_voice: RECORD --out {work}/bank/quick QUICK --minutes {minutes:0.07}
record_foreign record_quick: RECORD --out {work}/bank/foreign QUICK --no-own-voice
    --foreign {work}/texts.json --minutes {minutes:0.03}
record_kokoro record_foreign: RECORD --out {work}/bank/kokoro --engines kokoro --no-own-voice
    --minutes {minutes:0.17}
record_held_out record_kokoro: RECORD --out {work}/held_out --engines kokoro,flite,espeak
    --no-own-voice --held-out --seed 77 --minutes {minutes:0.03}
listen record_held_out: LISTENING listen BANKS ENCODER --out {work}/weights --device {device}
    --steps 1000000 --processes {composers} --minutes {minutes:0.5}
examine listen: training.nano examine --bank {work}/held_out ENCODER --out {work}/weights
    --device {device}
flow record_voice: training.nano.voice flow VOICE --device {speaking} --minutes {minutes:0.3}
hift record_voice: training.nano.voice hift VOICE --device {sounding} --minutes {minutes:0.5}
see stencils: training.nano.vision see VISION --minutes {minutes:0.3}
speech listen flow: training.nano.voice tts VOICE BANKS ENCODER --device {speaking}
    --minutes {minutes:0.2}
tell listen see: training.nano.vision tell VISION --llm {work}/weights --minutes {minutes:0.1}
asked tell: training.nano.vision asked VISION --llm {work}/weights BANKS ENCODER --processes 4
    --minutes {minutes:0.1}
export hift speech asked: training.nano export --weights {work}/weights --voice {work}/weights
    --recordings {work}/voice/voice.npz ENCODER --out {out}
"""


@dataclass(frozen=True)
class Machine:
    """Resources of the stages; without GPUs they train on the CPU."""

    cores: int
    gpus: int

    @property
    def listening_gpus(self) -> int:
        """GPUs of the longest stage, "listen": all but two."""
        return max(1, self.gpus - 2)

    def device(self, number: int) -> str:
        """Return the device of a stage concurrent with "listen"; the last GPU is shared."""
        if self.gpus == 0:
            return "cpu"
        return f"cuda:{min(self.listening_gpus + number, self.gpus - 1)}"


@dataclass(frozen=True)
class Stage:
    name: str
    after: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True)
class Minutes:
    """Time of the longest chain of stages; formats as a share of it."""

    whole: float

    def __format__(self, share: str) -> str:
        return f"{float(share) * self.whole:g}"


def stages(
    inputs: Path, work: Path, out: Path, minutes: float, machine: Machine
) -> tuple[Stage, ...]:
    """Return all stages in topological order; `minutes` is the time of the longest chain."""
    ranks = machine.listening_gpus
    listening = "training.nano"
    if ranks > 1:
        listening = f"torch.distributed.run --standalone --nproc-per-node {ranks} -m training.nano"
    values = {
        "inputs": inputs,
        "work": work,
        "out": out,
        "minutes": Minutes(minutes),
        "cores": machine.cores,
        "composers": max(1, min(MOST_COMPOSERS, machine.cores * 3 // 4 // ranks)),
        "device": "cuda" if machine.gpus else "cpu",
        "speaking": machine.device(0),
        "seeing": machine.device(1),
        "sounding": machine.device(2),
    }
    common = {**PARTS, "LISTENING": listening}
    filled = []
    for entry in re.split(r"\n(?! )", RECIPE.strip()):
        names, _, command = entry.partition(": ")
        name, *after = names.split()
        words = " ".join(common.get(word, word) for word in command.split()).split()
        filled.append(Stage(name, tuple(after), tuple(word.format_map(values) for word in words)))
    return tuple(filled)


def run(planned: Sequence[Stage], work: Path) -> list[str]:
    """Run each stage once its dependencies have succeeded; return the names of those not done.

    A stage that succeeded in an earlier run is skipped. Logs are in the work folder.
    """
    for folder in (DONE_FOLDER, LOG_FOLDER):
        (work / folder).mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(planned)) as pool:
        runs: dict[str, Future[bool]] = {}
        for stage in planned:
            before = [runs[name] for name in stage.after]
            runs[stage.name] = pool.submit(_run, stage, before, work, began_s)
    return [name for name, done in runs.items() if not done.result()]


def _run(stage: Stage, before: Sequence[Future[bool]], work: Path, began_s: float) -> bool:
    done = work / DONE_FOLDER / stage.name
    if done.exists():
        return True
    if not all(each.result() for each in before):
        return False
    log = work / LOG_FOLDER / f"{stage.name}.log"
    _say(began_s, f"{stage.name} begins, and writes to {log}")
    with log.open("ab") as file:
        status = subprocess.run(
            [sys.executable, "-m", *stage.command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
    _say(began_s, f"{stage.name} ended with {status}")
    if status == 0:
        done.touch()
    return status == 0


def _say(began_s: float, text: str) -> None:
    typer.echo(f"{(time.monotonic() - began_s) / 60:5.1f} min: {text}")
