"""One-shot chat: prompt, tokens, text and speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.engine.passes import run_alone
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import (
    DrawCodes,
    EncodeClips,
    LlmForward,
    Request,
    Vocode,
)
from MiniCPMO45.modes.prompt_input import PrefillOptions
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import Message, PromptTooLongError
from MiniCPMO45.settings import GenerationSettings, SpeechSampling
from tests.fakes.batching import at_once
from tests.fakes.scripted import CODE_EOS, spoken
from tests.model.toy import Toy, picture, speech
from tests.model.turns import GREEDY, VARIED, ScriptedTurns, Stopping, ToyTurns

CODES = SpeechSampling(max_codes_per_reply=60, min_codes_per_reply=0)
SPOKEN = GenerationSettings(do_sample=False, speech=CODES)
HELLO = (Message("user", "hello"),)


def ask(
    talk: ScriptedTurns,
    ids: Sequence[int],
    settings: GenerationSettings = GREEDY,
    codes: int = 5,
    messages: Sequence[Message] = HELLO,
) -> ReplyResult:
    """Run a scripted reply; `ids` includes the terminator."""
    talk.executor.decisions = list(ids)
    talk.executor.codes = [*range(codes), CODE_EOS]
    steps = talk.reply(messages, settings)
    return run_alone(steps, talk.answers)


def conditions(talk: ScriptedTurns) -> list[tuple[int, ...]]:
    """Return the text ids of each run of speech codes."""
    calls = talk.executor.of_kind(DrawCodes)
    return [spoken(call) for call in calls if spoken(call)]


# Prompt and tokens


def test_prompt_is_the_template_of_the_whole_history(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    history = [
        Message("system", "Be brief."),
        Message("user", "hello"),
        Message("assistant", "yes?"),
        Message("user", "go on"),
    ]
    reply = ask(talk, [talk.tokens.im_end], messages=history)
    assert reply.prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\nyes?<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>"
    )
    assert talk.cached == talk.encode(reply.prompt)
    assert reply.prompt_tokens == len(talk.cached)
    assert (reply.text, reply.ids, reply.hit_limit) == ("", (), False)


def test_thought_and_speech_template_follow_the_settings(toy: Toy) -> None:
    plain = replace(GREEDY, use_speech_template=False)
    for settings, ending in (
        (plain, "assistant\n<think>\n\n</think>\n\n"),
        (replace(plain, enable_thinking=True), "assistant\n"),
    ):
        talk = ScriptedTurns(toy)
        assert ask(talk, [talk.tokens.im_end], settings).prompt.endswith(ending)


def test_history_with_audio_uses_the_speech_template_and_attention_blocks(toy: Toy) -> None:
    talk = ToyTurns(toy)
    messages = [Message("user", ["hear", speech(2.3)])]
    settings = replace(VARIED, use_speech_template=False)
    reply = talk.run(talk.reply(messages, settings))
    assert reply.prompt.endswith("<|tts_bos|>")
    [request] = talk.recorder.of_kind(EncodeClips)
    assert request.block_frames == toy.config.audio_block_frames


def test_number_of_slices_follows_the_options(toy: Toy) -> None:
    lengths = []
    for options in (None, PrefillOptions(max_slice_nums=1, omni_mode=True, use_image_id=False)):
        talk = ToyTurns(toy)
        messages = [Message("user", ["look", picture(1, 900, 900)])]
        settings = replace(VARIED, max_new_tokens=1, min_new_tokens=0)
        reply = talk.run(talk.reply(messages, settings, options))
        lengths.append(reply.prompt_tokens)
    assert lengths[1] < 100 < lengths[0]


def test_too_long_prompt_is_rejected_before_any_pass(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    messages = [Message("user", ["hello " * 40, speech(1.0)])]
    with pytest.raises(PromptTooLongError, match="at most 30 are allowed"):
        ask(talk, [], replace(GREEDY, max_input_tokens=30), messages=messages)
    assert not talk.executor.requests


def test_session_with_a_history_is_rejected(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("user", "hello")
    with pytest.raises(ValueError, match="fresh"):
        ask(talk, [])


def test_greedy_decoding_takes_the_most_likely_token(toy: Toy) -> None:
    """Each step is compared with a fresh prefill."""
    talk = ToyTurns(toy)
    settings = replace(VARIED, min_new_tokens=0, max_new_tokens=10)
    reply = talk.run(talk.reply(HELLO, settings))
    assert len(reply.ids) == 10 and reply.hit_limit
    for index, token in enumerate(reply.ids):
        fresh = talk.model.executor.open_session("again")
        fed = (*toy.tokenizer.encode(reply.prompt), *reply.ids[:index])
        [output] = talk.recorder.submit([LlmForward(fresh.kv, Rows(fed))])()
        logits = output.logits.float().clone()
        for seen in set(reply.ids[:index]):
            factor = settings.repetition_penalty
            logits[seen] = logits[seen] / factor if logits[seen] > 0 else logits[seen] * factor
        assert int(logits.argmax()) == token
        fresh.close()


def test_the_length_penalty_of_streaming_has_no_effect(toy: Toy) -> None:
    replies = []
    for penalty in (1.0, 5.0):
        talk = ToyTurns(toy)
        settings = replace(VARIED, min_new_tokens=0, length_penalty=penalty)
        replies.append(talk.run(talk.reply(HELLO, settings)).ids)
    assert replies[0] == replies[1]


@pytest.mark.parametrize("name", ["im_end", "endoftext"])
def test_chat_ends_with_its_own_terminators(toy: Toy, name: str) -> None:
    talk = ScriptedTurns(toy)
    ids = [*talk.encode(" yes"), talk.tokens.tts_eos, vars(talk.tokens)[name]]
    reply = ask(talk, ids)
    assert [*reply.ids] == ids[:-1]
    assert reply.text == " yes"
    assert not reply.hit_limit


# Text


@pytest.mark.parametrize("text", ["Yes", "test", "on"])
def test_only_the_marker_itself_is_removed(toy: Toy, text: str) -> None:
    for ending in ([], [toy.tokenizer.special.tts_eos]):
        talk = ScriptedTurns(toy)
        ids = [*talk.encode(text), *ending, talk.tokens.im_end]
        assert ask(talk, ids).text == text


def test_exclamation_mark_is_not_padding(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    ids = talk.encode("hello!")
    assert ids[-1] == 0
    assert ask(talk, [*ids, talk.tokens.im_end]).text == "hello!"


# Speech


def test_speech_is_conditioned_on_the_reply_and_its_hidden_states(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ids = talk.encode(" good morning")
    reply = ask(talk, [*ids, talk.tokens.tts_eos, talk.tokens.im_end], SPOKEN)
    assert conditions(talk) == [tuple(ids)]
    [(_, states)] = talk.executor.of_kind(DrawCodes)[0].rows.vectors
    assert states[:, 0].tolist() == ids
    start = reply.prompt_tokens
    assert states[:, 1].tolist() == [*range(start, start + len(ids))], "same positions"
    assert reply.waveform is not None and reply.waveform.dtype == np.float32
    assert reply.text == " good morning"
    assert talk.session.speech.kv.length == 0


def test_speech_starts_after_the_last_marker(toy: Toy) -> None:
    """Marks inside a text become marks when it is encoded."""
    talk = ScriptedTurns(toy, has_voice=True)
    ids = talk.encode(" one<|tts_bos|> two<|tts_eos|> three<|tts_eos|>")
    ask(talk, [*ids, talk.tokens.im_end], SPOKEN)
    text = talk.encode(" two<|tts_eos|> three")
    assert conditions(talk) == [tuple(text)]


@pytest.mark.parametrize(
    "settings", [replace(SPOKEN, generate_audio=False), replace(SPOKEN, use_speech_template=False)]
)
def test_speech_is_optional(toy: Toy, settings: GenerationSettings) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    reply = ask(talk, [*talk.encode(" yes"), talk.tokens.im_end], settings)
    assert (reply.text, reply.waveform) == (" yes", None)
    assert not talk.executor.of_kind(DrawCodes)


def test_an_empty_reply_is_silent(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    assert ask(talk, [talk.tokens.im_end], SPOKEN).waveform is None


def test_d17_a_reply_without_speech_mark_is_spoken_up_to_its_last_state(toy: Toy) -> None:
    ids = toy.tokenizer.encode(" good morning to you")
    ended, limited = ScriptedTurns(toy, has_voice=True), ScriptedTurns(toy, has_voice=True)
    reply = ask(ended, [*ids, ended.tokens.im_end], SPOKEN)
    assert conditions(ended) == [tuple(ids)]
    assert reply.waveform is not None
    reply = ask(limited, ids, replace(SPOKEN, max_new_tokens=len(ids)))
    assert reply.hit_limit
    assert conditions(limited) == [tuple(ids[:-1])], "the last token was never fed"


class _Mute:
    """An executor whose vocoder fails."""

    def __init__(self, talk: ScriptedTurns) -> None:
        self.talk = talk

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        if any(isinstance(request, Vocode) for request in requests):
            raise RuntimeError("out of memory")
        return self.talk.executor.submit(requests)()


def test_speech_failure_is_reported(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.answers = _Mute(talk)
    ids = [*talk.encode(" yes"), talk.tokens.im_end]
    with pytest.raises(RuntimeError, match="out of memory"):
        ask(talk, ids, SPOKEN)


@pytest.mark.parametrize(("n_codes", "lengths"), [(53, [28, 28]), (52, [28, 27]), (2, [2])])
def test_a_window_that_ends_with_the_last_code_ends_the_reply(
    toy: Toy, n_codes: int, lengths: list[int]
) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    ask(talk, [*talk.encode(" yes"), talk.tokens.im_end], SPOKEN, codes=n_codes)
    calls = talk.executor.of_kind(Vocode)
    assert [len(call.codes) for call in calls] == lengths
    assert calls[-1].is_last


def test_speech_does_not_end_before_the_fewest_codes(toy: Toy) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    settings = replace(SPOKEN, speech=SpeechSampling(max_codes_per_reply=56))
    ask(talk, [*talk.encode(" yes"), talk.tokens.im_end], settings, codes=0)
    assert sum(len(call.codes) for call in talk.executor.of_kind(Vocode)) >= 50


def test_the_toy_model_speaks_its_reply(toy: Toy) -> None:
    sounds = []
    for _ in range(2):
        talk = ToyTurns(toy, seed=3, has_voice=True)
        settings = replace(SPOKEN, max_new_tokens=8)
        reply = talk.run(talk.reply(HELLO, settings))
        assert reply.waveform is not None
        sounds.append(reply.waveform)
    assert np.array_equal(*sounds)
    assert np.isfinite(sounds[0]).all() and np.abs(sounds[0]).max() > 0


# Stop


@pytest.mark.parametrize("n_passes", [0, 1, 3])
def test_stop_ends_text_and_speech(toy: Toy, n_passes: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.answers = Stopping(talk.executor, talk.session, n_passes)
    ids = talk.encode(" good morning to you")
    reply = ask(talk, ids, SPOKEN)
    assert reply.was_stopped and not reply.hit_limit
    assert [*reply.ids] == ids[: max(n_passes - 1, 0)]
    assert reply.waveform is None
    assert not talk.executor.of_kind(DrawCodes)
