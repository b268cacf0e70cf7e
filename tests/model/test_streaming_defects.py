"""Every defect of docs/specification/model.md#5 that streaming can have: both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from MiniCPMO45.processing_minicpmo import PromptTooLongError
from MiniCPMO45.reply_policy import ReplyPolicy
from MiniCPMO45.session import Session
from MiniCPMO45.settings import GenerationSettings, SpeechSampling
from MiniCPMO45.steps import (
    DrawCodes,
    EncodeClips,
    Request,
    SpokenText,
    TextMarkers,
    Vocode,
)
from tests.fakes.scripted import CODE_COUNT, CODE_EOS, spoken
from tests.model.toy import Toy, speech
from tests.model.turns import GREEDY, SPOKEN, ScriptedTurns, ToyTurns, joined

ANSWER = " I think that it is a very good day to go for a long walk and then read a book at home"


def conditions(talk: ScriptedTurns) -> list[DrawCodes]:
    """Speech-decoder calls that start a run of codes."""
    calls = talk.executor.of_kind(DrawCodes)
    return [call for call in calls if any(isinstance(p, TextMarkers) for p in call.pieces)]


def markers(call: DrawCodes) -> tuple[int, ...]:
    """Marker ids of a condition."""
    return tuple(i for piece in call.pieces if isinstance(piece, TextMarkers) for i in piece.ids)


def say(talk: ScriptedTurns, n_tokens: int, **changes: Any) -> list[int]:
    """Ask, and have a spoken reply of some tokens written; returns the reply's ids."""
    talk.prefill("user", "hello")
    ids = talk.script(talk.encode(ANSWER)[:n_tokens])
    talk.generate(replace(SPOKEN, **changes))
    return ids


# Groups of ten and the held token


