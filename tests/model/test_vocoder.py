"""Streams of the whole vocoder: lengths, isolation, snapshots, both history rules."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from MiniCPMO45.token2wav.chunking import Piece, SpeechBuffer, count_samples
from MiniCPMO45.token2wav.vocoder import (
    StreamCall,
    Token2Wav,
    VoiceTooLongError,
    check_voice_length,
)
from MiniCPMO45.token2wav.vocoder_state import VocoderState, VoiceBase
from MiniCPMO45.token2wav.voice import VoicePrompt
from tests.fakes.toy_vocoder import PROMPT_CODES, toy_codes, toy_vocoder, toy_voice


@pytest.fixture(scope="module")
def vocoder() -> Token2Wav:
    """The toy vocoder, corrected history."""
    return toy_vocoder()


@pytest.fixture(scope="module")
def base(vocoder: Token2Wav) -> VoiceBase:
    """The toy voice, ready."""
    return vocoder.set_up(toy_voice())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def speak(vocoder: Token2Wav, state: VocoderState, pieces: list[Piece]) -> list[Tensor]:
    return [vocoder.stream(state, piece.codes, piece.is_last) for piece in pieces]


def turn(n_codes: int, seed: int = 11, unit: int = 25) -> list[Piece]:
    """Calls of a turn of n codes given in units."""
    codes, buffer, pieces = toy_codes(n_codes, seed), SpeechBuffer(), []
    for start in range(0, n_codes, unit):
        is_last = start + unit >= n_codes
        pieces += buffer.push(codes[start : start + unit], is_last=is_last)
    return pieces


def tensors_of(state: VocoderState) -> list[Tensor]:
    """Everything a state remembers, in a fixed order."""
    hift = [] if state.hift is None else list(vars(state.hift).values())
    own = [state.estimator.ordered_attention(), state.estimator.convolution]
    return [*vars(state.encoder).values(), *own, *hift]


def assert_same(a: VocoderState, b: VocoderState) -> None:
    pairs = list(zip(tensors_of(a), tensors_of(b), strict=True))
    assert all(torch.equal(x, y) for x, y in pairs)


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
        sizes.append((state.noise_offset, state.encoder.token_rate.shape[3]))
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


def test_a_snapshot_goes_on_exactly_alike(vocoder: Token2Wav, base: VoiceBase) -> None:
    pieces = turn(150)
    state = vocoder.new_state(base, seeded(4))
    speak(vocoder, state, pieces[:2])
    snapshot = state.clone()
    first = speak(vocoder, state, pieces[2:])
    rolled_back = snapshot.clone()
    assert_same(rolled_back, snapshot)
    for _ in range(2):
        again = speak(vocoder, rolled_back, pieces[2:])
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        rolled_back = snapshot


def test_reset_equals_a_new_stream_and_allocates_nothing(
    vocoder: Token2Wav, base: VoiceBase
) -> None:
    state = vocoder.new_state(base)
    speak(vocoder, state, turn(120))
    memory = state.estimator.attention.data_ptr()
    state.reset()
    assert state.estimator.attention.data_ptr() == memory
    fresh = vocoder.new_state(base)
    assert_same(state, fresh)
    again, first = speak(vocoder, state, turn(60)), speak(vocoder, fresh, turn(60))
    assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_many_streams_at_once_equal_each_alone(vocoder: Token2Wav, base: VoiceBase) -> None:
    """Different ages, lengths and endings, answered in the order asked."""
    other = vocoder.set_up(toy_voice(30, seed=9))
    bases = [base, base, other, base, other]
    states = [vocoder.new_state(b, seeded(i)) for i, b in enumerate(bases)]
    for index in (1, 2):
        vocoder.stream(states[index], toy_codes(28))
    copies = [state.clone() for state in states]
    codes = [toy_codes(n, seed=n) for n in (28, 28, 28, 12, 5)]
    lasts = [False, False, False, False, True]
    calls = [StreamCall(*each) for each in zip(states, codes, lasts, strict=True)]
    answers = vocoder.stream_many(calls)
    for samples, copy, each, is_last in zip(answers, copies, codes, lasts, strict=True):
        alone = vocoder.stream(copy, each, is_last)
        torch.testing.assert_close(samples, alone, atol=2e-3, rtol=0.0)
    for state, copy in zip(states, copies, strict=True):
        for a, b in zip(tensors_of(state), tensors_of(copy), strict=True):
            torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-3)


def test_the_base_is_shared_and_never_written_to(vocoder: Token2Wav) -> None:
    base = vocoder.set_up(toy_voice())
    encoder = [tensor.clone() for tensor in vars(base.encoder).values()]
    before = [*encoder, base.estimator.attention.clone(), base.estimator.convolution.clone()]
    speak(vocoder, vocoder.new_state(base), turn(90))
    after = [
        *vars(base.encoder).values(),
        base.estimator.attention,
        base.estimator.convolution,
    ]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_module_is_the_same_after_use(vocoder: Token2Wav, base: VoiceBase) -> None:
    weights = {name: tensor.clone() for name, tensor in vocoder.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in vocoder.named_modules()}
    speak(vocoder, vocoder.new_state(base), turn(60))
    vocoder.synthesize(toy_voice(), toy_codes(10))
    assert all(torch.equal(weights[name], t) for name, t in vocoder.state_dict().items())
    assert attributes == {name: set(vars(module)) for name, module in vocoder.named_modules()}
    assert not list(vocoder.buffers())


def test_a_dropped_stream_frees_its_memory(vocoder: Token2Wav, base: VoiceBase) -> None:
    state = vocoder.new_state(base)
    vocoder.stream(state, toy_codes(28))
    watched = [
        weakref.ref(tensor) for tensor in (state.estimator.attention, state.encoder.mel_rate)
    ]
    del state
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


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


def test_steps_of_a_stream_are_those_of_its_voice(vocoder: Token2Wav) -> None:
    base = vocoder.set_up(toy_voice(), n_steps=4)
    state = vocoder.new_state(base)
    assert base.n_steps == 4 and state.estimator.attention.shape[0] == 4
    assert vocoder.stream(state, toy_codes(28)).shape == (24_000,)


@pytest.mark.parametrize(
    "n_codes, is_last, started",
    [(0, False, True), (3, False, True), (0, True, True), (6, False, False), (54, False, True)],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    vocoder: Token2Wav, base: VoiceBase, n_codes: int, is_last: bool, started: bool
) -> None:
    state, bystander = vocoder.new_state(base), vocoder.new_state(base)
    if started:
        vocoder.stream(state, toy_codes(28))
    before, before_bystander = state.clone(), bystander.clone()
    good = StreamCall(bystander, toy_codes(28))
    with pytest.raises(ValueError, match="codes are too"):
        vocoder.stream_many([good, StreamCall(state, toy_codes(n_codes), is_last)])
    assert_same(state, before)
    assert_same(bystander, before_bystander)


def test_one_stream_cannot_be_asked_twice_at_once(vocoder: Token2Wav, base: VoiceBase) -> None:
    state = vocoder.new_state(base)
    with pytest.raises(ValueError, match="only once"):
        vocoder.stream_many([StreamCall(state, toy_codes(28))] * 2)


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


def test_a_whole_utterance_is_as_long_as_its_codes(vocoder: Token2Wav) -> None:
    voice, codes = toy_voice(), toy_codes(31)
    samples = vocoder.synthesize(voice, codes, seeded(1))
    assert samples.shape == (31 * 960,)
    assert torch.equal(samples, vocoder.synthesize(voice, codes, seeded(1)))
    assert not torch.equal(samples, vocoder.synthesize(voice, codes))


def test_memory_is_counted(vocoder: Token2Wav, base: VoiceBase) -> None:
    state = vocoder.new_state(base)
    frames = 2 * PROMPT_CODES
    assert state.estimator.attention.shape == (2, 2, 2, 2, frames + 200, 16)
    assert base.estimator.attention.shape == (2, 2, 2, 2, frames, 16)
    assert state.nbytes > 4 * 2 * 2 * 2 * 2 * (frames + 200) * 16
    assert base.nbytes > 4 * 2 * 2 * 2 * 2 * frames * 16
