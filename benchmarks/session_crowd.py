"""Load of concurrent paced sessions over real sockets: input, measurements, conditions."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Self

import httpx
import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.launched import LaunchedSystem
from benchmarks.paced_client import (
    MS_PER_S,
    PLACE_LIMIT_S,
    STAGES,
    UNIT_S,
    Script,
    Session,
    talk,
)
from benchmarks.summary import BYTES_PER_MIB, Spread, Verdict, format_table, percentile

INPUT_RATE_HZ = 16_000
NOISE_LEVEL = 0.2  # of full scale 1; the tiny model takes it for speech
HEARD_UNITS, PATTERN_UNITS = 2, 5  # units with noise, of a pattern that ends in silence
PICTURE_SIZE = (1280, 720)
JPEG_QUALITY = 75  # about what a browser's canvas takes
SAMPLE_S = 1.0
SETTLE_LIMIT_S = 30.0
BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class Crowd:
    """Concurrent sessions.

    Attributes:
        sessions: number of sessions.
        units: per session.
        has_pictures: whether each unit has a picture.
        patience_s: longest wait of each for a worker's slot.
    """

    sessions: int
    units: int
    has_pictures: bool = False
    patience_s: float = PLACE_LIMIT_S

    @classmethod
    def parse(cls, text: str, patience_s: float) -> Self:
        """Read `audio:64:60` or `omni:64:60`.

        Raises:
            ValueError: it is neither.
        """
        kind, sessions, units = text.split(":")
        if kind not in ("audio", "omni") or min(int(sessions), int(units)) < 1:
            raise ValueError(f"{text!r} is not like audio:64:60 or omni:64:60")
        return cls(int(sessions), int(units), kind == "omni", patience_s)

    def __str__(self) -> str:
        kind = "omni" if self.has_pictures else "audio"
        return f"{kind}, {self.sessions} sessions of {self.units} units"


@dataclass
class Usage:
    """Peak usage of the system, sampled.

    Attributes:
        resident_bytes: memory of each program.
        card_bytes: memory in use on each worker's card; empty without one.
        slots: slots of each worker.
        capacity: last reported capacity of each worker.
    """

    resident_bytes: dict[str, int] = field(default_factory=dict)
    card_bytes: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)

    def look(self, system: LaunchedSystem) -> None:
        """Take a sample."""
        _raise_to(self.resident_bytes, system.resident_bytes())
        for index in range(system.plan.workers):
            name, health = f"worker_{index}", system.worker_health(index)
            self.slots[name] = health["slots"]
            self.capacity[name] = health["capacity"] or health["slots"]
            if health["vram_used_mb"] is not None:
                used = int(health["vram_used_mb"] * BYTES_PER_MB)
                _raise_to(self.card_bytes, {name: used})


@dataclass(frozen=True)
class Seen:
    """Measurements of one load.

    Attributes:
        sessions: measurements of each client.
        before: memory of each program before the first session.
        usage: during the sessions.
        after: memory of each program after the last session.
    """

    crowd: Crowd
    sessions: list[Session]
    before: dict[str, int]
    usage: Usage
    after: dict[str, int]

    @property
    def latencies_ms(self) -> list[float]:
        """Latencies of all answered units."""
        return [one_s * MS_PER_S for session in self.sessions for one_s in session.latencies_s]

    def verdicts(self) -> list[Verdict]:
        """Check the conditions."""
        return judge_crowd(self.sessions, self.crowd)

    def record(self) -> dict[str, object]:
        """Return all measurements."""
        return {
            "crowd": asdict(self.crowd),
            "latency_ms": asdict(Spread.of(self.latencies_ms)) if self.latencies_ms else None,
            "resident_bytes": {"before": self.before, "after": self.after},
            "usage": asdict(self.usage),
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
            "sessions": [asdict(session) for session in self.sessions],
        }

    def print(self) -> None:
        """Print tables."""
        print(f"\n{self.crowd}")
        if self.latencies_ms:
            print(format_table(*_times(self)))
            print(format_table(*_stages(self)))
        print_memory(
            {"before": self.before, "talking": self.usage.resident_bytes, "left": self.after}
        )
        for name in self.usage.slots:
            used = self.usage.card_bytes.get(name)
            card = "" if used is None else f", {used / BYTES_PER_MIB:,.0f} MiB in use on the card"
            slots, capacity = self.usage.slots[name], self.usage.capacity[name]
            print(f"{name}: {slots} slots, at last {capacity} in time{card}")


def audio_chunk(sound: np.ndarray) -> str:
    """Return the text of an `audio_chunk`.

    Args:
        sound: float [n] at 16 kHz.
    """
    audio = base64.b64encode(sound.astype("<f4").tobytes()).decode()
    return json.dumps({"type": "audio_chunk", "audio": audio})


def a_second_of_noise() -> str:
    """Return the text of an `audio_chunk` with sound."""
    noise = np.random.default_rng(0).standard_normal(INPUT_RATE_HZ)
    return audio_chunk(noise * NOISE_LEVEL)


def a_picture() -> str:
    """Return the text of a `video_frame`, a JPEG."""
    buffer = io.BytesIO()
    Inputs(PICTURE_SIZE, 0).pictures()[0].save(buffer, "JPEG", quality=JPEG_QUALITY)
    return json.dumps(
        {"type": "video_frame", "frame": base64.b64encode(buffer.getvalue()).decode()}
    )


def scripts(crowd: Crowd) -> list[Script]:
    """Return the input of each client, evenly spread over the second and the pattern of sound."""
    noise, silence = a_second_of_noise(), audio_chunk(np.zeros(INPUT_RATE_HZ))
    pattern = [noise if place < HEARD_UNITS else silence for place in range(PATTERN_UNITS)]
    picture = a_picture() if crowd.has_pictures else ""
    return [
        Script(
            [pattern[(index + unit) % PATTERN_UNITS] for unit in range(crowd.units)],
            picture,
            UNIT_S * index / crowd.sessions,
            crowd.patience_s,
        )
        for index in range(crowd.sessions)
    ]


def hold(system: LaunchedSystem, crowd: Crowd) -> Seen:
    """Run one load and wait until the system is idle.

    Raises:
        NotReachedError: the system does not become idle.
    """
    before, usage = system.resident_bytes(), Usage()
    sessions = asyncio.run(_talk_at_once(system, crowd, usage))
    system.wait_until_idle(SETTLE_LIMIT_S)
    return Seen(crowd, sessions, before, usage, system.resident_bytes())


async def _talk_at_once(system: LaunchedSystem, crowd: Crowd, usage: Usage) -> list[Session]:
    watching = asyncio.create_task(_watch(system, usage))
    prefix = "omni" if crowd.has_pictures else "adx"
    try:
        return await asyncio.gather(
            *(
                talk(system.ws(f"/ws/duplex/{prefix}_load_{index}"), script)
                for index, script in enumerate(scripts(crowd))
            )
        )
    finally:
        watching.cancel()


async def _watch(system: LaunchedSystem, usage: Usage) -> None:
    while True:
        try:
            await asyncio.to_thread(usage.look, system)
        except httpx.HTTPError as error:  # too busy to answer
            print(f"no health: {error!r}")
        await asyncio.sleep(SAMPLE_S)


def judge_crowd(sessions: list[Session], crowd: Crowd) -> list[Verdict]:
    """Check the conditions on the clients' measurements."""
    latencies_s = [latency_s for session in sessions for latency_s in session.latencies_s]
    late = sum(latency_s > UNIT_S for latency_s in latencies_s)
    began = sum(not session.problem or session.settled > 0 for session in sessions)
    missing = began * crowd.units - len(latencies_s)
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
    """Print the memory of each program at several times."""
    names = list(next(iter(samples.values())))
    rows = [
        [when, *(f"{sample[name] / BYTES_PER_MIB:.1f}" for name in names if name in sample)]
        for when, sample in samples.items()
    ]
    print(format_table(["memory, MiB", *names], rows))


