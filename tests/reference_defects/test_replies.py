"""Turn-based replies: D7 to D18, D30, D32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.engine.passes import run_alone
from MiniCPMO45.engine.policies import ReplyPolicy, draw
from MiniCPMO45.engine.steps import DrawCodes, LlmForward
from MiniCPMO45.processing.processor import Message
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.token2wav.vocoder import HOP_CODES, WINDOW_CODES, cut_whole_reply
from tests.fakes.batching import at_once
from tests.fakes.scripted import CODE_EOS, markers, spoken
from tests.goldens.recorded_chat import GappedStreaming
from tests.goldens.recorded_model import GappedRope
from tests.model.toy import Toy
from tests.model.turns import GREEDY, SPOKEN, ScriptedTurns, ToyTurns
from tests.reference_defects.conftest import Recorded

CPU = torch.device("cpu")
ANSWER = " I think that it is a very good day to go for a long walk and then read a book at home"
SPEECH_END = "<|tts_eos|>"


def ask(talk: ScriptedTurns, ids: list[int], settings: GenerationSettings = GREEDY) -> Any:
    talk.executor.decisions, talk.executor.codes = list(ids), [*range(5), CODE_EOS]
    steps = talk.reply([Message("user", "hello")], settings)
    return run_alone(steps, talk.answers)


def groups(talk: ScriptedTurns) -> list[tuple[int, ...]]:
    return [spoken(call) for call in talk.executor.of_kind(DrawCodes) if spoken(call)]


@pytest.mark.parametrize(("text", "rule"), [("Yes", "Y"), ("test", ""), ("hello!", "hell")])
def test_d7_only_the_mark_itself_is_removed(toy: Toy, text: str, rule: str) -> None:
    talk = ScriptedTurns(toy)
    kept = [token for token in talk.encode(text) if token != 0]  # 0 pads, and is a "!"
    assert talk.tokenizer.decode(kept).rstrip(SPEECH_END) == rule
    assert ask(talk, [*talk.encode(text), talk.tokens.im_end]).text == text


def test_d8_a_reply_is_one_candidate(toy: Toy) -> None:
    talk = ToyTurns(toy)
    settings = replace(GREEDY, max_new_tokens=3, min_new_tokens=3)
    talk.run(talk.reply([Message("user", "hello")], settings))
    fed = talk.recorder.of_kind(LlmForward)[1:]
    rule = 3 * 2  # three beams, of which two tokens are fed
    assert (len(fed), rule) == (2, 6)


def test_d9_a_text_is_not_taken_apart(toy: Toy) -> None:
    fed = ScriptedTurns(toy).prefill("user", "abc", omni_mode=False)
    rule = "\n".join(part for part in "abc")
    assert fed.endswith("user\nabc") and not fed.endswith(rule)


def test_d10_rounds_know_their_lengths(toy: Toy, recorded: Recorded) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.turn("hello", ANSWER, SPOKEN)
    rounds = talk.session.window.rounds
    assert sum(each.length for each in rounds) == talk.session.kv.length
    [turn, *_] = recorded("chat_speech").meta("chat_speech_meta")["turns"]
    rule = sum(each["length"] for each in turn["rounds"])
    assert rule < turn["kv_after_generate"], "the reply's prefix is missing"


def test_d11_full_width_marks_have_ids_of_their_own(toy: Toy) -> None:
    tokens = replace(toy.tokenizer.special, bad_token_ids=())
    rule = {*tokens.ascii_mark_ids, tokens.unk}  # every full-width mark is taken for <unk>
    policy, generator = ReplyPolicy(tokens, CPU), torch.Generator()
    asked = replace(SPOKEN, forbid_full_width_marks=True)
    for mark in tokens.full_width_mark_ids:
        logits = torch.zeros(len(toy.tokenizer))
        logits[mark] = 9.0
        assert mark not in rule
        assert policy.next_token(logits, [], asked, generator) != mark


@pytest.mark.parametrize("settings", [GREEDY, SPOKEN])
def test_d12_a_reply_may_be_empty(toy: Toy, settings: GenerationSettings) -> None:
    talk = ScriptedTurns(toy, has_voice=settings is SPOKEN)
    talk.prefill("user", "hello")
    talk.script("")
    pieces, result = talk.generate(settings)
    assert (pieces, result.text, result.ids) == ([], "", ())
    with pytest.raises(RuntimeError):
        torch.stack([])  # the rule: states of a group are stacked, even of none


@pytest.mark.parametrize("limit", [9, 14, 20])
def test_d13_the_token_limit_loses_nothing(toy: Toy, limit: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    ids = talk.script(ANSWER)
    _, result = talk.generate(replace(SPOKEN, max_new_tokens=limit))
    drawn = -(-limit // 10) * 10 + 1
    rule = ids[:drawn][:-1]  # rounded up to whole groups, and the last token drawn is lost
    assert list(result.ids) == [token for group in groups(talk) for token in group] == ids[:limit]
    assert len(rule) == drawn - 1 and drawn > limit
    last = talk.executor.of_kind(DrawCodes)[-1]
    is_condition = bool(last.rows.vectors) or len(last.rows) > 1
    assert not is_condition or len(markers(last)) == 2, "the end of the text is marked"


def test_d14_the_callers_temperature_counts(toy: Toy) -> None:
    logits = torch.full((len(toy.tokenizer),), -40.0)
    first, second = toy.tokenizer.encode(" go")[0], toy.tokenizer.encode(" see")[0]
    logits[first], logits[second] = 1.0, 0.9
    generator = torch.Generator().manual_seed(0)
    rule = {draw(logits / GenerationSettings().temperature, generator) for _ in range(40)}
    cold = GenerationSettings(temperature=0.01, generate_audio=False)
    policy = ReplyPolicy(toy.tokenizer.special, CPU)
    ours = {policy.next_token(logits, [], cold, generator) for _ in range(40)}
    assert (ours, rule) == ({first}, {first, second})


def test_d14_the_end_mark_is_not_doubled(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history([("user", "hello")])
    before, end = talk.cached, talk.encode("<|im_end|>\n")
    talk.script(" yes")
    talk.generate()
    rule = before + end  # a reply begins as if the message before it were open
    assert before[-len(end) :] == end
    assert talk.cached[: len(rule)] != rule


def test_d15_a_whole_reply_over_a_cache_is_spoken(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    ids = talk.script(" yes")
    reply = talk.reply_over_cache(SPOKEN)
    late = 10  # positions by which the rule takes the states too late: none is left
    assert len(ids[late:]) == 0
    assert (reply.text, list(groups(talk)[0])) == (" yes", ids)


def test_d16_every_code_is_filtered(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    talk.script(" yes")
    talk.generate(SPOKEN)
    rule = talk.executor.of_kind(DrawCodes)[0].rule
    logits, generator = torch.zeros(CODE_EOS + 1), torch.Generator().manual_seed(0)
    logits[:5] = torch.tensor([5.0, 4.9, 4.8, 4.7, 4.6])
    few = replace(rule, is_greedy=False, temperature=1.0, top_k=3, top_p=1.0)
    ours = {few.choose(logits, [], CODE_EOS, generator, may_end=False) for _ in range(60)}
    unfiltered = {draw(logits, generator) for _ in range(60)}
    assert ours == {0, 1, 2} and not unfiltered <= {0, 1, 2}


def test_d16_the_code_limit_leaves_no_gap(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ours = talk.executor.tts_store.rope
    rule = GappedRope(ours.frequencies)
    usual = talk.model.streaming
    gapped = GappedStreaming(usual.config, usual.tokenizer, usual.policy)
    gapped.rope, talk.model.streaming = rule, gapped
    talk.prefill("user", "hello")
    talk.script(talk.encode(ANSWER)[:12])
    talk.generate(SPOKEN)
    assert len(rule.gaps) == 2, "both groups of text end at the limit of codes"
    behind = torch.tensor([rule.gaps[-1]])
    for mine, theirs in zip(
        ours.tables(behind + 2, torch.float32), rule.tables(behind, torch.float32), strict=True
    ):
        assert torch.equal(mine, theirs), "two positions are left out"


@pytest.mark.parametrize("ends", [True, False])
def test_d17_a_reply_without_an_end_mark_is_spoken(toy: Toy, ends: bool) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ids = talk.encode(" good morning")
    settings = replace(SPOKEN, max_new_tokens=64 if ends else len(ids))
    reply = ask(talk, [*ids, talk.tokens.im_end] if ends else ids, settings)
    states = len(ids) - (0 if ends else 1)
    span = len(ids) + (1 if ends else 0)  # the rule wants a state of each, or says nothing
    assert span > states
    assert reply.waveform is not None and list(groups(talk)[0]) == ids[:states]


def test_d18_a_failure_of_speech_is_told(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)

    class Mute:
        @at_once
        def submit(self, requests: Any) -> Any:
            if any(isinstance(request, DrawCodes) for request in requests):
                raise RuntimeError("out of memory")
            return talk.executor.submit(requests)()

    talk.answers = Mute()
    with pytest.raises(RuntimeError, match="out of memory"):  # the rule logs it and goes on
        ask(talk, [*talk.encode(" yes"), talk.tokens.im_end], SPOKEN)


@pytest.mark.parametrize("n_codes", [28, 53, 78])
def test_d30_a_window_that_ends_with_the_last_code_ends_the_reply(n_codes: int) -> None:
    codes = list(range(n_codes))
    starts = range(0, n_codes - WINDOW_CODES + 1, HOP_CODES)
    rest = codes[len(starts) * HOP_CODES :]  # what the rule speaks after the last full window
    assert rest == codes[-3:], "its look-ahead, which was spoken already"
    pieces = cut_whole_reply(codes)
    assert pieces[-1].is_last and len(pieces) == len(starts)


def test_d32_a_turn_computes_no_checksums(toy: Toy, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        ScriptedTurns(toy).turn("hello", " yes")
    assert not caplog.records, "the rule sums the cache and logs the sum, which waits for a GPU"
