"""Voices of training and of evaluation are disjoint."""

from __future__ import annotations

from random import Random

import pytest

from training.nano.user_voices.make import HELD_OUT, SHARES, draw_voice

DRAWS = 2000


@pytest.mark.parametrize("engine", SHARES)
def test_training_and_evaluation_voices_are_disjoint(engine: str) -> None:
    random = Random(1)
    people = {
        person for _ in range(DRAWS) for person in draw_voice(engine, random).split("+", maxsplit=1)
    }
    whole = {draw_voice(engine, random) for _ in range(DRAWS)}
    held_out = set(HELD_OUT.get(engine, ()))
    assert people
    assert held_out.isdisjoint(whole)
    if engine == "kokoro":  # mixtures of two
        assert held_out.isdisjoint(people)


@pytest.mark.parametrize("engine", HELD_OUT)
def test_every_evaluation_voice_is_drawn(engine: str) -> None:
    random = Random(2)
    drawn = {draw_voice(engine, random, held_out=True) for _ in range(DRAWS)}
    assert drawn == set(HELD_OUT[engine])
