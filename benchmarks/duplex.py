"""Measures duplex units: `python -m benchmarks.duplex --random-full --device cuda`.

Decisions are scripted, work is real: units listen and speak in turn, each speaking unit says a
fixed number of text tokens and one second of speech.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.conversation import Plan
from benchmarks.crowd import Crowd, CrowdPlan, CrowdResult, Speaking, crowd_table
from benchmarks.machine import describe, waiter
from benchmarks.preparing import Preparing
from benchmarks.rig import Rig, RigOptions, checkpoint_rig, random_full_rig
from benchmarks.scripted import MAX_TEXT_TOKENS, parse_pattern
from benchmarks.summary import Run, Verdict, judge, memory_table, spread_table, stage_table
from benchmarks.talker import BenchmarkError, Script
from benchmarks.talks import Talks
from MiniCPMO45.engine.kv_cache import CacheFullError
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.settings import CacheKind, Weights, WindowMode, WindowSettings

MOST_BYTES = 26e9  # plainly run, the published model and one conversation; a requirement
MOST_BUILD_S = 60.0  # the same
MOST_SPREAD = 1.3  # the same: 99th percentile per median over a long conversation
PICTURE_SIZE = (1280, 720)
VOICE_SAMPLE_S = 5.0  # of sound in the system prompt
UNITS_PER_MINUTE = 60
EXIT_FAILED = 1
EXIT_REFUSED = 2


class Dtype(StrEnum):
    """What the model's weights are stored as."""

    AUTO = "auto"  # bf16 on a GPU, fp32 on a CPU
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


def _dtype(name: Dtype, device: torch.device) -> torch.dtype:
    if name is Dtype.AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {
        Dtype.BF16: torch.bfloat16,
        Dtype.FP16: torch.float16,
        Dtype.FP32: torch.float32,
    }[name]


class Kind(StrEnum):
    """What a conversation is like."""

    OMNI = "omni"  # one picture a unit
    AUDIO = "audio"
    EARLY = "early"  # omni, with the beginning of each unit's sound ahead
    AHEAD = "ahead"  # omni, each picture looked at before its unit's sound is complete
    PAGES = "pages"  # both, as the pages have it

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """Width and height of each unit's picture."""
        return None if self is Kind.AUDIO else PICTURE_SIZE


@dataclass(frozen=True)
class Asked:
    """What is measured, and on what.

    Attributes:
        checkpoint: folder or hub id; None for random weights.
        rig: how it is built.
        talks: conversations by name, one at a time.
        prepares: preparations of each kind; 0 for none.
        crowds: many conversations at once, by name.
    """

    checkpoint: str | None
    rig: RigOptions
    talks: dict[str, Plan]
    prepares: int
    crowds: dict[str, CrowdPlan]

    def as_record(self) -> dict[str, object]:
        """Return it as plain values."""
        record = asdict(self)
        record["rig"] |= {"device": str(self.rig.device), "dtype": str(self.rig.dtype)}
        return record


