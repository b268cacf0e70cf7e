"""Different conversations for comparisons: audio, pictures, voice, settings and seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings
from tests.model.toy import Toy, UnitInput, picture, prepare, run_unit, seconds_of, speech

UNITS = 9
BASE = DuplexSettings(force_listen_count=0)
WINDOWS = (
    WindowSettings(),
    WindowSettings(mode=WindowMode.BASIC, basic_high_tokens=150, basic_low_tokens=100),
    WindowSettings(mode=WindowMode.CONTEXT, context_max_units=3),
)


@dataclass(frozen=True, eq=False)
class UnitRecord:
    """Result of one unit, and cache lengths."""

    facts: dict[str, object]
    wave: np.ndarray


class Talk:
    def __init__(self, toy: Toy, executor: Executor, number: int) -> None:
        self.duplex: DuplexCapability = toy.duplex()
        self.session: Session = executor.open_session(f"talk {number}", seed=100 + number)
        self.settings = replace(BASE, window=WINDOWS[number % 3], temperature=0.7 + 0.1 * number)
        self.voice = toy.open_voice(self.session.sampler.generator)
        self.number = number
        self.records: list[UnitRecord] = []

    def inputs(self) -> Iterator[UnitInput]:
        for unit, audio in enumerate(seconds_of(speech(UNITS, seed=self.number))):
            frames = (picture(10 * self.number + unit),) if unit % 4 == self.number else ()
            yield UnitInput(audio, frames, force_listen=unit % 3 == 2)

    def parts(self) -> Iterator[Steps[None]]:
        sample = speech(1.0, seed=50 + self.number)
        yield prepare(self.duplex, self.session, self.settings, self.voice, sample)
        for unit in self.inputs():
            yield self._unit(unit)

    def whole(self) -> Steps[None]:
        for part in self.parts():
            yield from part

    def _unit(self, unit: UnitInput) -> Steps[None]:
        session = self.session
        result = yield from run_unit(self.duplex, session, unit)
        facts = {name: value for name, value in vars(result).items() if "cost" not in name}
        del facts["sound"]
        facts["lengths"] = (
            session.kv.length,
            session.speech.kv.length,
            session.audio_input.cache.length,
        )
        facts["told"] = [each.text_ids for each in session.window.units]
        facts["turn has ended"] = session.turn.has_ended
        self.records.append(UnitRecord(facts, result.audio_waveform))


def greedy_talks(toy: Toy, executor: Executor) -> list[Talk]:
    talks = [Talk(toy, executor, number) for number in range(3)]
    for talk in talks:
        talk.settings = replace(talk.settings, decode_mode="greedy")
    return talks


def facts_of(talks: list[Talk]) -> list[list[dict[str, object]]]:
    return [[record.facts for record in talk.records] for talk in talks]
