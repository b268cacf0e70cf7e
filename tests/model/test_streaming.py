"""Turn-based conversation: input, replies and cache contents."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.passes import run_alone
from MiniCPMO45.engine.kv_cache import KvStore
from MiniCPMO45.engine.session import Round
from MiniCPMO45.engine.steps import DrawCodes
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.settings import (
    DuplexSettings,
    GenerationSettings,
    SpeechSampling,
    WindowSettings,
)
from tests.fakes.decoders import decoder_shape, held_tokens
from tests.fakes.scripted import CODE_EOS, cached_angles, spoken
from tests.model.toy import Toy, picture, speech
from tests.model.turns import GREEDY, SPOKEN, VARIED, ScriptedTurns, ToyTurns, joined

ANSWER = " I think that it is a very good day to go for a long walk and then read a book at home"
REPLY_PREFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>"
NEXT_USER = "<|tts_eos|><|im_end|>\n<|im_start|>user\n"
WHOLE = replace(SPOKEN, speech=SpeechSampling(max_codes_per_reply=60, min_codes_per_reply=0))
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"


def test_the_cache_holds_the_conversation_and_no_terminator(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("system", "Be brief.")
    result = talk.turn("hello", " good morning")
    first = talk.encode(SYSTEM + "<|im_start|>user\nhello" + REPLY_PREFIX + " good morning")
    assert talk.cached == first
    assert result.text == " good morning"
    talk.prefill("user", "and you?")
    assert talk.cached == first + talk.encode(NEXT_USER + "and you?")


def test_turn_in_chunks_equals_the_whole_turn(toy: Toy) -> None:
    chunks, whole = ScriptedTurns(toy), ScriptedTurns(toy)
    for text in (" one", " two", " three"):
        chunks.prefill("user", [text])
    whole.prefill("user", [" one two three"])
    assert chunks.cached == whole.cached


def test_a_reply_without_speech_template_opens_no_speech(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("user", "hello")
    talk.script(" yes")
    talk.generate(replace(GREEDY, use_speech_template=False, enable_thinking=True))
    assert talk.cached == talk.encode(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n yes"
    )


def test_retained_session_equals_the_whole_history(toy: Toy) -> None:
    kept, fresh = ScriptedTurns(toy), ScriptedTurns(toy)
    for talk in (kept, fresh):
        talk.prefill("system", "Be brief.")
    kept.turn("hello", ANSWER)
    fresh.prefill("user", "hello")
    fresh.prefill("assistant", ANSWER)
    for talk in (kept, fresh):
        talk.prefill("user", "go on")
    assert kept.cached == fresh.cached
    assert kept.session.turn == fresh.session.turn


def test_the_second_reply_is_the_same_after_the_whole_history(toy: Toy) -> None:
    kept, fresh = ToyTurns(toy), ToyTurns(toy)
    for role, text in (("system", "Be brief."), ("user", "tell me")):
        kept.prefill(role, text)
    first = kept.generate(VARIED)[1]
    assert toy.tokenizer.encode(first.text) == [*first.ids], "choose another question"
    history = (("system", "Be brief."), ("user", "tell me"), ("assistant", first.text))
    for role, text in history:
        fresh.prefill(role, text)
    assert fresh.session.kv.length == kept.session.kv.length
    replies = []
    for talk in (kept, fresh):
        talk.prefill("user", "what is it")
        replies.append(talk.generate(VARIED)[1])
    assert replies[0] == replies[1]
    assert len(replies[0].ids) >= VARIED.min_new_tokens
    assert fresh.session.kv.length == kept.session.kv.length


@given(st.text(alphabet="ab 😀€ñ们", min_size=1, max_size=40), st.booleans())
@settings(max_examples=25)
def test_chunks_have_complete_characters(toy: Toy, text: str, has_voice: bool) -> None:
    talk = ScriptedTurns(toy, has_voice=has_voice)
    allowed = {*talk.tokens.bad_token_ids} if has_voice else set()
    if allowed & {*talk.encode(text)}:
        return
    talk.prefill("user", "hello")
    talk.script(text)
    chunks, result = talk.generate(SPOKEN if has_voice else GREEDY)
    assert result.text == text
    assert "".join(chunk.text for chunk in chunks) == text
    assert not any("\ufffd" in chunk.text for chunk in chunks)


def test_incomplete_last_character_is_emitted(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("user", "hello")
    talk.script(talk.encode("a😀")[:-1])
    chunks, result = talk.generate()
    assert "".join(chunk.text for chunk in chunks) == result.text == "a\ufffd"


@pytest.mark.parametrize("nothing", ["", [], "<|listen|>"])
def test_an_empty_chunk_of_a_turn_changes_nothing(toy: Toy, nothing: str | list[str]) -> None:
    replies = []
    for chunks in (["hi"], ["hi", nothing]):
        talk = ToyTurns(toy)
        for content in chunks:
            talk.prefill("user", content)
        assert len(talk.session.window.rounds) == 1
        replies.append((talk.session.kv.length, talk.generate(VARIED)[1]))
    assert replies[0] == replies[1]


# Stop


@pytest.mark.parametrize("n_passes", range(14))
def test_stopped_reply_remains_in_the_cache(toy: Toy, n_passes: int) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("user", "hello")
    before = talk.cached
    talk.script(ANSWER)
    talk.stop_after(n_passes)
    chunks, result = talk.generate()
    talk.session.stop.clear()
    assert result.was_stopped
    assert "".join(chunk.text for chunk in chunks) == result.text
    prefix = talk.encode(REPLY_PREFIX) if n_passes else []
    assert talk.cached == [*before, *prefix, *result.ids]
    assert len(result.ids) == max(n_passes - 1, 0)
    talk.prefill("user", "go on")
    opening = NEXT_USER if n_passes else ""
    assert talk.cached == [*before, *prefix, *result.ids, *talk.encode(opening + "go on")]
    assert sum(each.length for each in talk.session.window.rounds) == len(talk.cached)


@pytest.mark.parametrize(("n_passes", "n_runs"), [(11, 0), (14, 1)])
def test_stop_ends_the_speech_of_a_reply(toy: Toy, n_passes: int, n_runs: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    talk.prefill("user", "hello")
    talk.script(ANSWER)
    talk.stop_after(n_passes)
    chunks, result = talk.generate(SPOKEN)
    assert result.was_stopped
    assert joined(chunks)[1].size == 0
    assert len(talk.executor.of_kind(DrawCodes)) == n_runs
    speech = talk.session.speech
    assert (speech.kv.length, speech.kv.capacity, speech.codes) == (0, 0, [])


# The window


@pytest.mark.parametrize("has_system", [True, False])
def test_evicting_rounds_keeps_positions_dense(toy: Toy, has_system: bool) -> None:
    """The round with the system message stays."""
    talk = ScriptedTurns(toy)
    limits = WindowSettings(text_high_tokens=150, text_low_tokens=90)
    talk.session.settings = DuplexSettings(window=limits)
    if has_system:
        talk.prefill("system", "Be brief.")
    rounds: list[list[int]] = []
    for number in range(30):
        question, answer = f" question {number}" * (1 + number % 3), f" answer {number}" * 2
        talk.turn(question, answer)
        opening = NEXT_USER if number else "<|im_start|>user\n"
        rounds.append(talk.encode(opening + question) + talk.encode(REPLY_PREFIX + answer))
        assert sum(each.length for each in talk.session.window.rounds) == talk.session.kv.length
        pinned = [talk.encode(SYSTEM), rounds[0]] if has_system else []
        assert talk.cached in [_joined(pinned, rounds[n:]) for n in range(int(has_system), 30)]
        assert talk.session.kv.length <= limits.text_high_tokens + len(rounds[-1])
    assert talk.session.window.evictions > 3
    expected = torch.arange(talk.session.kv.length).float()
    angles = cached_angles(talk.session.kv)
    assert torch.allclose(torch.cos(angles - expected), torch.ones_like(angles), atol=1e-4)


def _joined(*groups: list[list[int]]) -> list[int]:
    return [token for group in groups for each in group for token in each]


# Rollback


Said = list[tuple[ReplyResult, tuple[str, np.ndarray]]]


def _speculate(toy: Toy, seed: int, guess: GenerationSettings | None) -> tuple[Said, list[Round]]:
    """A turn that goes on after a guess that the speaker had finished, and the one after it."""
    talk = ToyTurns(toy, seed=seed, has_voice=True)
    talk.prefill("system", "Be brief.")
    talk.prefill("user", ["listen", speech(1.3, seed)], stream_input=True)
    if guess is not None:
        talk.generate(guess, takes_snapshot=True)
        assert talk.session.can_rollback
        talk.session.rollback()
        assert not talk.session.can_rollback
    talk.prefill("user", [speech(1.9, seed + 1)], stream_input=True, is_last_chunk=True)
    said: Said = []
    for question in ("and then", "why"):
        chunks, result = talk.generate(replace(SPOKEN, do_sample=True, max_new_tokens=24))
        said.append((result, joined(chunks)))
        talk.prefill("user", question)
    rounds = talk.session.window.rounds
    talk.session.close()
    return said, rounds


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n_tokens", [1, 15])
def test_turn_after_a_rollback_equals_the_turn_without_speculation(
    toy: Toy, seed: int, n_tokens: int
) -> None:
    guess = replace(SPOKEN, do_sample=True, max_new_tokens=n_tokens, length_penalty=2.0)
    found, rounds = _speculate(toy, seed, guess)
    expected, expected_rounds = _speculate(toy, seed, None)
    assert rounds == expected_rounds
    for (result, (text, sound)), (want, (want_text, want_sound)) in zip(
        found, expected, strict=True
    ):
        assert (result, text) == (want, want_text)
        assert np.array_equal(sound, want_sound)
    assert any(sound.size for _, (_, sound) in expected), "nothing was spoken"


def test_rollback_is_invalid_after_an_eviction(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    limits = WindowSettings(text_high_tokens=120, text_low_tokens=60)
    talk.session.settings = DuplexSettings(window=limits)
    for number in range(4):
        talk.turn(f" question {number}", ANSWER[:20])
    talk.prefill("user", "go on")
    talk.script(ANSWER)
    talk.generate(takes_snapshot=True)
    assert talk.session.can_rollback
    for _ in range(3):
        talk.turn(" again" * 20, ANSWER)
    assert not talk.session.can_rollback


# Other


def test_a_whole_history_is_answered_without_a_second_end_mark(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    history = [("system", "Be brief."), ("user", "hello")]
    talk.prefill_history(history)
    assert talk.session.turn.opening is TurnOpening.FIRST
    talk.script(" yes")
    talk.generate()
    body = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in history)
    assert talk.cached == talk.encode(body) + talk.encode(
        REPLY_PREFIX.removeprefix("<|im_end|>\n") + " yes"
    )


def test_a_reply_has_at_least_the_tokens_asked_for(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill("user", "hello")
    end = talk.tokens.tts_eos
    talk.executor.decisions = [end, end, end, end]
    _, result = talk.generate(replace(GREEDY, min_new_tokens=3))
    assert len(result.ids) == 3


def test_the_same_seed_draws_the_same_reply_and_another_does_not(toy: Toy) -> None:
    drawn = []
    for seed in (5, 5, 6):
        talk = ToyTurns(toy, seed=seed)
        talk.prefill("user", "hello")
        drawn.append(talk.generate(replace(VARIED, do_sample=True))[1].ids)
    assert drawn[0] == drawn[1] != drawn[2]


def test_pictures_and_clips_fill_their_placeholders(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("user", ["look", picture(1), "and hear", speech(2.0)], omni_mode=False)
    text = "<|im_start|>user\nlook\n<image></image>\nand hear\n<|audio_start|><|audio_end|>"
    expected = len(toy.tokenizer.encode(text)) + 64 + 20
    assert talk.session.kv.length == expected
    run_alone(talk.model.streaming.generate(talk.session, VARIED), talk.recorder)


# A whole reply


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
    settings = replace(WHOLE, max_new_tokens=limit)
    reply = talk.reply_over_cache(settings)
    assert [*reply.ids] == ids
    first = talk.executor.of_kind(DrawCodes)[0]
    assert spoken(first) == tuple(ids)
    [(_, states)] = first.rows.vectors
    assert states[:, 0].tolist() == ids
    assert reply.waveform is not None and reply.waveform.size
    assert talk.cached[-len(ids) :] == ids


# A history fed as one piece


HISTORY = [
    ("system", "Be brief."),
    ("user", "hello"),
    ("assistant", "hello there"),
    ("user", "and again"),
]


def test_every_message_of_a_history_becomes_a_round(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history(HISTORY)
    rounds = talk.session.window.rounds
    assert [each.role for each in rounds] == [role for role, _ in HISTORY]
    assert [each.number for each in rounds] == [0, 0, 0, 1]
    assert sum(each.length for each in rounds) == talk.session.kv.length
    expected = [
        len(talk.encode(f"<|im_start|>{role}\n{text}<|im_end|>\n")) for role, text in HISTORY
    ]
    assert [each.length for each in rounds] == expected


def test_the_reply_belongs_to_the_last_round_of_a_history(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history(HISTORY)
    talk.script(" yes")
    talk.generate()
    reply = talk.session.window.rounds[-1]
    assert (reply.role, reply.number) == ("assistant", 1)
    assert sum(each.length for each in talk.session.window.rounds) == talk.session.kv.length


@pytest.mark.parametrize("taken_rows", [960, 1_024])
def test_a_full_speech_cache_leaves_the_text(toy: Toy, taken_rows: int) -> None:
    talk = ScriptedTurns(toy, has_voice=True)
    shape = decoder_shape(positions=4_096)
    store = KvStore(shape, device=torch.device("cpu"), dtype=torch.float32, pages=16)
    other, talk.session.speech.kv = store.open(), store.open()
    other.reserve(taken_rows)
    talk.prefill("user", "hello")
    talk.script(ANSWER * 2)
    chunks, result = talk.generate(replace(SPOKEN, speech=SpeechSampling(max_codes_per_chunk=40)))
    text, wave = joined(chunks)
    assert text == result.text == ANSWER * 2
    assert (len(wave) > 0) is (taken_rows < 1_024), "what was spoken before is heard"
    assert talk.session.speech.kv.length == 0


def test_a_text_that_spells_the_start_mark_out_stays_one_round(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history([("user", "I wrote <|im_start|> myself")])
    assert [each.role for each in talk.session.window.rounds] == ["user"]


def test_dropping_a_conversation_frees_its_caches(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("user", "hello")
    store = talk.session.kv.store
    assert held_tokens(store) > 0
    session = weakref.ref(talk.session)
    del talk
    gc.collect()
    assert session() is None and held_tokens(store) == 0
