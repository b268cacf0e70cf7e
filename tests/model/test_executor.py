"""The executor answers mixed requests in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor, MissingVoiceError
from MiniCPMO45.engine.kv_cache import CacheFullError, KvRows, Rows
from MiniCPMO45.engine.policies import CodeRule, UnitPolicy
from MiniCPMO45.engine.steps import (
    ChooseToken,
    DrawCodes,
    DrawnCodes,
    EncodeClips,
    EncodeImages,
    LlmForward,
    LlmOutput,
    OpenVoice,
    Request,
    TextDecision,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import MAX_VOICES, AudioEmbedder, EncodeStream, new_audio_cache
from MiniCPMO45.modes.prompt_input import PrefillOptions, render_message
from MiniCPMO45.processing.mel import clip_mels
from MiniCPMO45.processing.pictures import to_patches
from MiniCPMO45.processing.processor import Message
from MiniCPMO45.settings import GREEDY, DuplexSettings
from tests.fakes.batching import answer_by_kind
from tests.model.toy import Toy, assert_close, picture, speech
from tests.model.turns import unified

CPU = torch.device("cpu")
RULE = CodeRule(temperature=0.8, repetition_penalty=1.05)


@pytest.fixture
def executor(toy: Toy) -> Executor:
    return toy.executor()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _requests(toy: Toy, executor: Executor) -> list[Request]:
    """Two of most kinds, mixed, each with caches of its own."""
    generator = torch.Generator().manual_seed(0)

    def rows(count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=generator)

    llm, tts = executor.llm_store.open, executor.tts_store.open

    def stream(n_frames: int, is_first: bool) -> EncodeStream:
        cache = new_audio_cache(toy.config.audio_config)
        return EncodeStream(rows(80, n_frames).mul(0.1), cache, is_first)

    def decision(seed: int, **changes: Any) -> TextDecision:
        policy = UnitPolicy(toy.tokenizer.special, executor.device)
        return TextDecision(policy, [], DuplexSettings(**changes), _generator(seed))

    def codes(fed: Rows, count: int, seed: int) -> DrawCodes:
        eos = toy.config.tts_config.speech_eos_id
        return DrawCodes(tts(), fed, RULE, (), eos, _generator(seed), count, least=count)

    width, first = toy.config.hidden_size, toy.config.tts_config.num_text_tokens
    return [
        LlmForward(llm(), Rows.of((1, 2), rows(3, width), (4,))),
        codes(Rows((5, 6, 7), ((0, rows(2, width)),)), 4, 1),
        stream(102, True),
        EncodeImages(tuple(to_patches(picture(n, 56, 42)) for n in range(2))),
        Vocode(toy.open_voice(), tuple(range(10, 38)), False),
        LlmForward(llm(), Rows((9,)), wants_logits=False),
        EncodeClips((rows(80, 90).mul(0.1),), 50),
        codes(Rows((first + 8,)), 2, 2),
        ChooseToken(rows(1, len(toy.tokenizer))[0], decision(3)),
        LlmForward(llm(), Rows((3,)), wants_logits=False, decision=decision(4)),
        ChooseToken(rows(1, len(toy.tokenizer))[0], decision(5, decode_mode="greedy")),
        stream(104, False),
        EncodeImages((to_patches(picture(5, 70, 28)),)),
        Vocode(toy.open_voice(), (1, 2, 3, 4, 5), True),
    ]


def _assert_close(one: Any, other: Any) -> None:
    if isinstance(one, LlmOutput):
        assert (one.logits is None) is (other.logits is None)
        if one.logits is not None:
            assert_close(one.logits, other.logits)
        assert_close(one.hidden, other.hidden)
        assert one.token == other.token
    elif isinstance(one, int | DrawnCodes):
        assert one == other
    elif isinstance(one, Tensor):
        assert_close(one, other)
    else:
        for mine, theirs in zip(one, other, strict=True):
            _assert_close(mine, theirs)


def test_a_mixed_group_is_answered_like_each_request_alone(toy: Toy, executor: Executor) -> None:
    together = answer_by_kind(_requests(toy, executor), executor)
    alone = [executor.submit([request])()[0] for request in _requests(toy, executor)]
    for one, other in zip(together, alone, strict=True):
        _assert_close(one, other)


def _encoder_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clips of each pass of the audio encoder over whole clips, from now on."""
    calls: list[int] = []
    embed = AudioEmbedder.embed_clips

    def counted(self: AudioEmbedder, mels: Sequence[Tensor], block: int | None) -> list[Tensor]:
        calls.append(len(mels))
        return embed(self, mels, block)

    monkeypatch.setattr(AudioEmbedder, "embed_clips", counted)
    return calls


