"""The device vocoder, without graphs, speaks like the plain one: alone, batched, at any age."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from MiniCPMO45.device.vocoder import DeviceCall, DeviceVocoder
from MiniCPMO45.device.vocoder_columns import ColumnLedger
from MiniCPMO45.device.vocoder_streams import VocoderStream
from MiniCPMO45.token2wav.estimator_cache import EstimatorCache
from MiniCPMO45.token2wav.vocoder import StreamCall, Token2Wav
from MiniCPMO45.token2wav.vocoder_state import VocoderState, VoiceBase
from tests.fakes.toy_vocoder import toy_codes, toy_vocoder, toy_voice

WAVE_TOLERANCE = 2e-5  # float32 sums in another order; the excitation adds up phases
MEMORY_TOLERANCE = 1e-4
VOICES = ((52, 3), (30, 9), (75, 5))  # codes and seed; shorter and longer than the history

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
def plain() -> Token2Wav:
    """The toy vocoder."""
    return toy_vocoder()


@pytest.fixture(scope="module")
def device(plain: Token2Wav) -> DeviceVocoder:
    """The same weights on static shapes."""
    return DeviceVocoder(plain)


@pytest.fixture(scope="module")
def bases(plain: Token2Wav) -> list[VoiceBase]:
    """Three voices of different lengths."""
    return [plain.set_up(toy_voice(*voice)) for voice in VOICES]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def speak(device: DeviceVocoder, state: VocoderStream, n_codes: int, seed: int = 0) -> Tensor:
    [samples] = device.stream_many([DeviceCall(state, toy_codes(n_codes, seed))])
    return samples


def memory_of(stream: VocoderStream) -> list[Tensor]:
    """Everything a stream remembers, in an order that places do not change."""
    caches = [
        cache.index_select(3, torch.from_numpy(ledger.columns.copy()).long())
        for cache, ledger in zip(stream.memory.caches, stream.ledgers, strict=True)
    ]
    return [*caches, stream.memory.tails]


def assert_remembers(stream: VocoderStream, state: VocoderState) -> None:
    """The caches hold the same columns in the same order, the tails the same values."""
    attention = state.estimator.ordered_attention().flatten(0, 1)
    expected = [attention, state.encoder.token_rate, state.encoder.mel_rate]
    for ours, theirs in zip(memory_of(stream), expected, strict=False):
        torch.testing.assert_close(ours, theirs, atol=MEMORY_TOLERANCE, rtol=MEMORY_TOLERANCE)
    tails = stream.layout.split(stream.memory.tails)
    assert state.hift is not None
    for name, theirs in (
        ("lookahead", state.encoder.lookahead[0].T),
        ("upsample", state.encoder.upsample[0].T),
        ("mel", state.hift.mel[0]),
        ("source", state.hift.source[0]),
        ("speech", state.hift.speech[0]),
    ):
        torch.testing.assert_close(
            tails[name], theirs, atol=MEMORY_TOLERANCE, rtol=MEMORY_TOLERANCE
        )


def test_a_batch_of_all_ages_speaks_like_the_plain_vocoder(
    plain: Token2Wav, device: DeviceVocoder, bases: list[VoiceBase]
) -> None:
    states = [plain.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    streams = [device.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    for step, counts in enumerate(TURNS):
        spoken = [(i, toy_codes(n, 10 * step + i)) for i, n in enumerate(counts) if n]
        expected = plain.stream_many([StreamCall(states[i], codes) for i, codes in spoken])
        samples = device.stream_many([DeviceCall(streams[i], codes) for i, codes in spoken])
        for ours, theirs in zip(samples, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=WAVE_TOLERANCE, rtol=0.0)
        for i, _ in spoken:
            assert_remembers(streams[i], states[i])
            assert streams[i].noise_offset == states[i].noise_offset


def test_the_codes_decide_what_is_heard(device: DeviceVocoder, bases: list[VoiceBase]) -> None:
    """So that the comparisons above compare speech, not silence."""
    one, other = (speak(device, device.new_state(bases[0]), WHOLE, seed) for seed in (1, 2))
    assert (one - other).abs().max() > 50 * WAVE_TOLERANCE


@pytest.mark.parametrize("n_codes", [1, 3, 4, 11, 25, 28])
@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_the_end_of_a_turn_is_exact_at_any_length(
    plain: Token2Wav, device: DeviceVocoder, bases: list[VoiceBase], n_codes: int, n_before: int
) -> None:
    state, stream = plain.new_state(bases[1], seeded(1)), device.new_state(bases[1], seeded(1))
    for step in range(n_before):
        plain.stream(state, toy_codes(WHOLE, step))
        speak(device, stream, WHOLE, step)
    codes = toy_codes(n_codes, 77)
    expected = plain.stream(state, codes, is_last=True)
    [samples] = device.stream_many([DeviceCall(stream, codes, is_last=True)])
    torch.testing.assert_close(samples, expected, atol=WAVE_TOLERANCE, rtol=0.0)


def test_ends_and_middles_share_a_batch(device: DeviceVocoder, bases: list[VoiceBase]) -> None:
    streams = [device.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    for i, stream in enumerate(streams[:2]):
        speak(device, stream, WHOLE, i)
    alone = [stream.clone() for stream in streams]
    ends = (True, False, True)
    codes = [toy_codes(n, n) for n in (5, WHOLE, 2)]
    together = device.stream_many(
        [DeviceCall(*each) for each in zip(streams, codes, ends, strict=True)]
    )
    for samples, stream, given, is_last in zip(together, alone, codes, ends, strict=True):
        [expected] = device.stream_many([DeviceCall(stream, given, is_last)])
        torch.testing.assert_close(samples, expected, atol=WAVE_TOLERANCE, rtol=0.0)


def test_more_streams_than_a_batch_holds_are_all_answered(
    device: DeviceVocoder, bases: list[VoiceBase]
) -> None:
    streams = [device.new_state(bases[i % 2]) for i in range(66)]
    answers = device.stream_many([DeviceCall(stream, toy_codes(13)) for stream in streams])
    assert [len(samples) for samples in answers] == [9600] * 66
    for i in (1, 64, 65):
        torch.testing.assert_close(answers[i], answers[i % 2], atol=WAVE_TOLERANCE, rtol=0.0)


def test_streams_of_other_step_counts_are_answered_beside(plain: Token2Wav) -> None:
    device = DeviceVocoder(plain)
    bases = [plain.set_up(toy_voice(), n_steps=n) for n in (2, 4)]
    streams = [device.new_state(base) for base in bases]
    answers = device.stream_many([DeviceCall(stream, toy_codes(WHOLE)) for stream in streams])
    for base, samples in zip(bases, answers, strict=True):
        expected = plain.stream(plain.new_state(base), toy_codes(WHOLE))
        torch.testing.assert_close(samples, expected, atol=WAVE_TOLERANCE, rtol=0.0)


def test_a_snapshot_goes_on_exactly_alike(device: DeviceVocoder, bases: list[VoiceBase]) -> None:
    stream = device.new_state(bases[0], seeded(4))
    speak(device, stream, WHOLE)
    snapshot = stream.clone()
    first = [speak(device, stream, WHOLE, seed) for seed in (1, 2)]
    again = [speak(device, snapshot, WHOLE, seed) for seed in (1, 2)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_reset_equals_a_new_stream_and_allocates_nothing(
    device: DeviceVocoder, bases: list[VoiceBase]
) -> None:
    stream = device.new_state(bases[0])
    for seed in range(4):
        speak(device, stream, WHOLE, seed)
    places = [tensor.data_ptr() for tensor in (*stream.memory.caches, stream.memory.tails)]
    stream.reset()
    assert places == [tensor.data_ptr() for tensor in (*stream.memory.caches, stream.memory.tails)]
    fresh = device.new_state(bases[0])
    assert torch.equal(speak(device, stream, WHOLE), speak(device, fresh, WHOLE))
    assert all(torch.equal(a, b) for a, b in zip(memory_of(stream), memory_of(fresh), strict=True))


def test_the_voice_is_shared_and_never_written_to(plain: Token2Wav, device: DeviceVocoder) -> None:
    base = plain.set_up(toy_voice())
    watched = [*vars(base.encoder).values(), base.estimator.attention, base.estimator.convolution]
    before = [tensor.clone() for tensor in watched]
    stream = device.new_state(base)
    for seed in range(3):
        speak(device, stream, WHOLE, seed)
    assert all(torch.equal(a, b) for a, b in zip(before, watched, strict=True))


def test_dropped_streams_free_their_memory_whatever_is_asked_next(
    device: DeviceVocoder, bases: list[VoiceBase]
) -> None:
    streams = [device.new_state(bases[0]) for _ in range(2)]
    device.stream_many([DeviceCall(stream, toy_codes(WHOLE)) for stream in streams])
    watched = [weakref.ref(t) for s in streams for t in (*s.memory.caches, s.memory.tails)]
    del streams
    gc.collect()
    assert [ref() for ref in watched] == [None] * 8
    speak(device, device.new_state(bases[0]), WHOLE)


def test_streams_of_a_chunk_that_fails_are_freed_too(plain: Token2Wav) -> None:
    device = DeviceVocoder(plain)
    short = replace(plain.set_up(toy_voice()), noise=torch.zeros(1, 80, 10))
    stream = device.new_state(short)
    with pytest.raises(ValueError, match="the flow noise ends"):
        speak(device, stream, WHOLE)
    watched = weakref.ref(stream.memory.tails)
    del stream
    gc.collect()
    assert watched() is None


def test_memory_is_counted(device: DeviceVocoder, bases: list[VoiceBase]) -> None:
    stream = device.new_state(bases[0])
    assert stream.memory.estimator.shape == (2 * 2, 2, 2, bases[0].frames + 100, 16)
    assert stream.nbytes == sum(t.nbytes for t in (*stream.memory.caches, stream.memory.tails))


@pytest.mark.parametrize(
    "n_codes, is_last, started",
    [(0, False, True), (3, False, True), (0, True, True), (6, False, False), (54, False, True)],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    device: DeviceVocoder, bases: list[VoiceBase], n_codes: int, is_last: bool, started: bool
) -> None:
    stream, bystander = device.new_state(bases[0]), device.new_state(bases[1])
    if started:
        speak(device, stream, WHOLE)
    before = [[t.clone() for t in memory_of(each)] for each in (stream, bystander)]
    good = DeviceCall(bystander, toy_codes(WHOLE))
    with pytest.raises(ValueError, match="codes are too"):
        device.stream_many([good, DeviceCall(stream, toy_codes(n_codes), is_last)])
    for each, tensors in zip((stream, bystander), before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(memory_of(each), tensors, strict=True))


def test_one_stream_cannot_be_asked_twice_at_once(
    device: DeviceVocoder, bases: list[VoiceBase]
) -> None:
    stream = device.new_state(bases[0])
    with pytest.raises(ValueError, match="only once"):
        device.stream_many([DeviceCall(stream, toy_codes(WHOLE))] * 2)


@pytest.mark.parametrize("prompt_frames", [8, 60, 104, 250])
def test_columns_are_kept_by_the_plain_rule(prompt_frames: int) -> None:
    ledger = ColumnLedger(prompt_frames, 100, newest_first=True).filled(range(prompt_frames))
    cache = EstimatorCache(
        torch.zeros(1, 1, 2, 1, prompt_frames + 200, 2),
        torch.zeros(1, 1, 2, 4, 2),
        tuple(range(prompt_frames)),
    )
    for n_frames in (50, 20, 30, 56, 2, 50, 50):
        targets, ledger = ledger.append(n_frames)
        cache.commit(cache.begin(n_frames), n_frames, prompt_frames)
        assert tuple(ledger.columns) == cache.columns
        assert set(targets) - {-1} <= set(ledger.columns)


def test_a_chunk_that_fits_drops_nothing_and_a_full_one_overwrites_the_oldest() -> None:
    ledger = ColumnLedger(2, 4, newest_first=False).filled([0, 1])
    targets, ledger = ledger.append(4)
    assert targets.tolist() == [2, 3, 4, 5]
    targets, ledger = ledger.append(2)
    assert targets.tolist() == [2, 3]
    assert ledger.columns.tolist() == [0, 1, 4, 5, 2, 3]
    assert ledger.ages().tolist() == [6, 5, 2, 1, 4, 3]
