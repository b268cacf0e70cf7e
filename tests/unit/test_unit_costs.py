"""What a `result` says of a unit's cost and of its pictures, as the documented examples show it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from core.engine.engine import InlineEngine, run_inline
from core.engine.passes import run_pass
from core.processors import DuplexView, ViewContext
from core.schemas.duplex_calls import DuplexGenerateResult
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.duplex import PrefillResult, UnitResult
from MiniCPMO45.processing.mel import MelState

FED = PrefillResult(True, vision_slices=2, cost_feed=0.011, cost_all=0.020)


class Duplex(DuplexView):
    """A view whose model needs 32 tokens for a slice of a picture."""

    made: UnitResult

    def streaming_prefill(self, *_: Any) -> Steps[PrefillResult]:
        yield from ()
        return FED

    def streaming_generate(self, *_: Any) -> Steps[UnitResult]:
        yield from ()
        return self.made


def step(made: UnitResult) -> DuplexGenerateResult:
    shared = dict.fromkeys(("policy", "defaults", "prompts"))
    tokenizer = SimpleNamespace(special=None)
    duplex = SimpleNamespace(config=MiniCPMOConfig(), tokenizer=tokenizer, **shared)
    model = SimpleNamespace(duplex=duplex)
    engine = InlineEngine(partial(run_pass, cast(Any, None)))
    speech = SimpleNamespace(vocoder=None)
    audio_input = SimpleNamespace(pending=torch.zeros(0), audio_units=0, mel=MelState())
    session = SimpleNamespace(speech=speech, cached_tokens=9, audio_input=audio_input)
    view = Duplex(ViewContext(cast(Any, model), engine))
    view._session = cast(Session, session)
    view.made = made
    done = run_inline(view.unit(np.zeros(16_000, np.float32)))
    assert done is not None
    return done


def test_listening_costs_the_pass_over_the_input_and_one_token() -> None:
    done = step(
        UnitResult(
            is_listen=True, cost_llm=0.001, cost_all=0.002, vision_slices=2, vision_tokens=64
        )
    )
    assert done.cost_llm_ms == pytest.approx(12.0)
    assert done.prefill_ms == pytest.approx(9.0), "encoding; the parts add up to the whole"
    assert done.cost_all_ms == pytest.approx(22.0)
    assert done.n_tokens == 1
    assert (done.vision_slices, done.vision_tokens) == (2, 64), "as the model counts them"


def test_a_spoken_unit_counts_its_decision_and_its_end() -> None:
    assert step(UnitResult(is_listen=False, text="Hello", n_tokens=1)).n_tokens == 3
