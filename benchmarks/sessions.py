"""Load test of concurrent or consecutive conversations: `python -m benchmarks.sessions`."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import processes
from benchmarks.launched import Device, LaunchedSystem, Plan
from benchmarks.paced_client import PLACE_LIMIT_S, visit
from benchmarks.session_load import IDLE_LIMIT_S, Load, noise_chunk, print_memory, run_load
from benchmarks.summary import BYTES_PER_MIB, Verdict, exit_unless_met, print_verdicts, write_json
from core.schemas.limits import SLOTS_MAX

MOST_GROWN_BYTES = 4 * BYTES_PER_MIB  # growth of an allocator that is not a leak
SAMPLES = 20  # of memory during a churn
NO_LIMIT = 1_000_000
MODEL_START_LIMIT_S = 300.0  # weights are read, kernels compiled and graphs captured


@dataclass(frozen=True)
class Options:
    loads: tuple[Load, ...]  # one after the other; unused with `churn`
    churn: int = 0  # sessions opened and closed instead, if not 0
    at_once: int = 8  # concurrent sessions of a churn
    workers: int = 1
    is_recorded: bool = False
    checkpoint: Path | None = None  # model of the workers; None for the fake backend
    device: Device = Device.CPU
    cache: str = "bf16"  # format of the KV cache
    weights: str = "bf16"  # format of the language model's weights
    slots: int | None = None  # per worker; None for what its card or the largest load needs

    @property
    def churn_share(self) -> int:
        """Number of sessions between two samples of memory."""
        return max(1, self.churn // SAMPLES)


def plan_of(options: Options) -> Plan:
    """Return the system for the options; a worker with a card chooses its number of slots."""
    service: dict[str, object] = {"max_queue_size": 100_000}
    if options.slots is not None:
        service["worker_slots"] = options.slots
    elif options.device is Device.CPU:
        most = options.at_once if options.churn else max(load.sessions for load in options.loads)
        slots = -(-most // options.workers)
        if slots > SLOTS_MAX:
            raise typer.BadParameter(
                f"{options.workers} workers take {options.workers * SLOTS_MAX} sessions"
            )
        service["worker_slots"] = slots
    limits = {"requests_per_minute": NO_LIMIT, "connections_per_client": NO_LIMIT}
    config: dict[str, dict[str, Any]] = {  # Any: a configuration file is JSON
        "service": service,
        "limits": limits,
        "recording": {"enabled": options.is_recorded},
        "logging": {"level": "WARNING"},
    }
    if options.checkpoint is None:
        return Plan(workers=options.workers, backend="fake", config=config)
    kept = {"cache": options.cache, "weights": options.weights}
    config["model"] = {"model_path": str(options.checkpoint.resolve()), **kept}
    config["logging"] = {"level": "INFO"}
    return Plan(
        workers=options.workers,
        backend="real",
        config=config,
        device=options.device,
        start_limit_s=MODEL_START_LIMIT_S,
    )


def measure_loads(system: LaunchedSystem, options: Options) -> dict[str, Any]:
    results = []
    for load in options.loads:
        results.append(run_load(system, load))
        results[-1].print()
        print_verdicts(results[-1].verdicts())
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    return {"loads": [result.record() for result in results], "verdicts": verdicts}


async def one_after_another(system: LaunchedSystem, options: Options) -> list[dict[str, int]]:
    """Open and close sessions; return the memory in use after each twentieth of them."""
    chunk = noise_chunk()
    room = asyncio.Semaphore(options.at_once)

    async def one(index: int) -> None:
        async with room:
            await visit(system.ws(f"/ws/duplex/adx_churn_{index}"), chunk)

    samples = []
    share = options.churn_share
    for start in range(0, options.churn, share):
        async with asyncio.TaskGroup() as group:
            for index in range(start, min(start + share, options.churn)):
                group.create_task(one(index))
        await asyncio.to_thread(system.wait_until_idle, IDLE_LIMIT_S)
        samples.append(system.resident_bytes())
    return samples


def judge_churn(samples: list[dict[str, int]]) -> list[Verdict]:
    """Compare the later half of each program's memory samples with the earlier, if there is one."""
    half = len(samples) // 2
    verdicts = []
    for name in samples[0] if half else ():
        early = max(sample[name] for sample in samples[:half])
        grown = max(sample[name] for sample in samples[half:]) - early
        text = f"{grown / BYTES_PER_MIB:+.2f} MiB from the first half to the second"
        verdicts.append(Verdict(f"memory of {name}", grown <= MOST_GROWN_BYTES, text))
    return verdicts


