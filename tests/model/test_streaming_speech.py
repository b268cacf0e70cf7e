"""Speech of streamed replies, and refused input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import DrawCodes, Vocode
from MiniCPMO45.processing.processor import PromptTooLongError
from MiniCPMO45.settings import SpeechSampling
from tests.fakes.scripted import CODE_EOS, markers, spoken
from tests.model.toy import Toy, speech
from tests.model.turns import GREEDY, SPOKEN, VARIED, ScriptedTurns, ToyTurns, joined

ANSWER = " I think that it is a very good day to go for a long walk and then read a book at home"


def conditions(talk: ScriptedTurns) -> list[DrawCodes]:
    begin = talk.model.model.config.tts_config.audio_bos_token_id
    return [call for call in talk.executor.of_kind(DrawCodes) if begin in call.rows.ids]


def say(talk: ScriptedTurns, n_tokens: int, **changes: Any) -> list[int]:
    """Generate a scripted spoken reply; return its ids."""
    talk.prefill("user", "hello")
    ids = talk.script(talk.encode(ANSWER)[:n_tokens])
    talk.generate(replace(SPOKEN, **changes))
    return ids


@pytest.mark.parametrize("n_tokens", [1, 9, 10, 11, 12, 20, 21, 22])
def test_every_token_is_spoken_once_with_its_hidden_state(toy: Toy, n_tokens: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ids = say(talk, n_tokens)
    assert len(ids) == n_tokens
    calls = conditions(talk)
    groups = [spoken(call) for call in calls]
    assert [token for group in groups for token in group] == ids
    assert [len(group) for group in groups[:-1]] == [10] * (len(groups) - 1)
    for call in calls:
        for _, states in call.rows.vectors:
            assert states[:, 0].tolist() == [*spoken(call)]
    config = talk.model.model.config.tts_config
    begin, end = config.audio_bos_token_id, config.text_eos_token_id
    assert [markers(call) for call in calls[:-1]] == [(begin,)] * (len(calls) - 1)
    assert markers(calls[-1]) == (end, begin)


def test_audio_of_the_system_message_is_no_user_audio(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("system", ["be like", speech(1.0, 1)], stream_input=True)
    assert talk.session.audio_input.cache.length == 0


def test_too_long_history_is_rejected_before_any_pass(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    with pytest.raises(PromptTooLongError, match="at most 20 are allowed"):
        talk.prefill_history([("user", "hello " * 50)], max_tokens=20)
    assert not talk.executor.requests
    assert isinstance(talk.session, Session) and talk.session.kv.length == 0


def test_codes_end_with_the_end_code(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.executor.codes = [7, 8, CODE_EOS]
    talk.prefill("user", "hello")
    talk.script(" yes")
    chunks, _ = talk.generate(SPOKEN)
    [run] = talk.executor.of_kind(Vocode)
    assert (run.codes[3:], run.is_last) == ((7, 8), True)
    assert np.all(joined(chunks)[1] != 0)


@pytest.mark.parametrize("n_tokens", [1, 2, 10, 11, 12, 22])
def test_given_text_is_spoken_with_its_hidden_states(toy: Toy, n_tokens: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ids = talk.encode(ANSWER)[:n_tokens]
    text = toy.tokenizer.decode(ids)
    talk.prefill("user", "hello")
    before = talk.session.kv.length
    settings = replace(SPOKEN, reply_start=f"{text}<|tts_eos|>", max_new_tokens=1)
    chunks, result = talk.generate(settings)
    assert (joined(chunks)[0], result.text, result.ids) == (text, text, tuple(ids))
    calls = conditions(talk)
    assert [token for call in calls for token in spoken(call)] == ids
    for call in calls:
        for _, states in call.rows.vectors:
            assert states[:, 0].tolist() == [*spoken(call)]
    assert markers(calls[-1])[0] == talk.model.model.config.tts_config.text_eos_token_id
    assert talk.cached[before:][-n_tokens:] == ids


def test_text_of_control_tokens_has_no_speech(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    chunks, result = talk.generate(replace(SPOKEN, reply_start="<|im_end|>", max_new_tokens=1))
    assert (chunks, result.text) == ([], "")


def test_reply_continues_a_given_prefix(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("user", "hello")
    talk.script(" and green")
    chunks, result = talk.generate(replace(GREEDY, reply_start="The tree is big"))
    assert joined(chunks)[0] == result.text == "The tree is big and green"


@pytest.mark.parametrize("said", ["", " I", " I think that it is a very good day to go for a walk"])
def test_a_function_call_is_written_and_not_spoken(toy: Toy, said: str) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    talk.script(said + call)
    chunks, _ = talk.generate(SPOKEN)
    assert joined(chunks)[0] == said + call
    calls = conditions(talk)
    assert [token for each in calls for token in spoken(each)] == talk.encode(said)
    assert bool(calls) == bool(said)
    if said:
        assert markers(calls[-1])[0] == talk.model.model.config.tts_config.text_eos_token_id


@pytest.mark.parametrize("pages", [0, 2])
def test_a_whole_reply_without_memory_for_its_speech_ends_early_with_all_its_text(
    toy: Toy, pages: int
) -> None:
    sampling = SpeechSampling(max_codes_per_reply=200, min_codes_per_reply=200)
    settings = replace(VARIED, generate_audio=True, speech=sampling)
    replies = []
    for is_full in (False, True):
        talk = ToyTurns(toy, has_voice=True)
        talk.prefill("user", "hello")
        store = talk.model.executor.tts_store
        if is_full:
            store.can_grow = False
            store.take_pages(store.free_pages - pages)
        replies.append(talk.reply_over_cache(settings))
    whole, early = replies
    assert early == whole and whole.text
    assert whole.waveform is not None and early.waveform is not None
    assert (len(early.waveform) > 0) is (pages > 0)
    assert len(early.waveform) < len(whole.waveform)
