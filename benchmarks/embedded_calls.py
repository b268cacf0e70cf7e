"""Turn-taking of the cascade in calls: latency, false starts, stop and echo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

import numpy as np

from benchmarks.embedded_questions import OPEN, SPOKEN_CLOSED, Report
from benchmarks.embedded_speech import by_cascade, room, spoken, with_noise
from core.audio import FloatArray
from core.cascade.duplex import CascadeDuplexView
from core.cascade.parts import Parts
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.serving.transcribers import LoopThreads

ECHO_GAIN: Final = 0.3
LATE_S: Final = 1.5
UNIT_LIMIT_S: Final = 60.0  # a unit may wait for its reply, since that time is measured
REPLY_UNITS: Final = 4  # of silence for the reply to begin in
NOISE_S: Final = 20.0
ECHO_WORDS: Final = 6  # latest of the reply, played back as its echo


@dataclass(frozen=True)
class Unit:
    """The result of one second of a call; times in seconds."""

    speaks: bool
    is_last: bool = False  # a complete reply ends with it
    first_sound_s: float = 0.0  # from its arrival to its first audio, or else its result
    spent_s: float = 0.0  # from the arrival of the second to its result


class Call:
    """A call paced by its units, so that a slow machine drops no unit."""

    def __init__(self, parts: Parts) -> None:
        self.view = CascadeDuplexView(parts, LoopThreads())
        self.view.patience_s = UNIT_LIMIT_S

    async def begin(self) -> None:
        await self.view.begin(config=DuplexConfig(force_listen_count=0), early_audio=True)

    async def units(self, sound: FloatArray) -> list[Unit]:
        """Send whole seconds, at most one per second, so that work between units has its time."""
        made = []
        for at in range(0, len(sound) - INPUT_SAMPLE_RATE_HZ + 1, INPUT_SAMPLE_RATE_HZ):
            began_s = time.perf_counter()
            early_s: list[float] = []

            async def note(
                sound: FloatArray, began_s: float = began_s, early_s: list[float] = early_s
            ) -> None:
                early_s.append(time.perf_counter() - began_s)

            unit = await self.view.unit(
                sound[at : at + INPUT_SAMPLE_RATE_HZ],
                (),
                force_listen=False,
                force_speak=False,
                due_s=None,
                on_sound=note,
            )
            assert unit is not None
            spent_s = time.perf_counter() - began_s
            first_s = early_s[0] if early_s else spent_s
            made.append(Unit(not unit.is_listen, unit.end_of_turn, first_s, spent_s))
            await asyncio.sleep(1 - spent_s)
        return made

    async def end(self) -> None:
        self.view.set_break()
        await self.units(room(1))


async def measure_turns(parts: Parts, report: Report, folder: Path) -> None:
    """Measure when replies to spoken questions begin, and replies to noise."""
    early = late = 0
    waits: list[float] = []
    questions = [*SPOKEN_CLOSED, *OPEN]
    for number, samples in enumerate(spoken(questions, folder)):
        call = Call(parts)
        await call.begin()
        lead_s = 1 + number / len(questions)  # so that questions end anywhere in a second
        sound = np.concatenate([room(lead_s), samples])
        ended_s = len(sound) / INPUT_SAMPLE_RATE_HZ
        units = await call.units(np.concatenate([sound, room(REPLY_UNITS)]))
        first = next((index for index, unit in enumerate(units) if unit.speaks), None)
        await call.end()
        if first is None:
            late += 1
            continue
        early += first + 1 < ended_s
        late += first + 1 - ended_s > LATE_S
        waits.append(first + 1 - ended_s + units[first].first_sound_s)
    count = len(questions)
    report.add("turns taken early", early / count, 0.03, count, is_most=True)
    report.add("turns taken late", late / count, 0.05, count, is_most=True)
    report.add("first sound, median s", median(waits), 1.0, len(waits), is_most=True)
    report.add("first sound, 90 % s", quantiles(waits, n=10)[-1], 1.6, len(waits), is_most=True)
    call = Call(parts)
    await call.begin()
    noises = await call.units(np.concatenate([room(NOISE_S), with_noise(room(NOISE_S) * 10)]))
    begun = sum(unit.speaks for unit in noises)
    report.add("units begun in noise", begun / len(noises), 0.005, len(noises), is_most=True)


async def measure_interruption(parts: Parts, report: Report, folder: Path) -> None:
    """Measure whether "stop" ends a reply and an echo does not, and the time of speaking units."""
    stopped: list[bool] = []
    ignored: list[bool] = []
    spent_s: list[float] = []
    asked = spoken(OPEN, folder)
    stops = spoken(["Stop."] * len(OPEN), folder)
    for is_stop in (True, False):
        for question, stop in zip(asked, stops, strict=True):
            call = Call(parts)
            await call.begin()
            units = await call.units(np.concatenate([room(1), question, room(2)]))
            spent_s += [unit.spent_s for unit in units if unit.speaks][1:]
            if units[-1].speaks and not units[-1].is_last:
                said = " ".join(call.view.recently_said[-ECHO_WORDS:])
                over = stop if is_stop else by_cascade(parts.synthesizer, said) * ECHO_GAIN
                answered = await call.units(_in_seconds(over))
                if not is_stop:
                    ignored.append(is_ignored(answered))
                elif (is_obeyed := was_stopped(answered)) is not None:
                    stopped.append(is_obeyed)
            await call.end()
    for name, cases, limit in (("stop obeyed", stopped, 0.95), ("own echo ignored", ignored, 0.99)):
        if cases:
            report.add(name, fmean(cases), limit, len(cases), is_most=False)
    if spent_s:
        report.add(
            "real-time factor while speaking", fmean(spent_s), 0.7, len(spent_s), is_most=True
        )


def was_stopped(units: Sequence[Unit]) -> bool | None:
    """Return whether a reply was stopped in these units; None if it was complete first."""
    for unit in units:
        if not unit.speaks:
            return True
        if unit.is_last:
            return None
    return False


def is_ignored(units: Sequence[Unit]) -> bool:
    """Return whether a reply continued to its end or to the last unit, and no other began."""
    end = next((number for number, unit in enumerate(units) if unit.is_last), len(units))
    before, behind = units[:end], units[end + 1 :]
    return all(unit.speaks for unit in before) and not any(unit.speaks for unit in behind)


def _in_seconds(sound: FloatArray) -> FloatArray:
    """Pad to whole seconds, and add one in which the speech takes effect."""
    filled = -(-len(sound) // INPUT_SAMPLE_RATE_HZ) + 1
    return np.pad(sound, (0, filled * INPUT_SAMPLE_RATE_HZ - len(sound)))