@pytest.mark.parametrize("n_tokens", [1, 9, 10, 11, 12, 20, 21, 22])
def test_every_token_reaches_speech_once_with_its_own_state(toy: Toy, n_tokens: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ids = say(talk, n_tokens)
    assert len(ids) == n_tokens
    calls = conditions(talk)
    groups = [spoken(call) for call in calls]
    assert [token for group in groups for token in group] == ids
    assert [len(group) for group in groups[:-1]] == [10] * (len(groups) - 1)
    for call in calls:
        for piece in call.pieces:
            if isinstance(piece, SpokenText):
                assert piece.hidden[:, 0].tolist() == [*piece.ids]
    config = talk.model.model.config.tts_config
    begin, end = config.audio_bos_token_id, config.text_eos_token_id
    assert [markers(call) for call in calls[:-1]] == [(begin,)] * (len(calls) - 1)
    assert markers(calls[-1]) == (end, begin)


@pytest.mark.parametrize("limit", [9, 10, 14, 20])
def test_d13_the_token_limit_loses_nothing(toy: Toy, limit: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    before = talk.session.kv.length
    ids = talk.script(ANSWER)
    pieces, result = talk.generate(replace(SPOKEN, max_new_tokens=limit))
    assert result.hit_limit
    assert [*result.ids] == ids[:limit]
    assert joined(pieces)[0] == result.text
    assert [token for call in conditions(talk) for token in spoken(call)] == ids[:limit]
    assert len(markers(conditions(talk)[-1])) == 2
    assert talk.session.kv.length == before + 10 + limit
    assert talk.cached[-limit:] == ids[:limit]


@pytest.mark.parametrize("has_voice", [True, False])
def test_d12_a_reply_may_be_empty(toy: Toy, has_voice: bool) -> None:
    talk = ScriptedTurns(toy, has_voice=has_voice)
    talk.prefill("user", "hello")
    talk.script("")
    pieces, result = talk.generate(SPOKEN if has_voice else GREEDY)
    assert (pieces, result.text, result.ids) == ([], "", ())
    assert talk.turn("again", " yes").text == " yes"


# Speech codes


def _codes_of(toy: Toy, seed: int) -> tuple[list[int], torch.Tensor]:
    """First codes of a reply whose code logits are nearly even, and those logits."""
    talk = ScriptedTurns(toy, has_voice=True)
    talk.session.sampler.generator.manual_seed(seed)
    even = torch.randn(CODE_COUNT, generator=torch.Generator().manual_seed(1)) * 0.1
    talk.executor.codes = [even, even]
    talk.prefill("user", "hello")
    talk.script(" yes")
    sampling = SpeechSampling(max_codes_per_chunk=2)
    talk.generate(GenerationSettings(speech=sampling, temperature=0.0))
    [run] = talk.executor.of_kind(Vocode)
    return list(run.codes[3:]), even


def test_d16_the_first_code_is_filtered_like_all_others(toy: Toy) -> None:
    for seed in range(5):
        codes, logits = _codes_of(toy, seed)
        best = set(logits.topk(25).indices.tolist())
        assert set(codes) <= best


# What may be said


def test_d11_full_width_marks_are_forbidden_on_request(toy: Toy) -> None:
    # Some vocabularies list the marks among what may never be spoken anyway.
    tokens, size = replace(toy.tokenizer.special, bad_token_ids=()), len(toy.tokenizer)
    assert tokens.full_width_mark_ids and tokens.ascii_mark_ids
    generator = torch.Generator().manual_seed(0)
    fixed = ReplyPolicy(tokens, torch.device("cpu"))
    asked = replace(SPOKEN, forbid_full_width_marks=True)
    for mark in tokens.full_width_mark_ids:
        logits = torch.zeros(size)
        logits[mark] = 9.0
        assert fixed.next_streamed(logits, [], SPOKEN, generator) == mark
        assert fixed.next_streamed(logits, [], asked, generator) != mark
    for mark in tokens.ascii_mark_ids:
        logits = torch.zeros(size)
        logits[mark] = 9.0
        assert fixed.next_streamed(logits, [], SPOKEN, generator) != mark
        assert fixed.next_streamed(logits, [], GREEDY, generator) == mark, "only in speech"


def test_d14_the_callers_temperature_counts(toy: Toy) -> None:
    tokens = toy.tokenizer.special
    logits = torch.full((len(toy.tokenizer),), -40.0)
    first, second = toy.tokenizer.encode(" go")[0], toy.tokenizer.encode(" see")[0]
    logits[first], logits[second] = 1.0, 0.9
    cold = GenerationSettings(temperature=0.01, generate_audio=False)
    policy, generator = ReplyPolicy(tokens, torch.device("cpu")), torch.Generator().manual_seed(0)
    assert {policy.next_streamed(logits, [], cold, generator) for _ in range(40)} == {first}


def test_d14_the_end_mark_is_not_doubled(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history([("user", "hello")])
    before = talk.cached
    talk.script(" yes")
    talk.generate()
    end = talk.encode("<|im_end|>\n")
    assert before[-len(end) :] == end
    assert talk.cached[len(before) : len(before) + len(end)] != end


# What is read


def test_d9_a_text_is_not_taken_apart(toy: Toy) -> None:
    assert ScriptedTurns(toy).prefill("user", "abc", omni_mode=False).endswith("user\nabc")


def test_d5_each_clip_is_read_by_itself(toy: Toy) -> None:
    clips = [speech(0.95, 1), speech(0.95, 2)]
    talk = ToyTurns(toy)
    talk.prefill_history([("user", clips)])
    [request] = talk.recorder.of_kind(EncodeClips)
    assert [mel.shape[1] for mel in request.mels] == [95, 95]


def test_d6_context_frames_do_not_enter_the_encoders_cache(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("user", [speech(3.1, 1)], stream_input=True)
    assert talk.session.hearing.cache.length == 150


def test_d34_the_first_second_is_remembered(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("user", [speech(1.1, 1)], stream_input=True)
    assert talk.session.hearing.cache.length == 50
    talk.prefill("user", [speech(1.1, 2)], stream_input=True)
    assert talk.session.hearing.cache.length == 100


def test_the_systems_sound_is_not_remembered_as_the_users(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("system", ["be like", speech(1.0, 1)], stream_input=True)
    assert talk.session.hearing.cache.length == 0


def test_d10_rounds_know_their_lengths(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    say(talk, 12)
    rounds = talk.session.window.rounds
    assert sum(each.length for each in rounds) == talk.session.kv.length


# Failures


class _Mute:
    """An executor whose vocoder fails."""

    def __init__(self, talk: ScriptedTurns) -> None:
        self.talk = talk

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        """Answer what is not about sound."""
        if any(isinstance(request, DrawCodes) for request in requests):
            raise RuntimeError("out of memory")
        return self.talk.executor.answer(requests)


def test_d18_a_failure_of_speech_is_told(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.answers = _Mute(talk)
    with pytest.raises(RuntimeError, match="out of memory"):
        say(talk, 5)


def test_a_history_that_is_too_long_is_refused_before_anything_runs(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    with pytest.raises(PromptTooLongError) as caught:
        talk.prefill_history([("user", "hello " * 50)], max_tokens=20)
    assert caught.value.n_tokens > 20
    assert not talk.executor.requests
    assert isinstance(talk.session, Session) and talk.session.kv.length == 0


def test_a_run_of_codes_ends_when_the_model_says_so(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.executor.codes = [7, 8, CODE_EOS]
    talk.prefill("user", "hello")
    talk.script(" yes")
    pieces, _ = talk.generate(SPOKEN)
    [run] = talk.executor.of_kind(Vocode)
    assert (run.codes[3:], run.is_last) == ((7, 8), True)
    assert np.all(joined(pieces)[1] != 0)
