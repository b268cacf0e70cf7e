"""Many conversations at once, or one after another: `python -m benchmarks.sessions`.

Paced duplex clients over real sockets against gateway and workers with the fake backend. Without
`--churn`: so many at once, how long each unit takes and how many are late. With it: so many opened
and closed, and what stays behind in memory.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import processes
from benchmarks.launched import LaunchedSystem, Plan
from benchmarks.paced_client import UNIT_S, Session, talk, visit
from benchmarks.summary import BYTES_PER_MIB, Spread, Verdict, format_table

MS_PER_S = 1_000.0
INPUT_RATE_HZ = 16_000
NOISE_LEVEL = 0.05  # of the sound that is sent, full scale 1
SLOTS_MAX = 64  # sessions a worker takes at once
MOST_GROWN_BYTES = 4 * BYTES_PER_MIB  # ours: what an allocator may add without it being a leak
SAMPLES = 20  # of memory during a churn
SETTLE_LIMIT_S = 30.0
NO_LIMIT = 1_000_000
EXIT_FAILED = 1


@dataclass(frozen=True)
class Load:
    """What is asked for."""

    sessions: int
    units: int
    churn: int
    at_once: int
    workers: int
    is_recorded: bool


def plan_of(load: Load) -> Plan:
    """Return the system that such a load needs."""
    needed = load.at_once if load.churn else load.sessions
    slots = -(-needed // load.workers)
    if slots > SLOTS_MAX:
        raise typer.BadParameter(f"{load.workers} workers take {load.workers * SLOTS_MAX} sessions")
    service = {"worker_slots": slots, "max_queue_size": 100_000}
    limits = {"requests_per_minute": NO_LIMIT, "connections_per_client": NO_LIMIT}
    config: dict[str, dict[str, Any]] = {  # Any: a configuration file is JSON
        "service": service,
        "limits": limits,
        "recording": {"enabled": load.is_recorded},
        "logging": {"level": "WARNING"},
    }
    return Plan(workers=load.workers, backend="fake", config=config)


def a_second_of_noise() -> str:
    """Return the text of an `audio_chunk`."""
    noise = np.random.default_rng(0).standard_normal(INPUT_RATE_HZ).astype("<f4") * NOISE_LEVEL
    audio = base64.b64encode(noise.astype("<f4").tobytes()).decode()
    return json.dumps({"type": "audio_chunk", "audio": audio})


# --- at once ---


async def all_at_once(system: LaunchedSystem, load: Load) -> tuple[list[Session], dict[str, int]]:
    """Hold all sessions together.

    Returns:
        What each saw, and the memory in use when all were prepared and nothing was said yet.
    """
    everybody_ready = asyncio.Barrier(load.sessions + 1)
    chunk = a_second_of_noise()
    tasks = [
        asyncio.create_task(
            talk(
                system.ws(f"/ws/duplex/adx_load_{index}"),
                chunk,
                units=load.units,
                begin_s=UNIT_S * index / load.sessions,
                everybody_ready=everybody_ready,
            )
        )
        for index in range(load.sessions)
    ]
    before: dict[str, int] = {}
    try:
        await everybody_ready.wait()
        before = system.resident_bytes()
        await everybody_ready.wait()
    except asyncio.BrokenBarrierError:
        print("a session failed")
    return await asyncio.gather(*tasks), before


def judge_load(sessions: list[Session], load: Load) -> list[Verdict]:
    """Compare what was seen with what is required."""
    latencies_s = [latency_s for session in sessions for latency_s in session.latencies_s]
    late = sum(latency_s > UNIT_S for latency_s in latencies_s)
    missing = load.sessions * load.units - len(latencies_s)
    problems = Counter(session.problem for session in sessions if session.problem)
    warnings = Counter(code for session in sessions for code in session.warnings)
    return [
        Verdict("sessions", not problems, f"{len(sessions)}, failed: {dict(problems)}"),
        Verdict("late units", not late and not missing, f"{late} late, {missing} missing"),
        Verdict("warnings", not warnings, f"{dict(warnings)}"),
    ]


def measure_load(system: LaunchedSystem, load: Load) -> dict[str, object]:
    """Run one load and print it; return everything measured."""
    sessions, before = asyncio.run(all_at_once(system, load))
    system.wait_until_idle(SETTLE_LIMIT_S)
    after = system.resident_bytes()
    latencies_ms = [one_s * MS_PER_S for session in sessions for one_s in session.latencies_s]
    sent_late_ms = max(session.sent_late_s for session in sessions) * MS_PER_S
    verdicts = judge_load(sessions, load)
    if latencies_ms:
        spread = Spread.of(latencies_ms)
        cells = [f"{value:.2f}" for value in (spread.p50, spread.p95, spread.max, sent_late_ms)]
        header = ["units", "p50 ms", "p95 ms", "max ms", "sent late at most, ms"]
        print(format_table(header, [[str(spread.count), *cells]]))
    _print_memory({"prepared": before, "all closed": after})
    return {
        "latency_ms": asdict(Spread.of(latencies_ms)) if latencies_ms else None,
        "sent_late_ms": sent_late_ms,
        "resident_bytes": {"prepared": before, "closed": after},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "sessions": [asdict(session) for session in sessions],
    }


# --- one after another ---


async def one_after_another(system: LaunchedSystem, load: Load) -> list[dict[str, int]]:
    """Open and close sessions.

    Returns:
        The memory in use after each twentieth of them.
    """
    chunk = a_second_of_noise()
    room = asyncio.Semaphore(load.at_once)

    async def one(index: int) -> None:
        async with room:
            await visit(system.ws(f"/ws/duplex/adx_churn_{index}"), chunk)

    samples = []
    share = max(1, load.churn // SAMPLES)
    for start in range(0, load.churn, share):
        async with asyncio.TaskGroup() as group:
            for index in range(start, min(start + share, load.churn)):
                group.create_task(one(index))
        await asyncio.to_thread(system.wait_until_idle, SETTLE_LIMIT_S)
        samples.append(system.resident_bytes())
    return samples


def judge_churn(samples: list[dict[str, int]]) -> list[Verdict]:
    """Compare the later half of the memory samples with the earlier, program by program."""
    half = len(samples) // 2
    verdicts = []
    for name in samples[0]:
        early = max(sample[name] for sample in samples[:half])
        grown = max(sample[name] for sample in samples[half:]) - early
        text = f"{grown / BYTES_PER_MIB:+.2f} MiB from the first half to the second"
        verdicts.append(Verdict(f"memory of {name}", grown <= MOST_GROWN_BYTES, text))
    return verdicts


def measure_churn(system: LaunchedSystem, load: Load) -> dict[str, object]:
    """Run a churn and print it; return everything measured."""
    samples = asyncio.run(one_after_another(system, load))
    share = load.churn // len(samples)
    _print_memory({f"{(i + 1) * share}": sample for i, sample in enumerate(samples)})
    return {
        "resident_bytes": samples,
        "verdicts": [asdict(verdict) for verdict in judge_churn(samples)],
    }


# --- both ---


def main(
    sessions: Annotated[int, typer.Option(min=1, help="At once.")] = 200,
    units: Annotated[int, typer.Option(min=1, help="Of each session.")] = 30,
    churn: Annotated[int, typer.Option(min=0, help="Sessions opened and closed instead.")] = 0,
    at_once: Annotated[int, typer.Option(min=1, help="Of a churn.")] = 8,
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    record: Annotated[bool, typer.Option(help="Record the sessions.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write it all here.")] = None,
) -> None:
    """Measure a crowd of sessions; exits with 1 if a condition is not met."""
    load = Load(sessions, units, churn, at_once, workers, record)
    with tempfile.TemporaryDirectory() as folder:
        with LaunchedSystem(Path(folder), plan_of(load)) as system:
            measured = measure_churn(system, load) if churn else measure_load(system, load)
    verdicts = [Verdict(**verdict) for verdict in measured["verdicts"]]  # type: ignore[attr-defined]
    for verdict in verdicts:
        print(f"{'ok  ' if verdict.passed else 'FAIL'}  {verdict.name}: {verdict.text}")
    if json_path is not None:
        host = processes.describe_host("websockets", "uvicorn", "starlette")
        record_of = {"options": asdict(load), "machine": host, **measured}
        json_path.write_text(json.dumps(record_of, indent=1) + "\n", encoding="utf8")
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


def _print_memory(samples: dict[str, dict[str, int]]) -> None:
    names = list(next(iter(samples.values())))
    rows = [
        [when, *(f"{sample[name] / BYTES_PER_MIB:.1f}" for name in names if name in sample)]
        for when, sample in samples.items()
    ]
    print(format_table(["memory, MiB", *names], rows))


if __name__ == "__main__":
    typer.run(main)
