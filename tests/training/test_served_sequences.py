"""Training sequences equal those of serving, in tokens and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.policies import ReplyPolicy, UnitPolicy
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.modes.prompt_input import PrefillOptions, render_message, render_question
from MiniCPMO45.modes.streaming import StreamingCapability
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import DuplexSettings, GenerationSettings
from tests.pairing import by_default
from tests.training.conftest import Nano
from training.nano.batches import collate
from training.nano.model import NanoModel
from training.nano.sessions import LEAD_SAMPLES, DuplexSession, Example
from training.nano.turns import TurnsSession

CPU = torch.device("cpu")
UNIT_SAMPLES = 16_000


class Script:
    """Scripted decisions, and the logits of each."""

    def __init__(self, decisions: Sequence[int]) -> None:
        self.decisions = list(decisions)
        self.logits: list[Tensor] = []

    def __call__(self, logits: Tensor) -> int:
        self.logits.append(logits)
        return self.decisions.pop(0)


class ScriptedUnits(UnitPolicy):
    def __init__(self, tokens: SpecialTokens, script: Script) -> None:
        super().__init__(tokens, CPU)
        self.script = script

    def decide(self, logits: Tensor, *_: Any) -> int:
        return self.script(logits)


class ScriptedReplies(ReplyPolicy):
    def __init__(self, tokens: SpecialTokens, script: Script) -> None:
        super().__init__(tokens, CPU)
        self.script = script

    def next_token(self, logits: Tensor, *_: Any, **__: Any) -> int:
        return self.script(logits)


def executor_of(nano_model: NanoModel) -> Executor:
    torch.manual_seed(2)
    model = MiniCPMOForConditionalGeneration(nano_model.config).requires_grad_(False).eval()
    model.load_state_dict(nano_model.state_dict(), strict=False)
    return Executor(model)


def learned_logits(nano: Nano, nano_model: NanoModel, example: Example) -> tuple[Tensor, list[int]]:
    """Return the logits in training [n, vocabulary] before each learned id, and these ids."""
    batch = collate([example], nano.processor.tokenizer.special.unk)
    with torch.inference_mode():
        hidden = nano_model(batch).hidden[0]
        places = decided_places(nano, example)
        return nano_model.llm.lm_head(hidden[[at - 1 for at in places]]), [
            example.layout.ids[at] for at in places
        ]


def decided_places(nano: Nano, example: Example) -> list[int]:
    """Positions of predicted ids, including those without loss."""
    layout, tokens = example.layout, nano.processor.tokenizer.special
    if not layout.units:
        return [at for at, weight in enumerate(layout.weights) if weight > 0]
    places: list[int] = []
    for start in layout.units:
        stop = layout.ids.index(tokens.unit_end, start)
        places += range(start + 10, stop)
    return places


@pytest.mark.parametrize("seed", by_default([2, 5], [2, 3, 5, 8]))
def test_duplex_sequence_equals_serving(nano: Nano, seed: int) -> None:
    nano_model = nano.fresh_model()
    session = DuplexSession(nano.bank, nano.processor.tokenizer, Random(seed), 14)
    example = session.compose()
    expected, decisions = learned_logits(nano, nano_model, example)

    executor, script = executor_of(nano_model), Script(decisions)
    tokenizer = nano.processor.tokenizer
    duplex = DuplexCapability(
        nano_model.config, tokenizer, ScriptedUnits(tokenizer.special, script)
    )
    served = executor.open_session("test", seed=0)
    voice = example.clips[0] if example.clips else None
    prefix = duplex_prefix(session.dialogue.system_text)
    settings = DuplexSettings(force_listen_count=0, generate_audio=False)
    run_alone(
        duplex.feed_prompt(served, prefix, duplex_suffix(), settings=settings, voice_sample=voice),
        executor,
    )
    for unit in range(session.n_units):
        start = LEAD_SAMPLES + unit * UNIT_SAMPLES
        samples = example.stream[start : start + UNIT_SAMPLES]
        whole = np.pad(samples, (0, UNIT_SAMPLES - len(samples)))  # the last 5 ms are missing
        assert run_alone(duplex.streaming_prefill(served, whole), executor).success
        run_alone(duplex.streaming_generate(served), executor)
        run_alone(duplex.close_unit(served), executor)

    assert not script.decisions
    torch.testing.assert_close(torch.stack(script.logits), expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("seed", by_default(range(3), range(8)))
def test_turn_based_sequence_equals_serving(nano: Nano, seed: int) -> None:
    nano_model = nano.fresh_model()
    session = next(
        each
        for each in (TurnsSession(nano.bank, nano.processor, Random(seed + n)) for n in range(99))
        if not each.has_pictures and each.is_one_shot == bool(seed % 2)
    )
    example = session.compose()
    expected, decisions = learned_logits(nano, nano_model, example)

    executor, script = executor_of(nano_model), Script(decisions)
    tokens = nano.processor.tokenizer.special
    policy = ScriptedReplies(tokens, script)
    settings = GenerationSettings(generate_audio=False, use_speech_template=session.can_be_spoken)
    served = executor.open_session("test", seed=0)
    streaming = StreamingCapability(nano_model.config, nano.processor.tokenizer, policy)
    if session.is_one_shot:
        prompt = render_question(nano.processor, session.messages[:-1], settings)
        reply = run_alone(streaming.reply(served, prompt, settings), executor)
        assert reply.text == session.messages[-1].content
    else:
        options = PrefillOptions(use_tts_template=session.can_be_spoken)
        for message in session.messages:
            if message.role == "assistant":
                run_alone(streaming.generate(served, settings), executor)
            else:
                prompt = render_message(nano.processor, served, message, options)
                run_alone(streaming.prefill(served, prompt, options), executor)

    assert not script.decisions
    torch.testing.assert_close(torch.stack(script.logits), expected, atol=2e-3, rtol=1e-3)