def measure_churn(system: LaunchedSystem, options: Options) -> dict[str, Any]:
    samples = asyncio.run(one_after_another(system, options))
    share = options.churn_share
    ended = [*range(share, options.churn, share), options.churn]
    print_memory({f"{count}": sample for count, sample in zip(ended, samples, strict=True)})
    verdicts = judge_churn(samples)
    print_verdicts(verdicts)
    return {"resident_bytes": samples, "verdicts": verdicts}


def main(
    sessions: Annotated[int, typer.Option(min=1, help="At once.")] = 200,
    units: Annotated[int, typer.Option(min=1, help="Of each session.")] = 30,
    pictures: Annotated[bool, typer.Option(help="Send one with each unit.")] = False,
    load: Annotated[
        list[str] | None, typer.Option(help="audio:64:60 or omni:64:60 instead; may be repeated.")
    ] = None,
    patience: Annotated[float, typer.Option(help="Longest wait for a place, s.")] = PLACE_LIMIT_S,
    churn: Annotated[int, typer.Option(min=0, help="Sessions opened and closed instead.")] = 0,
    at_once: Annotated[int, typer.Option(min=1, help="Of a churn.")] = 8,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="4; 1 with a model.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Of the workers, else fake.")] = None,
    device: Annotated[Device, typer.Option(help="Of the checkpoint.")] = Device.CPU,
    cache: Annotated[
        list[str] | None, typer.Option(help="bf16 or int8; given twice, one after the other.")
    ] = None,
    weights: Annotated[str, typer.Option(help="bf16, fp8 or int4.")] = "bf16",
    slots: Annotated[int | None, typer.Option(min=1, help="Of each worker.")] = None,
    record: Annotated[bool, typer.Option(help="Record the sessions.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Keep logs and the like here.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write it all here.")] = None,
) -> None:
    """Load the system with sessions; exits with 1 if a condition is not met."""
    try:
        loads = tuple(Load.parse(text, patience) for text in load or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    options = Options(
        loads or (Load(sessions, units, pictures, patience),),
        churn,
        at_once,
        workers or (4 if checkpoint is None else 1),
        record,
        checkpoint,
        device,
        weights=weights,
        slots=slots,
    )
    verdicts: list[Verdict] = []
    for kind in cache or (options.cache,):
        path = json_path.with_stem(f"{json_path.stem}-{kind}") if json_path and cache else json_path
        verdicts += measure(replace(options, cache=kind), folder, path)
    exit_unless_met(verdicts)


def measure(options: Options, folder: Path | None, json_path: Path | None) -> list[Verdict]:
    """Start a system, measure it and write the record; return the conditions."""
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        Path(place).mkdir(parents=True, exist_ok=True)
        with LaunchedSystem(Path(place), plan_of(options)) as system:
            start_s, kinds = system.start_s, f"cache {options.cache}, weights {options.weights}"
            print(f"up after {start_s:.1f} s, {kinds}")
            measured = (measure_churn if options.churn else measure_loads)(system, options)
    host = processes.describe_host("websockets", "uvicorn", "starlette")
    write_json(json_path, {"options": options, "machine": host, **measured})
    verdicts: list[Verdict] = measured["verdicts"]
    return verdicts


if __name__ == "__main__":
    typer.run(main)
