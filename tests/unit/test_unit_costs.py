"""What a `result` says of a unit's cost and of its pictures, as the documented examples show it."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from core.processors import DuplexView
from core.processors.results import duplex_record
from core.protocols.events import StepDone
from core.schemas.duplex_calls import DuplexGenerateResult
from core.serving.backend import Signals, Unit
from core.serving.real_talks import RealDuplexTalk
from MiniCPMO45.unit_results import PrefillResult, UnitResult

FED = PrefillResult(
    True,
    vision_slices=2,
    cost_vision_embed=0.004,
    cost_vision_feed=0.001,
    cost_audio_feed=0.010,
    cost_all=0.020,
)


class View:
    """Looks like a view whose model needs 32 tokens for a slice of a picture."""

    kv_cache_length = 9
    context = SimpleNamespace()

    def __init__(self, made: UnitResult) -> None:
        self.made = made

    def stream_unit(self, *_: Any) -> Generator[Any, None, tuple[PrefillResult, UnitResult]]:
        """Feed and answer nothing."""
        yield from ()
        return FED, self.made

    def to_record(self, unit: UnitResult) -> DuplexGenerateResult:
        """Return the unit as the wire has it."""
        return duplex_record(unit, unit_ms=1_000, has_voice=False)


def run(unit: Unit) -> StepDone:
    """Return the end of a unit without early sound."""
    with pytest.raises(StopIteration) as end:
        next(unit)
    done: StepDone = end.value.value
    return done


def step(made: UnitResult) -> StepDone:
    """Run one unit that ends like this."""
    talk = RealDuplexTalk(cast(DuplexView, View(made)), Signals())
    return run(talk.step(np.zeros(16_000, np.float32), (), None, False))


def test_listening_costs_the_pass_over_the_input_and_one_token() -> None:
    done = step(UnitResult(is_listen=True, cost_llm=0.001, cost_all=0.002, vision_tokens=64))
    assert done.result.cost_llm_ms == pytest.approx(12.0)
    assert done.prefill_ms == pytest.approx(9.0), "encoding; the parts add up to the whole"
    assert done.result.cost_all_ms == pytest.approx(22.0)
    assert done.result.n_tokens == 1
    assert (done.vision_slices, done.vision_tokens) == (2, 64), "as the model counts them"


def test_a_spoken_unit_counts_its_decision_and_its_end() -> None:
    assert step(UnitResult(is_listen=False, text="Hello", n_tokens=1)).result.n_tokens == 3
