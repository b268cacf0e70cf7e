"""The decisions of one unit from scripted logits: what ends it, what is fed, what is spoken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.engine.passes import run_alone
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.policies import MAX_UNIT_CHARACTERS, UnitPolicy
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import ChooseToken, LlmForward
from MiniCPMO45.modes.duplex import DuplexCapability, UnitDraft
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from MiniCPMO45.settings import DuplexSettings
from tests.fakes.scripted import ScriptedExecutor, ToneVoice, cached_labels, one_hot
from tests.fakes.words import tiny_tokenizer

SETTINGS = DuplexSettings(
    decode_mode="greedy", force_listen_count=0, text_repetition_penalty=1.0, length_penalty=1.0
)


@pytest.fixture(scope="module")
def tokenizer() -> MiniCPMOTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def tokens(tokenizer: MiniCPMOTokenizerFast) -> SpecialTokens:
    return tokenizer.special


class Bench:
    """A decoder, an executor and one conversation, ready to decide; `a`, `b`, `c` are words."""

    def __init__(self, tokenizer: MiniCPMOTokenizerFast) -> None:
        self.tokens = tokenizer.special
        self.size = len(tokenizer)
        self.executor = ScriptedExecutor(self.size)
        policy = UnitPolicy(self.tokens, torch.device("cpu"))
        self.decoder = DuplexCapability(MiniCPMOConfig(), tokenizer, policy)
        self.session: Session = self.executor.open_session()
        self.session.settings = SETTINGS
        self.voice = ToneVoice()
        self.session.speech.vocoder = self.voice
        self.a, self.b, self.c = (_word(tokenizer, characters) for characters in (1, 2, 3))

    def decode(
        self, *decided: int, force_listen: bool = False, force_speak: bool = False
    ) -> UnitDraft:
        """Decode one unit whose decisions are `decided`; all of them must be wanted."""
        first, *others = decided
        self.executor.decisions = list(others)
        logits = one_hot(first, self.size)
        draft = run_alone(
            self.decoder.decode(self.session, logits, force_listen, force_speak), self.executor
        )
        assert not self.executor.decisions, "decisions nobody asked for"
        return draft

    @property
    def cached(self) -> list[int]:
        return cached_labels(self.session.kv)

    def start_turn(self) -> None:
        """As if an earlier unit had spoken and left codes and history behind."""
        self.session.turn.has_ended = False
        self.session.sampler.history[:] = [1, 2, 3]
        self.session.speech.codes = [5]
        self.session.speech.buffer.waiting = [7, 7, 7]
        speech = self.session.speech.kv
        speech.reserve(4)
        speech.advance(4)


@pytest.fixture
def bench(tokenizer: MiniCPMOTokenizerFast) -> Bench:
    return Bench(tokenizer)


def _word(tokenizer: MiniCPMOTokenizerFast, characters: int) -> int:
    lengths = ((i, tokenizer.decode([i])) for i in range(len(tokenizer)))
    bad = set(tokenizer.bad_token_ids) | tokenizer.special_ids
    return next(
        i
        for i, text in lengths
        if len(text) == characters and i not in bad and "\ufffd" not in text
    )


def test_listen_feeds_nothing(bench: Bench, tokens: SpecialTokens) -> None:
    draft = bench.decode(tokens.listen)
    assert (draft.is_listen, draft.terminator, draft.ids) == (True, tokens.listen, [])
    assert bench.cached == []
    assert bench.session.turn.has_ended


def test_the_first_decision_is_fed_and_not_spoken(bench: Bench, tokens: SpecialTokens) -> None:
    draft = bench.decode(tokens.speak, bench.a, bench.b, tokens.chunk_eos)
    assert (draft.is_listen, draft.end_of_turn, draft.barge_in) == (False, False, False)
    assert draft.ids == [bench.a, bench.b]
    assert draft.terminator == tokens.chunk_eos
    assert bench.cached == [tokens.speak, bench.a, bench.b], "the terminator waits for finalize"
    assert not bench.session.turn.has_ended


def test_each_token_is_fed_once_in_a_pass_of_its_own(bench: Bench, tokens: SpecialTokens) -> None:
    bench.decode(tokens.speak, bench.a, tokens.chunk_eos)
    assert bench.executor.fed_ids() == [(tokens.speak,), (bench.a,)]
    assert not any(each.wants_logits for each in bench.executor.of_kind(LlmForward))


def test_hidden_states_are_those_of_the_spoken_tokens_themselves(
    bench: Bench, tokens: SpecialTokens
) -> None:
    draft = bench.decode(tokens.speak, bench.a, bench.b, tokens.chunk_eos)
    assert [(int(h[0, 0]), int(h[0, 1])) for h in draft.hidden] == [(bench.a, 1), (bench.b, 2)]


@pytest.mark.parametrize("name", ["chunk_eos", "chunk_tts_eos"])
def test_a_chunk_terminator_as_first_decision_gives_an_empty_unit(
    bench: Bench, tokens: SpecialTokens, name: str
) -> None:
    terminator = {"chunk_eos": tokens.chunk_eos, "chunk_tts_eos": tokens.chunk_tts_eos}[name]
    draft = bench.decode(terminator)
    assert (draft.is_listen, draft.ids, draft.terminator) == (False, [], terminator)
    assert bench.cached == []


def test_spoken_chunk_end_is_kept_as_the_terminator(bench: Bench, tokens: SpecialTokens) -> None:
    draft = bench.decode(tokens.speak, bench.a, tokens.chunk_tts_eos)
    assert (draft.ids, draft.terminator) == ([bench.a], tokens.chunk_tts_eos)
    assert bench.cached == [tokens.speak, bench.a]


@pytest.mark.parametrize("limit", [3, 5, 20])
def test_a_unit_ends_by_force_at_its_token_limit(
    bench: Bench, tokens: SpecialTokens, tokenizer: MiniCPMOTokenizerFast, limit: int
) -> None:
    bench.session.settings = replace(SETTINGS, max_new_speak_tokens_per_chunk=limit)
    short = _word(tokenizer, 1)
    draft = bench.decode(tokens.speak, *[short] * (limit - 2))
    assert draft.ids == [short] * (limit - 2)
    assert draft.terminator == tokens.chunk_eos
    assert (draft.is_listen, draft.end_of_turn) == (False, False)
    assert bench.cached == [tokens.speak, *draft.ids]


@pytest.mark.parametrize("limit", [1, 2])
def test_the_lowest_limits_leave_the_decision_and_one_token(
    bench: Bench, tokens: SpecialTokens, limit: int
) -> None:
    bench.session.settings = replace(SETTINGS, max_new_speak_tokens_per_chunk=limit)
    assert bench.decode(tokens.listen).is_listen
    draft = bench.decode(tokens.speak, bench.a)
    assert (draft.ids, draft.terminator) == ([bench.a], tokens.chunk_eos)


@pytest.mark.parametrize("last", [3, 4])
def test_text_of_28_characters_cuts_the_unit_before_the_last_token(
    bench: Bench, tokens: SpecialTokens, tokenizer: MiniCPMOTokenizerFast, last: int
) -> None:
    five, end = _word(tokenizer, 5), _word(tokenizer, last)
    assert MAX_UNIT_CHARACTERS == 28
    draft = bench.decode(tokens.speak, *[five] * 5, end)
    assert draft.ids == [five] * 5, "25 characters stay, 28 and 29 do not"
    assert draft.terminator == tokens.chunk_eos
    assert bench.cached == [tokens.speak, *[five] * 5], "the cut token is nowhere"
    assert len(draft.hidden) == 5


def test_27_characters_are_not_cut(
    bench: Bench, tokens: SpecialTokens, tokenizer: MiniCPMOTokenizerFast
) -> None:
    five, two = _word(tokenizer, 5), _word(tokenizer, 2)
    draft = bench.decode(tokens.speak, *[five] * 5, two, tokens.chunk_eos)
    assert draft.ids == [five] * 5 + [two]


def test_the_first_decision_counts_no_characters(
    bench: Bench, tokens: SpecialTokens, tokenizer: MiniCPMOTokenizerFast
) -> None:
    five = _word(tokenizer, 5)
    draft = bench.decode(five, *[five] * 5, tokens.chunk_eos)
    assert draft.ids == [five] * 5


@pytest.mark.parametrize("closing", ["chunk_eos", "listen", "a word"])
def test_the_turn_end_enters_the_unit_and_one_more_decision_closes_it(
    bench: Bench, tokens: SpecialTokens, closing: str
) -> None:
    """D21: whatever follows is no text, and the tail is kept."""
    decided = {"chunk_eos": tokens.chunk_eos, "listen": tokens.listen, "a word": bench.b}[closing]
    draft = bench.decode(tokens.speak, bench.a, tokens.turn_eos, decided)
    assert (draft.is_listen, draft.end_of_turn) == (False, True)
    assert draft.ids == [bench.a, tokens.turn_eos]
    assert draft.terminator == (tokens.chunk_eos if decided == bench.b else decided)
    assert bench.cached == [tokens.speak, bench.a, tokens.turn_eos]
    assert bench.session.turn.has_ended


def test_a_turn_end_at_the_token_limit_still_ends_the_turn(
    bench: Bench, tokens: SpecialTokens
) -> None:
    bench.session.settings = replace(SETTINGS, max_new_speak_tokens_per_chunk=3)
    draft = bench.decode(tokens.speak, tokens.turn_eos)
    assert (draft.end_of_turn, draft.terminator) == (True, tokens.chunk_eos)
    assert bench.session.turn.has_ended


@pytest.mark.parametrize("step", [0, 1, 2])
def test_listen_inside_a_turn_becomes_tts_bos(
    bench: Bench, tokens: SpecialTokens, step: int
) -> None:
    bench.start_turn()
    decided = [tokens.speak, bench.a, bench.b][:step] + [tokens.listen, bench.c, tokens.chunk_eos]
    draft = bench.decode(*decided)
    fed = [tokens.speak, bench.a, bench.b][:step] + [tokens.tts_bos, bench.c]
    assert bench.cached == fed
    assert draft.ids == fed[1:]
    assert (draft.is_listen, draft.terminator) == (False, tokens.chunk_eos)
    assert not bench.session.turn.has_ended


def test_the_first_units_listen_by_force(bench: Bench, tokens: SpecialTokens) -> None:
    bench.session.settings = replace(SETTINGS, force_listen_count=2)
    for _ in range(2):
        draft = bench.decode(bench.a)
        assert (draft.is_listen, draft.terminator) == (True, tokens.listen)
        assert not draft.barge_in
    assert not bench.decode(tokens.speak, bench.a, tokens.chunk_eos).is_listen
    assert bench.session.turn.decisions == 3


def test_force_listen_in_silence_just_listens(bench: Bench, tokens: SpecialTokens) -> None:
    draft = bench.decode(bench.a, force_listen=True)
    assert (draft.is_listen, draft.terminator, draft.barge_in) == (True, tokens.listen, False)
    assert bench.cached == []
    assert bench.voice.resets == 0


def test_force_speak_replaces_the_decision_to_listen(bench: Bench, tokens: SpecialTokens) -> None:
    bench.session.settings = replace(SETTINGS, force_listen_count=2)
    draft = bench.decode(tokens.listen, bench.a, tokens.chunk_eos, force_speak=True)
    assert (draft.is_listen, draft.ids) == (False, [bench.a])
    assert bench.cached == [tokens.speak, bench.a]
    assert not bench.executor.of_kind(ChooseToken), "there was nothing to choose"


def test_who_must_listen_does_not_speak(bench: Bench, tokens: SpecialTokens) -> None:
    assert bench.decode(bench.a, force_listen=True, force_speak=True).is_listen
    bench.session.turn.force_next_listen = True
    assert bench.decode(bench.a, force_speak=True).is_listen


def test_force_listen_while_speaking_ends_the_turn_and_forgets_its_speech(
    bench: Bench, tokens: SpecialTokens
) -> None:
    """D22."""
    bench.start_turn()
    draft = bench.decode(bench.a, force_listen=True)
    assert (draft.is_listen, draft.barge_in) == (True, True)
    assert draft.terminator == tokens.listen
    assert bench.cached == [tokens.turn_eos]
    session = bench.session
    assert session.turn.has_ended
    assert (session.speech.kv.length, session.speech.codes) == (0, [])
    assert session.speech.buffer.waiting == [4218, 4218, 4218]
    assert bench.voice.resets == 1
    assert session.sampler.history == []


def test_a_break_makes_the_next_unit_listen_once(bench: Bench, tokens: SpecialTokens) -> None:
    """D23."""
    bench.start_turn()
    bench.session.turn.force_next_listen = True
    draft = bench.decode(bench.a)
    assert (draft.is_listen, draft.barge_in) == (True, True)
    assert bench.cached == [tokens.turn_eos]
    assert bench.decode(tokens.speak, bench.a, tokens.chunk_eos).ids == [bench.a]


def test_a_stop_ends_the_unit_before_the_next_pass(bench: Bench, tokens: SpecialTokens) -> None:
    steps = bench.decoder.decode(bench.session, one_hot(tokens.speak, bench.size), False)
    choice = next(steps)
    assert isinstance(choice, ChooseToken)
    request = steps.send(tokens.speak)
    assert isinstance(request, LlmForward)
    assert request.rows.ids == (tokens.speak,)
    bench.executor.decisions = [bench.a]
    [answer] = bench.executor.submit([request])()
    bench.session.stop.set()
    with pytest.raises(StopIteration) as end:
        steps.send(answer)
    draft = end.value.value
    assert (draft.terminator, draft.ids, draft.is_listen) == (None, [], False)
    assert bench.cached == [tokens.speak]
