"""Streams of the vocoder: lengths, isolation, snapshots; alone, batched, padded or not."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from MiniCPMO45.engine.steps import Vocode
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.vocoder import CodeChunk, SpeechBuffer, Token2Wav
from MiniCPMO45.token2wav.vocoder_state import (
    SpeechStream,
    VoiceBase,
    VoicePrompt,
    VoiceTooLongError,
    check_voice_length,
)
from tests.fakes.toy_vocoder import PROMPT_CODES, copy_of, toy_codes, toy_vocoder, toy_voice
from tests.fakes.vocoder_lengths import count_samples
from tests.pairing import taking_turns

WAVE_TOLERANCE = 2e-5  # float32 sums in another order; the excitation adds up phases
VOICES = ((PROMPT_CODES, 3), (30, 9), (75, 5))  # codes and seed; around the history's length

# Codes of each call of three streams; 0 leaves a stream out.
WHOLE, FIRST, REST = 28, 13, 18
TURNS = (
    (WHOLE, FIRST, 0),
    (WHOLE, REST, WHOLE),
    (WHOLE, WHOLE, WHOLE),
    (FIRST, WHOLE, WHOLE),
    (REST, WHOLE, WHOLE),
    (WHOLE, WHOLE, FIRST),
    (WHOLE, 9, REST),
    (WHOLE, WHOLE, WHOLE),
)


@pytest.fixture(scope="module")
def exact() -> Token2Wav:
    """The toy vocoder with batches just as large as what is asked."""
    return toy_vocoder()


@pytest.fixture(scope="module")
def padded() -> Token2Wav:
    """The same weights with the few sizes that a card has."""
    return toy_vocoder(LoadOptions(flow_steps=2, has_fixed_sizes=True))


@pytest.fixture(scope="module", params=["exact", "padded"])
def vocoder(request: pytest.FixtureRequest, exact: Token2Wav, padded: Token2Wav) -> Token2Wav:
    return exact if request.param == "exact" else padded


@pytest.fixture(scope="module")
def bases(exact: Token2Wav) -> list[VoiceBase]:
    return [exact.set_up(toy_voice(*voice)) for voice in VOICES]


@pytest.fixture(scope="module")
def base(bases: list[VoiceBase]) -> VoiceBase:
    return bases[0]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def speak(vocoder: Token2Wav, state: SpeechStream, pieces: list[CodeChunk]) -> list[Tensor]:
    return [vocoder.stream(state, piece.codes, piece.is_last) for piece in pieces]


def say(vocoder: Token2Wav, state: SpeechStream, n_codes: int = WHOLE, seed: int = 0) -> Tensor:
    return vocoder.stream(state, toy_codes(n_codes, seed))


def turn(n_codes: int, seed: int = 11, unit: int = 25) -> list[CodeChunk]:
    codes, buffer, pieces = toy_codes(n_codes, seed), SpeechBuffer(), []
    for start in range(0, n_codes, unit):
        is_last = start + unit >= n_codes
        pieces += buffer.push(codes[start : start + unit], is_last=is_last)
    return pieces


def memory_of(stream: SpeechStream) -> list[Tensor]:
    """Everything a stream remembers, in an order that places do not change."""
    caches = [
        cache.index_select(3, torch.from_numpy(ring.slots.copy()).long())
        for cache, ring in zip(stream.memory.caches, stream.rings, strict=True)
    ]
    return [*caches, stream.memory.tails.clone()]


def tensors_of(stream: SpeechStream) -> tuple[Tensor, ...]:
    return (*stream.memory.caches, stream.memory.tails)


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def assert_near(a: list[Tensor], b: list[Tensor], atol: float = 1e-4, rtol: float = 1e-4) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, atol=atol, rtol=rtol)


@pytest.mark.parametrize("n_codes, unit", [(150, 25), (44, 25), (30, 7), (5, 5), (4, 4), (1, 1)])
def test_a_turn_is_as_long_as_its_codes(
    vocoder: Token2Wav, base: VoiceBase, n_codes: int, unit: int
) -> None:
    pieces = turn(n_codes, unit=unit)
    answers = speak(vocoder, vocoder.new_state(base), pieces)
    expected = [count_samples(piece, is_first=i == 0) for i, piece in enumerate(pieces)]
    assert [len(samples) for samples in answers] == expected
    overlap = 3840 if len(pieces) > 1 else 0
    assert sum(expected) == 960 * (n_codes + 3) + overlap
    assert all(samples.dtype == torch.float32 for samples in answers)
    assert all(samples.isfinite().all() for samples in answers)


def test_history_stays_bounded_and_the_noise_repeats(vocoder: Token2Wav, base: VoiceBase) -> None:
    state = vocoder.new_state(base)
    sizes = []
    for piece in turn(175)[:7]:
        vocoder.stream(state, piece.codes)
        sizes.append((state.noise_offset, state.rings[1].length))
    prompt = 2 * PROMPT_CODES
    assert sizes[0] == (prompt + 50, PROMPT_CODES + 25)
    assert sizes[1:] == [(prompt + 100, PROMPT_CODES + 50)] * 6


def test_interleaved_streams_equal_each_alone_bit_for_bit(
    vocoder: Token2Wav, base: VoiceBase
) -> None:
    turns = [turn(80, seed=1), turn(80, seed=2)]
    alone = [
        speak(vocoder, vocoder.new_state(base, seeded(i)), pieces) for i, pieces in enumerate(turns)
    ]
    states = [vocoder.new_state(base, seeded(i)) for i in range(2)]
    for step, pair in enumerate(zip(*turns, strict=True)):
        for i, piece in enumerate(pair):
            samples = vocoder.stream(states[i], piece.codes, piece.is_last)
            assert torch.equal(samples, alone[i][step])


def test_a_padded_batch_of_all_ages_speaks_like_each_stream_alone(
    exact: Token2Wav, padded: Token2Wav, bases: list[VoiceBase]
) -> None:
    states = [exact.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    streams = [padded.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    for step, counts in enumerate(TURNS):
        spoken = [(i, toy_codes(n, 10 * step + i)) for i, n in enumerate(counts) if n]
        expected = [exact.stream(states[i], codes) for i, codes in spoken]
        samples = padded.stream_many([Vocode(streams[i], codes) for i, codes in spoken])
        assert_near(samples, expected, atol=WAVE_TOLERANCE, rtol=0.0)
        for i, _ in spoken:
            assert_near(memory_of(streams[i]), memory_of(states[i]))
            assert streams[i].noise_offset == states[i].noise_offset


def test_the_codes_decide_what_is_heard(vocoder: Token2Wav, base: VoiceBase) -> None:
    """So that the comparisons here compare speech, not silence."""
    one, other = (say(vocoder, vocoder.new_state(base), WHOLE, seed) for seed in (1, 2))
    assert (one - other).abs().max() > 50 * WAVE_TOLERANCE


@pytest.mark.parametrize(("n_codes", "n_before"), taking_turns([1, 3, 4, 11, 25, 28], [0, 1, 3]))
def test_the_end_of_a_turn_is_exact_at_any_length(
    exact: Token2Wav, padded: Token2Wav, bases: list[VoiceBase], n_codes: int, n_before: int
) -> None:
    answers = []
    for vocoder in (exact, padded):
        state = vocoder.new_state(bases[1], seeded(1))
        for step in range(n_before):
            say(vocoder, state, WHOLE, step)
        answers.append(vocoder.stream(state, toy_codes(n_codes, 77), is_last=True))
    assert_near(answers[1:], answers[:1], atol=WAVE_TOLERANCE, rtol=0.0)


def test_a_snapshot_goes_on_exactly_alike(vocoder: Token2Wav, base: VoiceBase) -> None:
    pieces = turn(150)
    state = vocoder.new_state(base, seeded(4))
    speak(vocoder, state, pieces[:2])
    snapshot = copy_of(state)
    first = speak(vocoder, state, pieces[2:])
    rolled_back = copy_of(snapshot)
    assert_same(memory_of(rolled_back), memory_of(snapshot))
    for _ in range(2):
        assert_same(first, speak(vocoder, rolled_back, pieces[2:]))
        rolled_back = snapshot


def test_reset_equals_a_new_stream_and_allocates_nothing(
    vocoder: Token2Wav, base: VoiceBase
) -> None:
    state = vocoder.new_state(base)
    speak(vocoder, state, turn(120))
    places = [tensor.data_ptr() for tensor in tensors_of(state)]
    state.reset()
    assert places == [tensor.data_ptr() for tensor in tensors_of(state)]
    fresh = vocoder.new_state(base)
    assert_same(memory_of(state), memory_of(fresh))
    assert_same(speak(vocoder, state, turn(60)), speak(vocoder, fresh, turn(60)))


def test_many_streams_at_once_equal_each_alone(vocoder: Token2Wav, bases: list[VoiceBase]) -> None:
    """Different ages, lengths and endings, answered in the order asked."""
    states = [vocoder.new_state(bases[i % 2], seeded(i)) for i in range(5)]
    for index in (1, 2):
        say(vocoder, states[index])
    copies = [copy_of(state) for state in states]
    codes = [toy_codes(n, seed=n) for n in (28, 28, 28, 12, 5)]
    ends = [False, False, False, False, True]
    calls = [Vocode(*each) for each in zip(states, codes, ends, strict=True)]
    answers = vocoder.stream_many(calls)
    alone = [vocoder.stream(*each) for each in zip(copies, codes, ends, strict=True)]
    assert_near(answers, alone, atol=WAVE_TOLERANCE, rtol=0.0)
    for state, copy in zip(states, copies, strict=True):
        assert_near(memory_of(state), memory_of(copy))


def test_more_streams_than_a_batch_holds_are_all_answered(
    vocoder: Token2Wav, bases: list[VoiceBase]
) -> None:
    streams = [vocoder.new_state(bases[i % 2]) for i in range(66)]
    answers = vocoder.stream_many([Vocode(stream, toy_codes(13)) for stream in streams])
    assert [len(samples) for samples in answers] == [9600] * 66
    for i in (1, 64, 65):
        torch.testing.assert_close(answers[i], answers[i % 2], atol=WAVE_TOLERANCE, rtol=0.0)


def test_the_voice_is_shared_and_never_written_to(vocoder: Token2Wav) -> None:
    base = vocoder.set_up(toy_voice())
    watched = [*base.memory.caches, base.memory.tails, base.noise, base.speaker]
    before = [tensor.clone() for tensor in watched]
    speak(vocoder, vocoder.new_state(base), turn(90))
    assert_same(before, watched)


def test_a_prompt_leaves_the_same_memory_padded_or_not(exact: Token2Wav, padded: Token2Wav) -> None:
    memories = [vocoder.set_up(toy_voice()).memory for vocoder in (exact, padded)]
    ours, theirs = ([*memory.caches, memory.tails] for memory in memories)
    assert_near(ours, theirs, atol=1e-5, rtol=1e-5)


def test_dropped_streams_free_their_memory_whatever_is_asked_next(
    vocoder: Token2Wav, base: VoiceBase
) -> None:
    streams = [vocoder.new_state(base) for _ in range(2)]
    vocoder.stream_many([Vocode(stream, toy_codes(WHOLE)) for stream in streams])
    watched = [weakref.ref(tensor) for stream in streams for tensor in tensors_of(stream)]
    del streams
    gc.collect()
    assert [ref() for ref in watched] == [None] * 8
    say(vocoder, vocoder.new_state(base))


def test_streams_of_a_chunk_that_fails_are_freed_too(vocoder: Token2Wav) -> None:
    short = replace(vocoder.set_up(toy_voice()), noise=torch.zeros(1, 80, 10))
    stream = vocoder.new_state(short)
    with pytest.raises(ValueError, match="the flow noise ends"):
        say(vocoder, stream)
    watched = weakref.ref(stream.memory.tails)
    del stream
    gc.collect()
    assert watched() is None


def test_noise_comes_from_the_stream_s_generator_alone(vocoder: Token2Wav, base: VoiceBase) -> None:
    def answer(generator: torch.Generator | None) -> Tensor:
        torch.manual_seed(int(torch.randint(0, 1000, (1,))))
        return vocoder.stream(vocoder.new_state(base, generator), toy_codes(28))

    assert torch.equal(answer(seeded(1)), answer(seeded(1)))
    assert not torch.equal(answer(seeded(1)), answer(seeded(2)))
    assert torch.equal(answer(None), answer(None))


def test_injected_flow_noise_is_used(vocoder: Token2Wav, base: VoiceBase) -> None:
    same = vocoder.set_up(toy_voice(), noise=base.noise.clone())
    other = vocoder.set_up(toy_voice(), noise=torch.zeros_like(base.noise))
    answers = [vocoder.stream(vocoder.new_state(b), toy_codes(28)) for b in (base, same, other)]
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


def test_noise_that_ends_too_early_is_refused(vocoder: Token2Wav) -> None:
    with pytest.raises(ValueError, match="noise ends"):
        vocoder.set_up(toy_voice(), noise=torch.zeros(1, 80, 20))


def test_look_ahead_of_the_prompt_is_silence_unless_given(exact: Token2Wav) -> None:
    voice = toy_voice()
    silent, given = exact.set_up(voice), exact.set_up(voice, lookahead=toy_codes(3))
    assert not torch.equal(silent.memory.caches[2], given.memory.caches[2])
    named = exact.set_up(voice, lookahead=(4218, 4218, 4218))
    assert torch.equal(silent.memory.caches[2], named.memory.caches[2])


@pytest.mark.parametrize(
    "n_codes, is_last, started",
    [(0, False, True), (3, False, True), (0, True, True), (6, False, False), (54, False, True)],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    vocoder: Token2Wav, base: VoiceBase, n_codes: int, is_last: bool, started: bool
) -> None:
    stream, bystander = vocoder.new_state(base), vocoder.new_state(base)
    if started:
        say(vocoder, stream)
    before = [memory_of(each) for each in (stream, bystander)]
    good = Vocode(bystander, toy_codes(WHOLE))
    with pytest.raises(ValueError, match="codes are too"):
        vocoder.stream_many([good, Vocode(stream, toy_codes(n_codes), is_last)])
    for each, tensors in zip((stream, bystander), before, strict=True):
        assert_same(memory_of(each), tensors)


def test_one_stream_cannot_be_asked_twice_at_once(vocoder: Token2Wav, base: VoiceBase) -> None:
    state = vocoder.new_state(base)
    with pytest.raises(ValueError, match="only once"):
        vocoder.stream_many([Vocode(state, toy_codes(28))] * 2)


def test_a_long_voice_is_refused(vocoder: Token2Wav) -> None:
    check_voice_length(844)
    with pytest.raises(VoiceTooLongError, match=r"17\.0 s .* at most 16\.9 s"):
        vocoder.set_up(toy_voice(425))


@pytest.mark.parametrize(
    "shapes",
    [((1, 4), (1, 192), (1, 9, 80)), ((4,), (1, 192), (1, 8, 80)), ((1, 0), (1, 192), (1, 0, 80))],
)
def test_a_voice_s_parts_belong_together(shapes: tuple[tuple[int, ...], ...]) -> None:
    codes, speaker, mel = shapes
    with pytest.raises(ValueError):
        VoicePrompt(torch.zeros(codes, dtype=torch.long), torch.zeros(speaker), torch.zeros(mel))
