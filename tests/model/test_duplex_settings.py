"""The unit loop: settings per session, stop, interruption and history."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.engine.passes import resume
from MiniCPMO45.engine.steps import DrawCodes, Emit, LlmForward, Vocode
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.processing.prompts import CONTEXT_MARKER
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings
from tests.fakes.scripted import cached_labels
from tests.model.scripted_duplex import SECOND, SETTINGS, SILENCE, Bench
from tests.model.toy import Toy

OWN = DuplexSettings(
    generate_audio=False,
    force_listen_count=1,
    max_new_speak_tokens_per_chunk=3,
    decode_mode="greedy",
    tts_temperature=0.3,
    tts_repetition_penalty=1.4,
    window=WindowSettings(mode=WindowMode.BASIC, basic_high_tokens=60, basic_low_tokens=40),
)


def test_sessions_have_their_own_settings(toy: Toy) -> None:
    """D19."""
    bench = Bench(toy, OWN, defaults=SETTINGS)
    session, tokens = bench.session, bench.tokens
    assert session.settings == OWN
    assert session.speech.vocoder is None
    assert bench.unit(bench.a).is_listen, "the first unit listens by force"
    result = bench.unit(tokens.speak, bench.a)
    assert (result.n_tokens, result.n_tts_tokens) == (1, 0)
    assert bench.cached[-3:] == [bench.a, tokens.chunk_eos, tokens.unit_end]
    for _ in range(5):
        bench.unit(tokens.speak, tokens.chunk_eos)
    assert session.window.evictions > 0
    assert session.cached_tokens <= 60


def test_a_session_without_settings_takes_the_defaults(toy: Toy) -> None:
    bench = Bench(toy, defaults=OWN)
    session = bench.executor.open_session()
    bench.do(bench.duplex.feed_prompt(session, "a", "b"))
    assert session.settings == OWN


def test_audio_is_silence_without_a_voice(toy: Toy) -> None:
    bench = Bench(toy, has_voice=False)
    tokens = bench.tokens
    result = bench.unit(tokens.speak, bench.a, tokens.turn_eos, tokens.listen)
    assert (result.is_listen, result.end_of_turn, result.n_tts_tokens) == (False, True, 0)
    assert result.text
    assert result.audio_waveform is not None
    assert result.audio_waveform.shape == (SILENCE,)
    assert bench.executor.of_kind(DrawCodes) == []


def test_history_is_cleared_at_the_turn_end(bench: Bench, tokens: SpecialTokens) -> None:
    """D25."""
    history = bench.session.sampler.history
    bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    bench.unit(tokens.listen, bench.b, tokens.chunk_eos)
    assert history == [bench.a, bench.b]
    bench.unit(tokens.speak, bench.c, tokens.turn_eos, tokens.chunk_eos)
    assert bench.session.sampler.history == []


def test_window_text_excludes_control_tokens(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.listen)
    bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    bench.unit(tokens.speak, tokens.listen, bench.b, tokens.turn_eos, tokens.listen)
    units = bench.session.window.units
    assert [unit.text_ids for unit in units] == [(), (bench.a,), (bench.b,)]


def test_context_window_carries_the_spoken_text(toy: Toy) -> None:
    window = WindowSettings(mode=WindowMode.CONTEXT, context_max_units=1)
    bench = Bench(toy, replace(SETTINGS, window=window))
    tokens, head = bench.tokens, bench.head
    bench.unit(tokens.speak, bench.a, bench.b, tokens.chunk_eos)
    bench.unit(tokens.speak, bench.c, tokens.turn_eos, tokens.listen)
    bench.unit(tokens.listen)
    state = bench.session.window
    carried = [*toy.tokenizer.encode(CONTEXT_MARKER), bench.a, bench.b, bench.c]
    cached = cached_labels(bench.session.kv)
    assert cached[: state.preserved] == [*head[: state.prefix], *carried, *state.suffix_ids]
    assert len(cached) == state.preserved + 13


def test_interruption_ends_the_turn_and_its_speech(bench: Bench, tokens: SpecialTokens) -> None:
    """D22."""
    bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    result = bench.unit(bench.a, force_listen=True)
    assert (result.is_listen, result.barge_in, result.end_of_turn) == (True, True, False)
    assert bench.cached[-3:] == [tokens.turn_eos, tokens.listen, tokens.unit_end]
    assert bench.session.speech.kv.length == 0
    assert bench.voice is not None
    assert bench.voice.resets == 1
    bench.unit(tokens.speak, bench.c, tokens.chunk_eos)
    assert cached_labels(bench.session.speech.kv)[0] == bench.c


def test_a_stopped_session_does_nothing(bench: Bench, tokens: SpecialTokens) -> None:
    bench.prefill(tokens.speak)
    bench.executor.decisions.clear()
    length = bench.session.kv.length
    bench.session.stop.set()
    result = bench.generate()
    assert (result.is_listen, result.end_of_turn) == (True, True)
    bench.finalize()
    prefilled = bench.prefill()
    assert (prefilled.success, prefilled.reason) == (False, "stopped")
    assert bench.session.kv.length == length


def generate_until(bench: Bench, kind: type) -> UnitResult:
    """Generate a unit whose session is stopped once a request of this kind is answered."""
    steps, answer = bench.duplex.streaming_generate(bench.session), None
    with pytest.raises(StopIteration) as end:
        while True:
            request = resume(steps, answer)
            assert not isinstance(request, Emit)
            [answer] = bench.executor.submit([request])()
            if isinstance(request, kind):
                bench.session.stop.set()
    result: UnitResult = end.value.value
    return result


def test_stopped_unit_can_be_finalized(bench: Bench, tokens: SpecialTokens) -> None:
    bench.prefill(tokens.speak, bench.a, bench.b)
    bench.executor.requests.clear()
    result = generate_until(bench, object)
    assert len(bench.executor.of_kind(LlmForward)) == 1, "noticed between two passes"
    assert (result.is_listen, result.end_of_turn, result.n_tts_tokens) == (False, False, 0)
    assert np.array_equal(result.audio_waveform, np.zeros(SILENCE, np.float32))
    bench.finalize()
    assert bench.cached[-2:] == [tokens.speak, tokens.unit_end]
    assert bench.session.window.tokens == bench.session.cached_tokens


def test_a_stop_while_speaking_ends_speech_too(bench: Bench, tokens: SpecialTokens) -> None:
    bench.prefill(tokens.speak, bench.a, tokens.chunk_eos)
    result = generate_until(bench, DrawCodes)
    assert len(bench.executor.of_kind(DrawCodes)) == 1
    assert bench.executor.of_kind(Vocode) == []
    assert not result.audio_waveform.any()


def test_closed_session_holds_no_memory(bench: Bench, tokens: SpecialTokens) -> None:
    """A deferred finalize may follow the close."""
    bench.prefill(tokens.listen)
    bench.generate()
    bench.session.close()
    bench.executor.requests.clear()
    bench.finalize()
    assert not bench.prefill(audio=SECOND).success
    assert bench.generate().is_listen
    assert bench.executor.of_kind(LlmForward) == []
    assert bench.session.kv.capacity == 0
