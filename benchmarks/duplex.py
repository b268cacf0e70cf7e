"""Measures duplex units: `python -m benchmarks.duplex --random-full --device cuda`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.capacity import DeviceLoad, Speaking, measure_load
from benchmarks.conversation import measure_preparation, measure_scenario
from benchmarks.floors import measure_rates
from benchmarks.machine import describe
from benchmarks.rig import checkpoint_rig, random_full_rig
from benchmarks.scripted import MAX_TEXT_TOKENS, BenchmarkError, Plan, Script, parse_pattern
from benchmarks.summary import (
    EXIT_REFUSED,
    Run,
    Verdict,
    exit_unless_met,
    judge,
    memory_table,
    print_verdicts,
    spread_table,
    stage_table,
    write_json,
)
from MiniCPMO45.engine.kv_cache import CacheFullError
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.settings import CacheKind, LoadOptions, Weights, WindowMode, WindowSettings

MOST_BUILD_S = 60.0  # of the published model; a requirement
MOST_SPREAD = 1.3  # the same: 99th percentile per median over a long conversation
PICTURE_SIZE = (1280, 720)
VOICE_SAMPLE_S = 5.0  # of sound in the system prompt
UNITS_PER_MINUTE = 60


class Dtype(StrEnum):
    AUTO = "auto"  # bf16 on a GPU, fp32 on a CPU
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


def _dtype(name: Dtype, device: torch.device) -> torch.dtype:
    if name is Dtype.AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtypes = {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16, Dtype.FP32: torch.float32}
    return dtypes[name]


class Kind(StrEnum):
    OMNI = "omni"  # one picture a unit
    AUDIO = "audio"
    EARLY = "early"  # omni, with early audio
    AHEAD = "ahead"  # omni, each picture encoded before its unit's sound is complete
    PAGES = "pages"  # both, as the pages have it

    @property
    def picture_size(self) -> tuple[int, int] | None:
        return None if self is Kind.AUDIO else PICTURE_SIZE


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
Loads = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        help="Kind, how much of the time they speak (half, all), sessions at once, one "
        "measurement each, and its seconds: omni:all:1,8,64:20. May be given more than once.",
    ),
]
TextTokens = Annotated[
    int, typer.Option(min=1, max=MAX_TEXT_TOKENS, help="Text tokens of a speaking unit.")
]
Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        help="A conversation: omni (pictures of 1280x720), ahead (the same, encoded before the "
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
    scenario: Scenarios = None,
    units: Units = 200,
    warm_up: WarmUp = 12,
    pattern: Pattern = "llse",
    soak_minutes: SoakMinutes = 0,
    prepares: Prepares = 0,
    load: Loads = None,
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
        acts, place = parse_pattern(pattern), _device(device, threads)
        script = Script(acts, text_tokens, VOICE_SAMPLE_S)
        warm_up = -(-warm_up // len(acts)) * len(acts)
        extra = len(acts) if profile else 0
        plan = Plan(script, units, warm_up, extra, waits=wait, seed=seed)
        names = scenario or ([] if load or prepares or soak_minutes else [Kind.OMNI.value])
        plans = {name: _scenario(name, plan) for name in names}
        loads = {text: _load(text, text_tokens, seed) for text in load or ()}
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    if soak_minutes:
        plans[f"omni, {soak_minutes} minutes"] = _soak(plan, soak_minutes)
    options = LoadOptions(
        place, _dtype(dtype, place), weights, flow_steps=flow_steps, slots=slots, text_cache=cache
    )
    most_build_s = MOST_BUILD_S if checkpoint is None and place.type == "cuda" else None
    verdicts: list[Verdict] = []
    try:
        for run in _measure(checkpoint, options, seed, plans, prepares, loads, profile):
            verdicts = judge(run, most_build_s=most_build_s)
            write_json(json_path, run.as_record(verdicts))
    except (CheckpointError, CacheFullError, BenchmarkError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_REFUSED) from error
    print()
    print_verdicts(verdicts)
    exit_unless_met(verdicts)


def _scenario(text: str, plan: Plan) -> Plan:
    """Read a scenario, such as omni:4096; ValueError if it cannot be read."""
    name, _, length = text.partition(":")
    kind = Kind(name)
    script = replace(
        plan.script,
        context_tokens=int(length) if length else None,
        has_early_audio=kind in (Kind.EARLY, Kind.PAGES),
    )
    prefetches = kind in (Kind.AHEAD, Kind.PAGES)
    return replace(plan, script=script, picture_size=kind.picture_size, prefetches=prefetches)


def _soak(plan: Plan, minutes: int) -> Plan:
    return replace(
        plan,
        script=replace(plan.script, window=WindowSettings(mode=WindowMode.BASIC)),
        units=UNITS_PER_MINUTE * minutes,
        picture_size=PICTURE_SIZE,
        most_spread=MOST_SPREAD,
    )


def _load(text: str, text_tokens: int, seed: int) -> DeviceLoad:
    """Read a load, such as omni:all:1,8,64:20; ValueError if it cannot be read."""
    kind, speaking, sizes, seconds = text.split(":")
    if kind in (Kind.AHEAD, Kind.PAGES):
        raise ValueError("a load encodes its pictures with their units: ask for omni")
    return DeviceLoad(
        tuple(int(size) for size in sizes.split(",")),
        int(seconds),
        Speaking(speaking),
        text_tokens,
        Kind(kind).picture_size,
        seed,
        has_early_audio=kind == Kind.EARLY,
    )


def _device(name: str, threads: int) -> torch.device:
    """Return the device and set the number of CPU threads.

    One thread unless told otherwise, as in a worker: toy tensors gain nothing from more, and
    threads that wait for each other on a busy machine make a unit ten times slower.
    """
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; choose --device cpu")
    torch.set_num_threads(threads)
    return device


def _measure(
    checkpoint: str | None,
    options: LoadOptions,
    seed: int,
    plans: dict[str, Plan],
    prepares: int,
    loads: dict[str, DeviceLoad],
    profile: Path | None,
) -> Iterator[Run]:
    """Build and measure; print each part as it is done and yield everything measured so far."""
    device = options.device
    if checkpoint is None:
        rig = random_full_rig(options, seed)
    else:
        rig = checkpoint_rig(checkpoint, options, seed)
    machine = describe(device)
    rates = measure_rates(device, rig.executor.dtype)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of what the rates were measured with
    for name, value in {**machine, **asdict(rates), **rig.build}.items():
        print(f"{name:>20}  {f'{value:.4g}' if isinstance(value, float) else value}")
    record = {
        "checkpoint": checkpoint,
        "rig": options,
        "scenarios": plans,
        "prepares": prepares,
        "loads": loads,
    }
    run = Run(record, machine, rig.build, asdict(rates))
    for name, plan in plans.items():
        result = measure_scenario(rig, name, plan, rates, None if run.scenarios else profile)
        print(f"\n{name}\n{stage_table(result)}\n\n{memory_table(result.units)}", flush=True)
        run = replace(run, scenarios=(*run.scenarios, result))
        yield run
    if prepares:
        run = replace(run, preparing_ms=measure_preparation(rig, seed, prepares))
        print("\n" + spread_table("prepare, ms", run.preparing_ms), flush=True)
        yield run
    for name, load in loads.items():
        for measured in measure_load(rig, load):
            print(f"\n{name}\n{measured.table()}", flush=True)
            run = replace(run, loads=(*run.loads, {"name": name, **vars(measured)}))
            yield run


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    typer.run(main)