RandomFull = Annotated[
    bool, typer.Option("--random-full", help="The published sizes with random weights.")
]
Source = Annotated[str | None, typer.Option(help="A checkpoint folder or hub id instead.")]
Device = Annotated[str, typer.Option(help="cuda, cuda:1, cpu")]
DtypeName = Annotated[Dtype, typer.Option(help="auto is bf16 on a GPU, fp32 on a CPU")]
WeightsName = Annotated[Weights, typer.Option(help="How the language model's weights are kept.")]
Slots = Annotated[
    int, typer.Option(min=1, help="Conversations at once the card is made ready for.")
]
Units = Annotated[int, typer.Option(min=1, help="Measured units of each conversation.")]
WarmUp = Annotated[
    int, typer.Option(min=0, help="Units before them, rounded up to whole patterns.")
]
Pattern = Annotated[
    str, typer.Option(help="What units do, repeated: l listen, s speak on, e speak and end.")
]
SoakMinutes = Annotated[
    int, typer.Option(min=0, help="Minutes of one more conversation, with the window on.")
]
Prepares = Annotated[int, typer.Option(min=0, help="Preparations with a known and a new voice.")]
Crowds = Annotated[
    list[str] | None,
    typer.Option(
        "--crowd",
        help="Kind, how much of the time they speak (half, all), sessions at once, one "
        "measurement each, and its seconds: omni:all:1,8,64:20. May be given more than once.",
    ),
]
TextTokens = Annotated[
    int, typer.Option(min=1, max=MAX_TEXT_TOKENS, help="Text tokens of a speaking unit.")
]
TalkNames = Annotated[
    list[str] | None,
    typer.Option(
        "--talk",
        help="A conversation: omni (pictures of 1280x720), ahead (the same, looked at before the "
        "sound is complete), early, pages (both), or audio, and the length to keep the cache at, "
        "if any: omni:4096. May be given more than once.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the GPU after each stage.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Cache = Annotated[CacheKind, typer.Option(help="How keys and values are held.")]
FlowSteps = Annotated[int, typer.Option(min=1, help="ODE steps of the vocoder.")]
Seed = Annotated[int, typer.Option(help="Of weights, inputs and draws.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write everything measured here.")]
ProfilePath = Annotated[
    Path | None, typer.Option(help="Profile one more round of the pattern into this file.")
]


def main(
    random_full: RandomFull = False,
    checkpoint: Source = None,
    device: Device = "cuda",
    threads: Threads = 1,
    dtype: DtypeName = Dtype.AUTO,
    weights: WeightsName = Weights.BF16,
    slots: Slots = 64,
    talk: TalkNames = None,
    units: Units = 200,
    warm_up: WarmUp = 12,
    pattern: Pattern = "llse",
    soak_minutes: SoakMinutes = 0,
    prepares: Prepares = 0,
    crowd: Crowds = None,
    text_tokens: TextTokens = 10,
    wait: Wait = True,
    flow_steps: FlowSteps = 5,
    cache: Cache = CacheKind.BF16,
    seed: Seed = 0,
    json_path: JsonPath = None,
    profile: ProfilePath = None,
) -> None:
    """Measure duplex units; exits with 1 if a condition is not met, 2 if the options are wrong."""
    if random_full == (checkpoint is not None):
        raise typer.BadParameter("choose one of --random-full and --checkpoint")
    try:
        acts, place = parse_pattern(pattern), _place(device, threads)
        crowds = {text: _crowd(text, text_tokens, seed) for text in crowd or ()}
        is_nothing_asked = not (talk or crowd or prepares or soak_minutes)
        names = [Kind.OMNI.value] if is_nothing_asked else talk or []
        kinds = {name: _kind_and_length(name) for name in names}
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    plan = Plan(
        Script(acts, text_tokens, VOICE_SAMPLE_S),
        units,
        -(-warm_up // len(acts)) * len(acts),
        len(acts) if profile else 0,
        waits=wait,
        seed=seed,
    )
    talks = {name: _of_kind(kind, plan, length) for name, (kind, length) in kinds.items()}
    if soak_minutes:
        soak = _of_kind(Kind.OMNI, plan, None)
        kept = replace(soak.script, window=WindowSettings(mode=WindowMode.BASIC))
        talks[f"omni, {soak_minutes} minutes"] = replace(
            soak, script=kept, units=UNITS_PER_MINUTE * soak_minutes, most_spread=MOST_SPREAD
        )
    options = RigOptions(place, _dtype(dtype, place), weights, slots, seed, flow_steps, cache=cache)
    try:
        verdicts = _report(Asked(checkpoint, options, talks, prepares, crowds), json_path, profile)
    except (CheckpointError, CacheFullError, BenchmarkError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_REFUSED) from error
    print()
    for verdict in verdicts:
        print(f"{'ok  ' if verdict.passed else 'FAIL'}  {verdict.name}: {verdict.text}")
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


def _of_kind(kind: Kind, plan: Plan, length: int | None) -> Plan:
    is_early = kind in (Kind.EARLY, Kind.PAGES)
    script = replace(plan.script, context_tokens=length, has_early_audio=is_early)
    looks_ahead = kind in (Kind.AHEAD, Kind.PAGES)
    return replace(plan, script=script, picture_size=kind.picture_size, looks_ahead=looks_ahead)


def _kind_and_length(text: str) -> tuple[Kind, int | None]:
    """Read what a conversation is like.

    Raises:
        ValueError: it cannot be read.
    """
    kind, _, length = text.partition(":")
    return Kind(kind), int(length) if length else None


def _report(asked: Asked, json_path: Path | None, profile: Path | None) -> list[Verdict]:
    """Measure, and write everything down after each part; return the conditions at the end."""
    is_limited = asked.checkpoint is None and asked.rig.device.type == "cuda"
    verdicts: list[Verdict] = []
    for run in _measure(asked, profile):
        verdicts = judge(run, most_bytes=None, most_build_s=MOST_BUILD_S if is_limited else None)
        if json_path is not None:
            text = json.dumps(run.as_record(verdicts), indent=1)
            json_path.write_text(text + "\n", encoding="utf8")
    return verdicts


def _crowd(text: str, text_tokens: int, seed: int) -> CrowdPlan:
    """Read what is asked of a crowd.

    Raises:
        ValueError: it cannot be read.
    """
    kind, speaking, sizes, seconds = text.split(":")
    if kind in (Kind.AHEAD, Kind.PAGES):
        raise ValueError("crowds look at their pictures with their units: ask for omni")
    return CrowdPlan(
        tuple(int(size) for size in sizes.split(",")),
        int(seconds),
        Speaking(speaking),
        text_tokens,
        Kind(kind).picture_size,
        seed,
    )


def _place(name: str, threads: int) -> torch.device:
    """Return the device and settle the number of CPU threads.

    One thread unless told otherwise, as in a worker: toy tensors gain nothing from more, and
    threads that wait for each other on a busy machine make a unit ten times slower.
    """
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; choose --device cpu")
    torch.set_num_threads(threads)
    return device


def _measure(asked: Asked, profile: Path | None) -> Iterator[Run]:
    """Build and measure; print each part as it is done and yield everything measured so far."""
    device, wait = asked.rig.device, waiter(asked.rig.device)
    if asked.checkpoint is not None:
        rig = checkpoint_rig(asked.checkpoint, asked.rig, wait)
    else:
        rig = random_full_rig(asked.rig, wait)
    machine = describe(device)
    held = Talks(rig)
    rates = held.rates_record()
    for name, value in {**machine, **rates, **rig.build}.items():
        print(f"{name:>20}  {f'{value:.4g}' if isinstance(value, float) else value}")
    run = Run(asked.as_record(), machine, rig.build, rates)
    for name, plan in asked.talks.items():
        talk = held.hold(name, plan, None if run.talks else profile)
        print(f"\n{name}\n{stage_table(talk)}\n\n{memory_table(talk.units)}", flush=True)
        run = replace(run, talks=(*run.talks, talk))
        yield run
    if asked.prepares:
        run = replace(run, preparing_ms=Preparing(rig, asked.rig.seed).measure(asked.prepares))
        print("\n" + spread_table("prepare, ms", run.preparing_ms), flush=True)
        yield run
    for name, crowd in asked.crowds.items():
        for result in _hold_crowd(rig, crowd):
            print(f"\n{name}\n{crowd_table([result])}", flush=True)
            run = replace(run, crowd=(*run.crowd, {"name": name, **result.as_record()}))
            yield run


def _hold_crowd(rig: Rig, plan: CrowdPlan) -> Iterator[CrowdResult]:
    crowd = Crowd(rig, plan)
    try:
        yield from crowd.measure()
    finally:
        crowd.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    typer.run(main)
