"""Duplex and half-duplex machines on a stage, and possible outcomes of a unit."""

from __future__ import annotations

from typing import Any

from core.protocols import half_duplex
from core.protocols.duplex import TABLE, DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Step
from core.protocols.events import (
    FinalizeDone,
    Opened,
    PrefillDone,
    StepDone,
)
from core.protocols.half_duplex import HalfDuplexLimits, HalfDuplexMachine
from core.protocols.machine import SessionIds
from core.schemas.duplex_calls import DuplexGenerateResult
from tests.fakes.scenes import DUPLEX, HALF_DUPLEX, Scene, audio

CHUNK = audio(1_000)
LISTEN = DuplexGenerateResult(is_listen=True)
SPEAK = DuplexGenerateResult(is_listen=False, text="Hello", audio_data="AAAAAA==")
LAST_WORDS = DuplexGenerateResult(is_listen=False, text=".", end_of_turn=True)


def scene(*, active: bool = True, prepare: dict[str, Any] | None = None, **limits: Any) -> Scene:
    """An opened machine; prepared if `active`."""
    machine = DuplexMachine(SessionIds("omni_1", "rec_1"), DuplexLimits(**limits))
    stage = Scene(machine, TABLE, DUPLEX)
    stage.tell(Opened())
    if active:
        stage.say("prepare", **(prepare or {}))
        stage.tell(PrefillDone(input_tokens=30, prompt_length=100, kv_tokens=30))
    return stage


def half_duplex_scene(*, active: bool = True, timeout_s: float = 180.0, **limits: Any) -> Scene:
    """An opened machine; if `active`, listening after the cold start."""
    machine = HalfDuplexMachine(SessionIds("hdx_1", "rec_1"), HalfDuplexLimits(**limits))
    stage = Scene(machine, half_duplex.TABLE, HALF_DUPLEX)
    stage.tell(Opened())
    if active:
        stage.say("prepare", config={"session": {"timeout_s": timeout_s}})
        stage.tell(PrefillDone())
        stage.say("audio_chunk", audio=audio(500))
    return stage


def listened(kv_tokens: int) -> StepDone:
    """The model listened, and that many tokens are in its cache."""
    return StepDone(LISTEN.model_copy(update={"kv_cache_length": kv_tokens}))


def step(stage: Scene, result: DuplexGenerateResult = LISTEN, **fields: Any) -> list[str]:
    """End the running step and its `Finalize`, if that began."""
    return stage.tell(StepDone(result, **fields)) + stage.tell(FinalizeDone())


def unit_frames(stage: Scene) -> tuple[str, ...]:
    """Pictures of the unit begun by the last event."""
    return tuple(frame.data for frame in stage.only(Step).frames)
