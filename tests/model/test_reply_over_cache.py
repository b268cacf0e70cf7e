"""A whole reply to a cached conversation equals the streamed one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from MiniCPMO45.engine.steps import DrawCodes, SpokenText
from MiniCPMO45.settings import GenerationSettings, SpeechSampling
from tests.fakes.scripted import CODE_EOS, spoken
from tests.model.toy import Toy
from tests.model.turns import VARIED, ScriptedTurns, ToyTurns

CODES = SpeechSampling(max_codes_per_reply=60, min_codes_per_reply=0)
SPOKEN = GenerationSettings(do_sample=False, speech=CODES)


def test_a_whole_reply_over_a_cache_is_the_streamed_one(toy: Toy) -> None:
    whole, streamed = ToyTurns(toy), ToyTurns(toy)
    for talk in (whole, streamed):
        talk.prefill("user", "tell me")
    reply = whole.reply_over_cache(VARIED)
    result = streamed.generate(VARIED)[1]
    assert (reply.text, reply.ids) == (result.text, result.ids)
    assert whole.session.kv.length == streamed.session.kv.length
    assert whole.session.window.rounds == streamed.session.window.rounds


@pytest.mark.parametrize("limit", [4, 40])
def test_a_whole_reply_over_a_cache_is_spoken_with_its_own_states(toy: Toy, limit: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    ids = talk.script(" good morning to you")[:limit]
    talk.executor.codes = [1, 2, 3, CODE_EOS]
    settings = replace(SPOKEN, max_new_tokens=limit)
    reply = talk.reply_over_cache(settings)
    assert [*reply.ids] == ids
    first = talk.executor.of_kind(DrawCodes)[0]
    assert spoken(first) == tuple(ids)
    [piece] = [p for p in first.pieces if isinstance(p, SpokenText)]
    assert piece.hidden[:, 0].tolist() == ids
    assert reply.waveform is not None and reply.waveform.size
    assert talk.cached[-len(ids) :] == ids