def _times(seen: Seen) -> tuple[list[str], list[list[str]]]:
    spread, sessions = Spread.of(seen.latencies_ms), seen.sessions
    speaking_ms = [one_s * MS_PER_S for each in sessions for one_s in each.speaking_s]
    columns = {
        "units": f"{spread.count}",
        "p50 ms": f"{spread.p50:.1f}",
        "p95 ms": f"{spread.p95:.1f}",
        "p99 ms": f"{spread.p99:.1f}",
        "max ms": f"{spread.max:.1f}",
        "client late, ms": f"{max(each.sent_late_s for each in sessions) * MS_PER_S:.1f}",
        "waited, s": f"{max(each.waited_s for each in sessions):.1f}",
        "prepared, s": f"{max(each.prepared_s for each in sessions):.2f}",
        "speaking": f"{len(speaking_ms)}",
        "their p50 ms": f"{percentile(speaking_ms, 50):.1f}" if speaking_ms else "",
        "speech, s": f"{sum(each.heard_s for each in sessions):.0f}",
        "slices": f"{sum(each.slices for each in sessions)}",
    }
    return list(columns), [list(columns.values())]


def _stages(seen: Seen) -> tuple[list[str], list[list[str]]]:
    """Return the mean duration of each stage, over all units and over the slowest percent."""
    units = [
        (latency_s * MS_PER_S, stages)
        for session in seen.sessions
        for latency_s, stages in zip(session.latencies_s, session.stages_ms, strict=True)
    ]
    units.sort(key=lambda unit: -unit[0])
    rows = []
    for name, some in (("all", units), ("slowest percent", units[: -(-len(units) // 100)])):
        means = [mean(stages[stage] for _, stages in some) for stage in STAGES]
        total = mean(latency_ms for latency_ms, _ in some)
        rows.append([name, *(f"{value:.1f}" for value in (*means, total))])
    return ["mean of units, ms", *STAGES, "client"], rows


def _raise_to(most: dict[str, int], now: dict[str, int]) -> None:
    most |= {name: max(value, most.get(name, 0)) for name, value in now.items()}
