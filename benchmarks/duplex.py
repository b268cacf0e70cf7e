"""Measures duplex units: `python -m benchmarks.duplex --random-full --device cuda`.

Decisions are scripted, work is real: units listen and speak in turn, each speaking unit says a
fixed number of text tokens and one second of speech.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.conversation import BenchmarkError, Conversation, Plan
from benchmarks.machine import describe, waiter
from benchmarks.rig import Rig, RigOptions, checkpoint_rig, random_full_rig
from benchmarks.scripted import MAX_TEXT_TOKENS, parse_pattern
from benchmarks.summary import BYTES_PER_GB, Run, Verdict, judge, memory_table, stage_table
from MiniCPMO45.checkpoint_error import CheckpointError
from MiniCPMO45.kv_cache import CacheFullError

MOST_BYTES = 26e9  # the published model and one conversation; a requirement, not a measurement
MOST_BUILD_S = 60.0  # the same
PICTURE_SIZE = (1280, 720)
VOICE_SAMPLE_S = 5.0  # of sound in the system prompt
PROFILED_ROWS = 40
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


RandomFull = Annotated[
    bool, typer.Option("--random-full", help="The published sizes with random weights.")
]
Source = Annotated[str | None, typer.Option(help="A checkpoint folder or hub id instead.")]
Device = Annotated[str, typer.Option(help="cuda, cuda:1, cpu")]
DtypeName = Annotated[Dtype, typer.Option(help="auto is bf16 on a GPU, fp32 on a CPU")]
Units = Annotated[int, typer.Option(min=2, help="Measured units.")]
WarmUp = Annotated[
    int, typer.Option(min=0, help="Units before them, rounded up to whole patterns.")
]
Pattern = Annotated[
    str, typer.Option(help="What units do, repeated: l listen, s speak on, e speak and end.")
]
TextTokens = Annotated[
    int, typer.Option(min=1, max=MAX_TEXT_TOKENS, help="Text tokens of a speaking unit.")
]
Frames = Annotated[
    bool, typer.Option("--frames/--audio-only", help="One picture of 1280x720 a unit.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the GPU after each stage.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; by default one for --device cpu.")
]
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
    threads: Threads = None,
    dtype: DtypeName = Dtype.AUTO,
    units: Units = 30,
    warm_up: WarmUp = 4,
    pattern: Pattern = "ls",
    text_tokens: TextTokens = 10,
    frames: Frames = True,
    wait: Wait = True,
    flow_steps: FlowSteps = 5,
    seed: Seed = 0,
    json_path: JsonPath = None,
    profile: ProfilePath = None,
) -> None:
    """Measure duplex units; exits with 1 if a condition is not met, 2 if the options are wrong."""
    if random_full == (checkpoint is not None):
        raise typer.BadParameter("choose one of --random-full and --checkpoint")
    try:
        acts, place = parse_pattern(pattern), _place(device, threads)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    plan = Plan(
        units=units,
        warm_up=-(-warm_up // len(acts)) * len(acts),
        extra=len(acts) if profile else 0,
        pattern=acts,
        text_tokens=text_tokens,
        picture_size=PICTURE_SIZE if frames else None,
        voice_sample_s=VOICE_SAMPLE_S,
        waits=wait,
        seed=seed,
    )
    rig_options = RigOptions(place, _dtype(dtype, place), seed=seed, flow_steps=flow_steps)
    try:
        conversation = Conversation(_build(checkpoint, rig_options), plan)
        run = _measure(conversation, checkpoint, rig_options)
    except (CheckpointError, CacheFullError, BenchmarkError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_REFUSED) from error
    is_limited = random_full and place.type == "cuda"
    verdicts = judge(
        run,
        most_bytes=MOST_BYTES if is_limited else None,
        most_build_s=MOST_BUILD_S if is_limited else None,
    )
    _print(run, verdicts)
    if json_path is not None:
        text = json.dumps(run.as_record(verdicts), indent=1)
        json_path.write_text(text + "\n", encoding="utf8")
    if profile is not None:
        _profile(conversation, profile)
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


def _measure(conversation: Conversation, checkpoint: str | None, options: RigOptions) -> Run:
    measured = tuple(conversation.measure())
    asked = {
        "checkpoint": checkpoint,
        "dtype": str(options.dtype),
        "flow_steps": options.flow_steps,
        "voice_s": options.voice_s,
        **asdict(conversation.plan),
        "pattern": "".join(conversation.plan.pattern),
    }
    return Run(asked, describe(options.device), conversation.rig.build, measured)


def _place(name: str, threads: int | None) -> torch.device:
    """Return the device and settle the number of CPU threads.

    One thread where the CPU does the work: toy tensors gain nothing from more, and threads that
    wait for each other on a busy machine make a unit ten times slower.
    """
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; choose --device cpu")
    if threads is not None or device.type == "cpu":
        torch.set_num_threads(threads or 1)
    return device


def _build(checkpoint: str | None, options: RigOptions) -> Rig:
    wait = waiter(options.device)
    if checkpoint is not None:
        return checkpoint_rig(checkpoint, options, wait)
    return random_full_rig(options, wait)


def _profile(conversation: Conversation, path: Path) -> None:
    """Run one round of the pattern under the profiler and write what took longest."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    is_gpu = conversation.rig.executor.device.type == "cuda"
    if is_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in conversation.plan.pattern:
            conversation.run_unit(-1)
    averages = profiler.key_averages()
    orders = ["self_cpu_time_total", *(["self_device_time_total"] if is_gpu else [])]
    tables = [averages.table(sort_by=order, row_limit=PROFILED_ROWS) for order in orders]
    path.write_text("\n\n".join(tables) + "\n", encoding="utf8")


def _print(run: Run, verdicts: list[Verdict]) -> None:
    for name, value in {**run.machine, **run.options}.items():
        print(f"{name:>20}  {value}")
    build = run.build
    print(
        f"\nbuilt in {build['seconds']:.1f} s: "
        f"model {build['model_parameters']:,} parameters, "
        f"{build['model_bytes'] / BYTES_PER_GB:.2f} GB in {build['model_seconds']:.1f} s; "
        f"vocoder {build['vocoder_parameters']:,} parameters, "
        f"{build['vocoder_bytes'] / BYTES_PER_GB:.2f} GB in {build['vocoder_seconds']:.1f} s"
    )
    print("\nMemory after each unit, GB\n" + memory_table(run.units))
    print("\n" + stage_table(run.units) + "\n")
    for verdict in verdicts:
        print(f"{'ok  ' if verdict.passed else 'FAIL'}  {verdict.name}: {verdict.text}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    typer.run(main)
