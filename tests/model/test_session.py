"""Rollback: speculative work leaves no trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.session import Session, SnapshotError
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.settings import CacheKind, DuplexSettings, WindowMode, WindowSettings
from tests.model.toy import Toy, UnitInput, picture, prepare, run_unit, seconds_of, speech

SETTINGS = DuplexSettings(force_listen_count=0)
SEED = 2  # the toy model speaks at once


class Talk:
    """One conversation, unit by unit."""

    def __init__(
        self, toy: Toy, settings: DuplexSettings = SETTINGS, cache: CacheKind = CacheKind.BF16
    ) -> None:
        self.executor: Executor = toy.executor(cache)
        self.duplex = toy.duplex()
        self.session: Session = self.executor.open_session("rollback", seed=SEED)
        voice = toy.open_voice(self.session.sampler.generator)
        self.run(prepare(self.duplex, self.session, settings, voice))

    def run(self, steps: Steps[None]) -> None:
        run_alone(steps, self.executor)

    def units(self, seconds: float, seed: int) -> list[UnitResult]:
        results = []
        for number, audio in enumerate(seconds_of(speech(seconds, seed))):
            frames = (picture(seed + number),) if number == 1 else ()
            steps = run_unit(self.duplex, self.session, UnitInput(audio, frames))
            results.append(run_alone(steps, self.executor))
        return results

    def end_turn(self) -> None:
        steps = run_unit(self.duplex, self.session, UnitInput(speech(1.0, 77), force_listen=True))
        run_alone(steps, self.executor)


def _assert_equal(found: list[UnitResult], expected: list[UnitResult]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in vars(mine).items():
            if name == "sound":
                assert np.array_equal(mine.audio_waveform, theirs.audio_waveform)
            elif not name.startswith("cost"):
                assert value == vars(theirs)[name], name


@dataclass(frozen=True)
class Straight:
    """A conversation without speculation."""

    talk: Talk
    length: int  # of its cache where the other takes a snapshot
    results: list[UnitResult]  # from there on


@pytest.fixture(scope="module")
def straight(toy: Toy) -> Callable[[CacheKind], Straight]:
    @functools.cache
    def of(cache: CacheKind) -> Straight:
        talk = Talk(toy, cache=cache)
        talk.units(3, seed=1)
        talk.end_turn()
        length = talk.session.kv.length
        return Straight(talk, length, talk.units(6, seed=3))

    return of


@pytest.mark.parametrize(
    ("guess_seconds", "cache"),
    [
        (0, CacheKind.BF16),
        pytest.param(1, CacheKind.BF16, marks=pytest.mark.matrix),
        (4, CacheKind.BF16),
        (4, CacheKind.INT8),
    ],
)
def test_rollback_equals_no_speculation(
    toy: Toy,
    straight: Callable[[CacheKind], Straight],
    guess_seconds: int,
    cache: CacheKind,
) -> None:
    """Token for token and sample for sample, random draws included."""
    other, guessing = straight(cache), Talk(toy, cache=cache)
    guessing.units(3, seed=1)
    guessing.end_turn()
    guessing.session.take_snapshot()
    guess = guessing.units(guess_seconds, seed=5)
    assert guessing.session.can_rollback
    length = guessing.session.rollback()
    assert length == guessing.session.kv.length == other.length
    _assert_equal(guessing.units(6, seed=3), other.results)
    assert any(not each.is_listen for each in other.results)
    assert guess_seconds < 4 or any(not each.is_listen for each in guess)
    talks = (other.talk, guessing)
    mine, theirs = (talk.session.kv.rows(0, talk.session.kv.length) for talk in talks)
    assert torch.equal(mine.keys, theirs.keys)
    assert torch.equal(mine.values, theirs.values)
    assert (mine.scales is None) == (cache is CacheKind.BF16)
    assert mine.scales is None or torch.equal(mine.scales, theirs.scales)  # type: ignore[arg-type]


def test_repeated_work_draws_equal_numbers(toy: Toy) -> None:
    talk = Talk(toy)
    talk.units(2, seed=1)
    talk.end_turn()
    talk.session.take_snapshot()
    first = talk.units(5, seed=3)
    talk.session.rollback()
    _assert_equal(talk.units(5, seed=3), first)


def test_rollback_restores_the_documented_state(toy: Toy) -> None:
    talk = Talk(toy)
    talk.units(2, seed=1)
    talk.end_turn()
    session = talk.session
    session.sampler.history[:] = [5, 6]
    random_state = session.sampler.generator.get_state()
    before = (session.kv.length, session.audio_input.units, session.audio_input.cache.length)
    turn, window = replace(session.turn), session.window.clone()
    session.take_snapshot()
    talk.units(3, seed=4)
    session.rollback()
    assert (
        session.kv.length,
        session.audio_input.units,
        session.audio_input.cache.length,
    ) == before
    assert (session.turn, session.window, session.sampler.history) == (turn, window, [5, 6])
    assert torch.equal(session.sampler.generator.get_state(), random_state)
    assert session.speech.kv.length == 0


def test_snapshot_can_be_used_once(toy: Toy) -> None:
    talk = Talk(toy)
    with pytest.raises(SnapshotError):
        talk.session.rollback()
    talk.session.take_snapshot()
    talk.session.rollback()
    assert not talk.session.can_rollback
    with pytest.raises(SnapshotError):
        talk.session.rollback()


@pytest.mark.parametrize("mode", [WindowMode.BASIC, WindowMode.CONTEXT])
def test_a_snapshot_is_void_once_a_window_dropped_tokens(toy: Toy, mode: WindowMode) -> None:
    window = WindowSettings(
        mode=mode, basic_high_tokens=60, basic_low_tokens=40, context_max_units=1
    )
    talk = Talk(toy, replace(SETTINGS, window=window))
    talk.session.take_snapshot()
    assert talk.session.can_rollback
    talk.units(4, seed=1)
    length = talk.session.kv.length
    assert not talk.session.can_rollback
    with pytest.raises(SnapshotError, match="evicted"):
        talk.session.rollback()
    assert talk.session.kv.length == length
