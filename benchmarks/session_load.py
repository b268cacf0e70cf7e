"""Load of concurrent paced sessions over real sockets: input, measurements, conditions."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Self

import httpx
import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.launched import LaunchedSystem
from benchmarks.paced_client import (
    INPUT_RATE_HZ,
    PLACE_LIMIT_S,
    STAGES,
    UNIT_S,
    Script,
    Session,
    audio_chunk,
)
from benchmarks.summary import BYTES_PER_MIB, MS_PER_S, Spread, Verdict, format_table

NOISE_LEVEL = 0.2  # of full scale 1; the tiny model takes it for speech
NOISE_UNITS, PATTERN_UNITS = 2, 5  # units with noise, of a pattern that ends in silence
PICTURE_SIZE = (1280, 720)
JPEG_QUALITY = 75  # about what a browser's canvas takes
SAMPLE_S = 1.0
IDLE_LIMIT_S = 30.0
BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class Load:
    """Concurrent sessions; `units` is per session, `patience_s` the longest wait for a slot."""

    sessions: int
    units: int
    has_pictures: bool = False
    patience_s: float = PLACE_LIMIT_S

    @classmethod
    def parse(cls, text: str, patience_s: float) -> Self:
        """Read `audio:64:60` or `omni:64:60`; ValueError if it is neither."""
        kind, sessions, units = text.split(":")
        if kind not in ("audio", "omni") or min(int(sessions), int(units)) < 1:
            raise ValueError(f"{text!r} is not like audio:64:60 or omni:64:60")
        return cls(int(sessions), int(units), kind == "omni", patience_s)

    def __str__(self) -> str:
        kind = "omni" if self.has_pictures else "audio"
        return f"{kind}, {self.sessions} sessions of {self.units} units"


@dataclass
class Usage:
    """Peak usage of the system, sampled."""

    resident_bytes: dict[str, int] = field(default_factory=dict)  # of each program
    card_bytes: dict[str, int] = field(default_factory=dict)  # of each worker with a card
    slots: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)  # last reported, of each worker

    def sample(self, system: LaunchedSystem) -> None:
        _raise_to(self.resident_bytes, system.resident_bytes())
        for index in range(system.plan.workers):
            name, health = f"worker_{index}", system.worker_health(index)
            self.slots[name] = health["slots"]
            self.capacity[name] = health["capacity"] or health["slots"]
            if health["vram_used_mb"] is not None:
                used = int(health["vram_used_mb"] * BYTES_PER_MB)
                _raise_to(self.card_bytes, {name: used})


@dataclass(frozen=True)
class LoadResult:
    load: Load
    sessions: list[Session]  # measurements of each client
    before: dict[str, int]  # memory of each program before the first session
    usage: Usage  # during the sessions
    after: dict[str, int]  # memory of each program after the last session

    @property
    def latencies_ms(self) -> list[float]:
        return [one_s * MS_PER_S for session in self.sessions for one_s in session.latencies_s]

    def verdicts(self) -> list[Verdict]:
        return judge_load(self.sessions, self.load)

    def record(self) -> dict[str, object]:
        return {
            "load": self.load,
            "latency_ms": Spread.of(self.latencies_ms) if self.latencies_ms else None,
            "resident_bytes": {"before": self.before, "after": self.after},
            "usage": self.usage,
            "verdicts": self.verdicts(),
            "sessions": self.sessions,
        }

    def print(self) -> None:
        print(f"\n{self.load}")
        if self.latencies_ms:
            print(_time_table(self))
            print(_stage_table(self))
        print_memory(
            {"before": self.before, "during": self.usage.resident_bytes, "after": self.after}
        )
        for name, slots in self.usage.slots.items():
            used = self.usage.card_bytes.get(name)
            card = "" if used is None else f", {used / BYTES_PER_MIB:,.0f} MiB in use on the card"
            print(f"{name}: {slots} slots, at last {self.usage.capacity[name]} in time{card}")


def noise_chunk() -> str:
    noise = np.random.default_rng(0).standard_normal(INPUT_RATE_HZ)
    return audio_chunk(noise * NOISE_LEVEL)


def video_frame() -> str:
    buffer = io.BytesIO()
    Inputs(PICTURE_SIZE, 0).pictures()[0].save(buffer, "JPEG", quality=JPEG_QUALITY)
    frame = base64.b64encode(buffer.getvalue()).decode()
    return json.dumps({"type": "video_frame", "frame": frame})


def scripts(load: Load) -> list[Script]:
    """Return the input of each client, evenly spread over the second and the pattern of sound."""
    noise, silence = noise_chunk(), audio_chunk(np.zeros(INPUT_RATE_HZ))
    pattern = [noise if place < NOISE_UNITS else silence for place in range(PATTERN_UNITS)]
    picture = video_frame() if load.has_pictures else ""
    return [
        Script(
            [pattern[(index + unit) % PATTERN_UNITS] for unit in range(load.units)],
            picture,
            UNIT_S * index / load.sessions,
            load.patience_s,
        )
        for index in range(load.sessions)
    ]


def run_load(system: LaunchedSystem, load: Load) -> LoadResult:
    """Run one load and wait until the system is idle; TimeoutError if it stays busy."""
    before, usage = system.resident_bytes(), Usage()
    sessions = asyncio.run(_run_sessions(system, load, usage))
    system.wait_until_idle(IDLE_LIMIT_S)
    return LoadResult(load, sessions, before, usage, system.resident_bytes())


async def _run_sessions(system: LaunchedSystem, load: Load, usage: Usage) -> list[Session]:
    sampling = asyncio.create_task(_sample(system, usage))
    prefix = "omni" if load.has_pictures else "adx"
    sessions = [Session() for _ in range(load.sessions)]
    try:
        async with asyncio.TaskGroup() as group:
            for index, script in enumerate(scripts(load)):
                url = system.ws(f"/ws/duplex/{prefix}_load_{index}")
                group.create_task(sessions[index].run(url, script))
    finally:
        sampling.cancel()
    return sessions


async def _sample(system: LaunchedSystem, usage: Usage) -> None:
    while True:
        try:
            await asyncio.to_thread(usage.sample, system)
        except httpx.HTTPError as error:  # too busy to answer
            print(f"no health: {error!r}")
        await asyncio.sleep(SAMPLE_S)


def judge_load(sessions: list[Session], load: Load) -> list[Verdict]:
    latencies_s = [latency_s for session in sessions for latency_s in session.latencies_s]
    late = sum(latency_s > UNIT_S for latency_s in latencies_s)
    began = sum(not session.problem or session.settled > 0 for session in sessions)
    missing = began * load.units - len(latencies_s)
    dropped = sum(session.dropped for session in sessions)
    problems = Counter(session.problem for session in sessions if session.problem)
    warnings = Counter(code for session in sessions for code in session.warnings)
    return [
        Verdict("sessions", not problems, f"{len(sessions)}, failed: {dict(problems)}"),
        Verdict(
            "late units",
            not late and not missing,
            f"{late} late, {missing} missing, {dropped} of them given up by the server",
        ),
        Verdict("warnings", not warnings, f"{dict(warnings)}"),
    ]


def print_memory(samples: dict[str, dict[str, int]]) -> None:
    names = list(next(iter(samples.values())))
    rows = [
        [when, *(f"{sample[name] / BYTES_PER_MIB:.1f}" for name in names if name in sample)]
        for when, sample in samples.items()
    ]
    print(format_table(["memory, MiB", *names], rows))


def _time_table(result: LoadResult) -> str:
    spread, sessions = Spread.of(result.latencies_ms), result.sessions
    speaking_ms = [one_s * MS_PER_S for each in sessions for one_s in each.speaking_s]
    columns = {
        "units": f"{spread.count}",
        **dict(zip(("p50 ms", "p95 ms", "p99 ms", "max ms"), spread.cells(1), strict=True)),
        "client late, ms": f"{max(each.sent_late_s for each in sessions) * MS_PER_S:.1f}",
        "waited, s": f"{max(each.waited_s for each in sessions):.1f}",
        "prepared, s": f"{max(each.prepared_s for each in sessions):.2f}",
        "speaking": f"{len(speaking_ms)}",
        "their p50 ms": f"{median(speaking_ms):.1f}" if speaking_ms else "",
        "speech, s": f"{sum(each.received_s for each in sessions):.0f}",
        "slices": f"{sum(each.slices for each in sessions)}",
    }
    return format_table(list(columns), [list(columns.values())])


def _stage_table(result: LoadResult) -> str:
    """Return the mean duration of each stage, over all units and over the slowest percent."""
    units = [
        (latency_s * MS_PER_S, stages)
        for session in result.sessions
        for latency_s, stages in zip(session.latencies_s, session.stages_ms, strict=True)
    ]
    units.sort(key=lambda unit: -unit[0])
    rows = []
    for name, some in (("all", units), ("slowest percent", units[: -(-len(units) // 100)])):
        means = [mean(stages[stage] for _, stages in some) for stage in STAGES]
        total = mean(latency_ms for latency_ms, _ in some)
        rows.append([name, *(f"{value:.1f}" for value in (*means, total))])
    return format_table(["mean of units, ms", *STAGES, "client"], rows)


def _raise_to(most: dict[str, int], now: dict[str, int]) -> None:
    most |= {name: max(value, most.get(name, 0)) for name, value in now.items()}
