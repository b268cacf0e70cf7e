"""Audio may arrive at 1.5 times real time, and 40 s of it at once; faster ends the session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.errors import CloseCode, ErrorCode
from core.protocols.effects import Close
from core.protocols.events import Opened, PrefillDone
from core.protocols.half_duplex import TABLE, HalfDuplexMachine
from core.protocols.machine import SessionIds
from core.schemas.queue import ErrorMessage
from tests.fakes.duplex_scenes import scene as duplex_scene
from tests.fakes.scenes import HALF_DUPLEX, Scene, audio


def half_duplex_scene() -> Scene:
    stage = Scene(HalfDuplexMachine(SessionIds("hdx_1", "rec_1")), TABLE, HALF_DUPLEX)
    stage.tell(Opened())
    stage.say("prepare")
    stage.tell(PrefillDone())
    return stage


SCENES = pytest.mark.parametrize("make", [duplex_scene, half_duplex_scene])


def sent(stage: Scene, chunks: int, every_s: float, duration_ms: int = 1_000) -> int:
    """Send chunks at a rate until the session ends; return how many were accepted."""
    sound = audio(duration_ms)
    for count in range(chunks):
        stage.say("audio_chunk", every_s, audio=sound)
        if stage.machine.is_closed:
            return count
    return chunks


@SCENES
def test_a_real_time_client_is_never_refused(make: Callable[[], Scene]) -> None:
    stage = make()
    assert sent(stage, 500, every_s=1.0) == 500
    assert sent(stage, 500, every_s=0.7) == 500, "a clock that runs fast"


@SCENES
def test_a_burst_after_a_network_outage_is_accepted(make: Callable[[], Scene]) -> None:
    stage = make()
    for _ in range(3):
        assert sent(stage, 1, every_s=40.0) == 1
        assert sent(stage, 39, every_s=0.0) == 39
        assert sent(stage, 30, every_s=1.0) == 30


@SCENES
def test_twice_as_fast_is_refused_with_the_limits_named(make: Callable[[], Scene]) -> None:
    stage = make()
    assert sent(stage, 500, every_s=0.5) == 157, "each second of sound is 0.25 s more ahead"
    told = stage.only(ErrorMessage)
    assert told.code is ErrorCode.RATE_LIMITED
    assert "1.5 times" in told.message and "40 s" in told.message
    assert stage.only(Close).code is CloseCode.TRY_LATER


def test_a_chunk_shorter_than_its_unit_counts_as_a_unit() -> None:
    stage = duplex_scene()
    assert sent(stage, 500, every_s=0.0, duration_ms=1) == 40
    assert "A chunk counts as at least 1000 ms." in stage.only(ErrorMessage).message