def test_a_known_voice_sample_is_not_encoded_again(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, calls = toy.executor(), _encoder_calls(monkeypatch)
    sample, longer = (tuple(clip_mels(speech(seconds, 3))) for seconds in (2.0, 2.5))
    [plain] = executor.submit([EncodeClips(sample, 50)])()
    together = executor.submit([EncodeClips(sample, 50, is_voice=True) for _ in range(3)])()
    [again] = executor.submit([EncodeClips(sample, 50, is_voice=True)])()
    assert calls == [1, 1], "one of a user's clip, one of the voice sample"
    for [rows] in (*together, again):
        assert torch.equal(rows, plain[0])
    executor.submit([EncodeClips(sample, None, is_voice=True)])()
    executor.submit([EncodeClips(longer, 50, is_voice=True)])()
    executor.submit([EncodeClips(sample, 50)])()
    assert len(calls) == 5


def test_the_voice_sample_unused_longest_is_encoded_again(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, calls = toy.executor(), _encoder_calls(monkeypatch)

    def ask(seed: int) -> None:
        mels = tuple(clip_mels(speech(1.0, seed)))
        executor.submit([EncodeClips(mels, 50, is_voice=True)])()

    for seed in range(MAX_VOICES):
        ask(seed)
    ask(0)
    ask(MAX_VOICES)
    assert len(calls) == MAX_VOICES + 1
    ask(0)
    assert len(calls) == MAX_VOICES + 1
    ask(1)
    assert len(calls) == MAX_VOICES + 2


@pytest.mark.parametrize("mode", ["duplex", "turns"])
def test_the_second_conversation_with_a_voice_takes_its_encoded_sample(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    model, calls = unified(toy), _encoder_calls(monkeypatch)
    executor = model.executor

    def begin(suffix: str) -> KvRows:
        session = executor.open_session("toy", seed=0)
        if mode == "duplex":
            prompt = toy.duplex().feed_prompt(session, "a", suffix, voice_sample=speech(2.0, 3))
            run_alone(prompt, executor)
        else:
            options = PrefillOptions()
            message = Message("system", ["a", speech(2.0, 3), suffix])
            rendered = render_message(model.processor, session, message, options)
            run_alone(model.streaming.prefill(session, rendered, options), executor)
        return session.kv.rows(0, session.kv.length)

    first, other, again = begin("b"), begin("c"), begin("b")
    assert calls == [1]
    assert torch.equal(first.keys, again.keys) and torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)


def test_one_pass_per_kind(toy: Toy, executor: Executor) -> None:
    calls: list[object] = []
    decoders = toy.model.llm.model, toy.model.tts.model
    hooks = [each.register_forward_hook(lambda part, *_: calls.append(part)) for each in decoders]
    answer_by_kind(_requests(toy, executor), executor)
    for hook in hooks:
        hook.remove()
    assert [calls.count(each) for each in decoders] == [1, 4], "one per code of the longest run"


def test_nothing_asked_is_nothing_answered(executor: Executor) -> None:
    assert executor.submit([])() == []


def test_hidden_states_are_those_of_every_row_fed(executor: Executor) -> None:
    [output] = executor.submit([LlmForward(executor.llm_store.open(), Rows.of((1, 2), (3,)))])()
    head = executor.model.llm.lm_head
    assert output.hidden.shape == (3, executor.model.config.hidden_size)
    assert_close(output.logits, head(output.hidden[-1]))


def test_a_decision_is_that_of_the_policy_on_the_logits(toy: Toy, executor: Executor) -> None:
    policy = UnitPolicy(toy.tokenizer.special, executor.device)
    for settings in (DuplexSettings(), DuplexSettings(decode_mode="greedy")):
        history: list[int] = []
        decision = TextDecision(policy, history, settings, _generator(3))
        rows = Rows((1, 2, 3))
        [plain] = executor.submit([LlmForward(executor.llm_store.open(), rows)])()
        [output] = executor.submit(
            [LlmForward(executor.llm_store.open(), rows, wants_logits=False, decision=decision)]
        )()
        again = TextDecision(policy, [], settings, _generator(3))
        assert executor.submit([ChooseToken(plain.logits, again)])() == [output.token]
        assert (output.logits, history) == (None, again.history)
        if settings.decode_mode == GREEDY:
            assert output.token == policy.decide(plain.logits, [], settings, _generator(3))


def test_a_decision_with_more_candidates_than_the_sampler_has_is_the_policys(
    toy: Toy, executor: Executor
) -> None:
    """Beside one that the sampler takes."""
    policy, rows = UnitPolicy(toy.tokenizer.special, executor.device), Rows((1, 2, 3))
    wide, usual = DuplexSettings(top_k=0, top_p=0.99), DuplexSettings()

    def feed(settings: DuplexSettings) -> LlmForward:
        decision = TextDecision(policy, [], settings, _generator(3))
        return LlmForward(executor.llm_store.open(), rows, decision=decision)

    first, second = executor.submit([feed(wide), feed(usual)])()
    assert first.token == policy.decide(first.logits, [], wide, _generator(3))
    assert second.token == executor.submit([feed(usual)])()[0].token


def test_codes_with_more_candidates_than_the_sampler_has_are_the_rules(
    toy: Toy, executor: Executor
) -> None:
    """Fed back one by one, with the rule's own draws, and as far as any others."""
    rule, eos = CodeRule(1.0, 1.05, top_p=0.95), toy.config.tts_config.speech_eos_id

    def run(rule: CodeRule) -> DrawCodes:
        kv, rows = executor.tts_store.open(), Rows((7, 8))
        return DrawCodes(kv, rows, rule, (), eos, _generator(0), 5, least=5)

    runs = [run(rule), run(RULE), run(rule)]
    first, _, same = executor.submit(runs)()
    assert first == same and len(first.codes) == 5
    assert [each.kv.length for each in runs] == [2 + 4] * 3
    greedy = [run(replace(rule, is_greedy=True)), run(replace(RULE, is_greedy=True))]
    by_rule = executor.submit([replace(greedy[0], rule=replace(rule, is_greedy=True, top_k=300))])()
    assert by_rule == executor.submit([greedy[1]])()


def test_codes_are_fed_back_but_for_the_last(toy: Toy, executor: Executor) -> None:
    """For any number of requests per run."""
    eos = toy.config.tts_config.speech_eos_id
    results = []
    for counts in ((6,), (1, 5), (2, 2, 2)):
        kv, generator = executor.tts_store.open(), _generator(0)
        rows, first = Rows((7, 8)), toy.config.tts_config.num_text_tokens
        drawn: tuple[int, ...] = ()
        for count in counts:
            request = DrawCodes(kv, rows, RULE, drawn[-16:], eos, generator, count, least=count)
            [answer] = executor.submit([request])()
            assert not answer.has_ended
            drawn += answer.codes
            rows = Rows((first + drawn[-1],))
        assert kv.length == 2 + 5
        results.append(drawn)
    assert len(results[0]) == 6
    assert results[0] == results[1] == results[2]


def test_numbers_that_are_none_fail_for_their_own_conversation(
    toy: Toy, executor: Executor
) -> None:
    """A draw from them is an error, and the other conversation has its answer."""
    width, policy = toy.config.hidden_size, UnitPolicy(toy.tokenizer.special, CPU)
    broken = torch.full((1, width), torch.nan)

    def decision() -> TextDecision:
        return TextDecision(policy, [], DuplexSettings(), _generator(0))

    def codes(states: Tensor) -> DrawCodes:
        rows = Rows((5, 7), ((0, states),))
        eos = toy.config.tts_config.speech_eos_id
        kv = executor.tts_store.open()
        return DrawCodes(kv, rows, RULE, (), eos, _generator(0), 3, least=3)

    def feed(rows: Tensor) -> LlmForward:
        return LlmForward(executor.llm_store.open(), Rows.of(rows), decision=decision())

    sound = torch.ones(1, width)
    answers = answer_by_kind([codes(broken), feed(broken), codes(sound), feed(sound)], executor)
    assert [isinstance(each, RuntimeError) for each in answers] == [True, True, False, False]
    alone = answer_by_kind([codes(sound), feed(sound)], executor)
    assert (answers[2], answers[3].token) == (alone[0], alone[1].token)


def test_speech_logits_are_those_of_the_weight_normed_head(executor: Executor) -> None:
    tts = executor.model.tts
    with torch.inference_mode():
        hidden = torch.randn(3, tts.model.norm.weight.shape[0])
        expected = tts.head_code[0](hidden)
        assert_close(hidden @ executor._speech.head.T, expected)


def test_a_full_context_is_an_error_and_costs_nobody_a_token(executor: Executor) -> None:
    full, other = executor.llm_store.open(), executor.llm_store.open()
    too_many = executor.model.config.max_position_embeddings + 1
    long = torch.zeros(1, executor.model.config.hidden_size).expand(too_many, -1)
    with pytest.raises(CacheFullError):
        executor.submit([LlmForward(other, Rows((1,))), LlmForward(full, Rows.of(long))])()
    assert (full.length, other.length) == (0, 0)


def test_speech_without_a_vocoder_says_what_is_missing(toy: Toy) -> None:
    executor = Executor(toy.model)
    requests = (Vocode(toy.open_voice(), (1,) * 28, False), OpenVoice(speech(1.0), None))
    for request in requests:
        with pytest.raises(MissingVoiceError):
            executor.submit([request])()


def test_sessions_differ_unless_their_seed_is_the_same(executor: Executor) -> None:
    def draw(seed: int | None) -> float:
        return float(
            torch.rand(1, generator=executor.open_session("s", seed=seed).sampler.generator)
        )

    assert draw(5) == draw(5)
    assert len({draw(None), draw(None), draw(5), draw(6)}) == 4
