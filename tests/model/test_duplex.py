"""The unit loop with scripted decisions: cache contents, text and results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from MiniCPMO45.engine.steps import DrawCodes, EncodeClips, LlmForward
from MiniCPMO45.modes.duplex import UnitOrderError, UnitResult
from MiniCPMO45.processing.mel import clip_mels
from MiniCPMO45.processing.prompts import CONTEXT_MARKER, duplex_prefix, duplex_suffix
from MiniCPMO45.processing.tokenizer import SpecialTokens
from tests.fakes.scripted import ROWS_PER_SLICE, ToneVoice, cached_labels, spoken
from tests.model.scripted_duplex import AUDIO, SECOND, SETTINGS, SILENCE, SLICE, Bench
from tests.model.toy import Toy, picture, prepare


def _n_samples(result: UnitResult) -> int:
    assert result.audio_waveform is not None
    return len(result.audio_waveform)


def _is_silence(result: UnitResult) -> bool:
    wave = result.audio_waveform
    return wave is not None and wave.shape == (SILENCE,) and not wave.any()


def test_prepare_prefills_the_prompt_around_the_voice_sample(toy: Toy) -> None:
    bench = Bench(toy)
    session = bench.executor.open_session()
    sample = np.zeros(32_000, np.float32)
    steps = prepare(bench.duplex, session, SETTINGS, ToneVoice(), sample)
    bench.executor.requests.clear()
    bench.do(steps)
    before, after = (toy.tokenizer.encode(text) for text in (duplex_prefix(), duplex_suffix()))
    assert cached_labels(session.kv) == [*before, *AUDIO, *after]
    assert len(bench.executor.of_kind(LlmForward)) == 1
    [asked] = bench.executor.of_kind(EncodeClips)
    assert asked.block_frames == 50, "one second"
    window = session.window
    assert window.preserved == session.kv.length
    assert window.prefix == session.kv.length - len(after)
    assert window.suffix_ids == tuple(after)
    assert window.marker_ids == tuple(toy.tokenizer.encode(CONTEXT_MARKER))


def test_voice_sample_has_its_own_dynamic_floor(toy: Toy) -> None:
    bench = Bench(toy)
    session = bench.executor.open_session()
    sample = np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    bench.do(prepare(bench.duplex, session, SETTINGS, None, sample))
    [mel] = bench.executor.of_kind(EncodeClips)[-1].mels
    [expected] = clip_mels(sample)
    assert mel.equal(expected)


def test_a_listen_unit_is_13_tokens(bench: Bench, tokens: SpecialTokens) -> None:
    result = bench.unit(tokens.listen)
    assert bench.cached == [tokens.unit_start, *AUDIO, tokens.listen, tokens.unit_end]
    assert len(bench.cached) == 13
    assert (result.is_listen, result.end_of_turn, result.text) == (True, False, "")
    assert _is_silence(result)


def test_picture_adds_66_tokens_before_the_audio(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.listen, frames=[picture(0)])
    shown = [tokens.image_start, *SLICE, tokens.image_end]
    assert bench.cached == [tokens.unit_start, *shown, *AUDIO, tokens.listen, tokens.unit_end]
    assert len(bench.cached) == 79


def test_unit_and_the_previous_units_end_are_one_prefill(
    bench: Bench, tokens: SpecialTokens
) -> None:
    bench.executor.requests.clear()
    for _ in range(2):
        bench.unit(tokens.listen, frames=[picture(0), picture(1)])
    assert [len(ids) for ids in bench.executor.fed_ids()] == [1 + 2 * 66 + 10, 2 + 1 + 2 * 66 + 10]
    assert bench.executor.fed_ids()[1][:3] == (tokens.listen, tokens.unit_end, tokens.unit_start)


def test_a_turn_of_three_units(bench: Bench, toy: Toy, tokens: SpecialTokens) -> None:
    first = bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    inner = bench.unit(tokens.speak, bench.b, bench.c, tokens.chunk_eos)
    last = bench.unit(tokens.speak, bench.a, tokens.turn_eos, tokens.listen)
    start, end = [tokens.unit_start, *AUDIO, tokens.speak], tokens.unit_end
    assert bench.cached == [
        *(*start, bench.a, tokens.chunk_eos, end),
        *(*start, bench.b, bench.c, tokens.chunk_eos, end),
        *(*start, bench.a, tokens.turn_eos, tokens.listen, end),
    ]
    assert [each.text for each in (first, inner, last)] == [
        toy.tokenizer.decode(ids) for ids in ([bench.a], [bench.b, bench.c], [bench.a])
    ]
    assert [each.end_of_turn for each in (first, inner, last)] == [False, False, True]
    assert [each.n_tokens for each in (first, inner, last)] == [1, 2, 2]
    assert [each.n_tts_tokens for each in (first, inner, last)] == [25, 25, 25]
    assert [_n_samples(each) for each in (first, inner, last)] == [
        24_000,
        24_000,
        (3 + 25) * 960 + 3_840,
    ]
    assert bench.voice is not None
    assert bench.voice.resets == 1
    assert bench.session.speech.kv.length == 0


def test_speech_is_conditioned_on_the_text_and_its_own_states(
    bench: Bench, tokens: SpecialTokens
) -> None:
    bench.unit(tokens.speak, bench.a, bench.b, tokens.chunk_eos)
    request = bench.executor.of_kind(DrawCodes)[0]
    assert spoken(request) == (bench.a, bench.b)
    [(_, states)] = request.rows.vectors
    assert states[:, 0].tolist() == [bench.a, bench.b]


def test_costs_are_seconds_of_named_stages(bench: Bench, tokens: SpecialTokens) -> None:
    prefilled = bench.prefill(tokens.speak, bench.a, tokens.chunk_eos, frames=[picture(0)])
    result = bench.generate()
    for record in (prefilled, result):
        costs = {name: value for name, value in vars(record).items() if name.startswith("cost_")}
        total = costs.pop("cost_all")
        assert all(cost >= 0 for cost in costs.values())
        assert sum(costs.values()) <= total


def test_current_time_counts_units(bench: Bench, tokens: SpecialTokens) -> None:
    results = [
        bench.unit(tokens.listen),
        bench.unit(tokens.listen, audio=None, frames=[picture(0)]),
    ]
    assert [each.current_time for each in results] == [1, 2]


def test_vision_tokens_are_counted_per_unit(toy: Toy) -> None:
    bench = Bench(toy)
    large = picture(0, 900, 450)
    listen = bench.tokens.listen
    seen = bench.unit(listen, frames=[large, picture(1)], max_slice_nums=[4, 1])
    blind = bench.unit(listen)
    assert (seen.vision_slices, blind.vision_slices) == (4, 0)
    assert (seen.vision_tokens, blind.vision_tokens) == (4 * ROWS_PER_SLICE, 0)


def test_slices_per_picture_default_to_the_settings(toy: Toy) -> None:
    bench = Bench(toy, replace(SETTINGS, max_slice_nums=4))
    large = picture(0, 900, 450)
    assert bench.prefill(bench.tokens.listen, frames=[large]).vision_slices == 3
    bench.generate()
    bench.finalize()
    prefilled = bench.prefill(bench.tokens.listen, frames=[large], max_slice_nums=1)
    assert prefilled.vision_slices == 1


def test_pictures_alone_are_a_unit(bench: Bench, tokens: SpecialTokens) -> None:
    result = bench.unit(tokens.listen, audio=None, frames=[picture(0)])
    assert result.is_listen
    shown = [tokens.image_start, *SLICE, tokens.image_end]
    assert bench.cached == [tokens.unit_start, *shown, tokens.listen, tokens.unit_end]
    assert bench.session.audio_input.audio_units == 0


def test_empty_input_is_no_unit(bench: Bench) -> None:
    for audio in (None, np.zeros(0, np.float32)):
        result = bench.prefill(audio=audio)
        assert (result.success, result.reason) == (False, "no input")
    assert bench.cached == []


def test_incomplete_audio_is_buffered(bench: Bench, tokens: SpecialTokens) -> None:
    """D20."""
    bench.unit(tokens.listen)
    before = bench.cached
    half = SECOND[:8_000]
    result = bench.prefill(audio=half, frames=[picture(0)])
    assert (result.success, result.reason) == (False, "not enough audio")
    assert bench.cached == before
    assert _is_silence(bench.generate())
    bench.finalize()
    assert bench.cached == before
    bench.unit(tokens.listen, audio=half)
    unit = [tokens.unit_start, *AUDIO, tokens.listen, tokens.unit_end]
    assert bench.cached == unit * 2
    assert bench.session.window.tokens == bench.session.cached_tokens


def test_units_cannot_be_opened_twice(bench: Bench, tokens: SpecialTokens) -> None:
    bench.prefill(tokens.listen)
    length = bench.session.kv.length
    with pytest.raises(UnitOrderError, match="generate"):
        bench.prefill(tokens.listen)
    bench.executor.decisions.clear()
    bench.generate()
    with pytest.raises(UnitOrderError, match="finalize"):
        bench.prefill(tokens.listen)
    assert bench.session.kv.length == length
    bench.finalize()
    bench.executor.decisions.clear()
    assert bench.unit(tokens.listen).is_listen


def test_generate_without_input_listens_and_leaves_nothing_to_finalize(bench: Bench) -> None:
    result = bench.generate()
    assert (result.is_listen, result.end_of_turn) == (True, False)
    assert _is_silence(result)
    bench.finalize()
    bench.finalize()
    assert bench.cached == []


def test_finalize_twice_closes_once(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.listen)
    bench.finalize()
    assert bench.cached.count(tokens.unit_end) == 1


# Each unit of a random conversation: decisions after the first, then how it goes on.
plans = st.lists(
    st.tuples(st.lists(st.sampled_from("abcn"), max_size=9), st.sampled_from("lcstfb")),
    min_size=1,
    max_size=8,
)


@settings(max_examples=max(1, settings().max_examples // 4))  # each is a conversation
@given(plans=plans)
def test_any_conversation_caches_whole_units_and_no_rejected_token(
    toy: Toy, plans: list[tuple[list[str], str]]
) -> None:
    """Exactly one unit start and one unit end per unit, lengths that add up, silence of a second.

    What follows a unit's text: l listen, c chunk end, s spoken chunk end, t turn end, f forced to
    listen, b break. `n` among the words is a listen decision.
    """
    bench, tokens = Bench(toy), toy.tokenizer.special
    words = {"a": bench.a, "b": bench.b, "c": bench.c, "n": tokens.listen}
    for texts, ending in plans:
        length, turn = len(bench.cached), bench.session.turn
        is_running, forced = not turn.has_ended, ending in "fb"
        # Listening is only decided in silence; inside a turn it would become another token.
        decisions = [tokens.listen] if ending == "l" and not is_running else [tokens.speak]
        if decisions[0] == tokens.speak:
            decisions += [words[each] for each in texts[:4]]
            decisions += {
                "s": [tokens.chunk_tts_eos],
                "t": [tokens.turn_eos, tokens.listen],
            }.get(ending, [tokens.chunk_eos])
        if forced:
            decisions = [bench.a]
        turn.force_next_listen = ending == "b"
        result = bench.unit(*decisions, force_listen=ending == "f")
        unit = bench.cached[length:]
        assert unit[0] == tokens.unit_start
        assert unit[-1] == tokens.unit_end
        assert (unit.count(tokens.unit_start), unit.count(tokens.unit_end)) == (1, 1)
        assert unit[1:11] == AUDIO
        told = [tokens.tts_bos if each == tokens.listen else each for each in decisions[:-1]]
        if forced:
            told = [tokens.turn_eos] if is_running else []
        closing = tokens.listen if forced else decisions[-1]
        assert unit[11:-1] == [*told, closing]
        assert result.barge_in is (forced and is_running)
        assert not result.is_listen or _is_silence(result)
        assert bench.session.window.tokens == bench.session.cached_tokens
