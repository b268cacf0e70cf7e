"""Early audio: both parts of a unit together are its whole audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.session import UnitDraft
from MiniCPMO45.engine.steps import DrawCodes, Request, Vocode
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.modes.speech import UnitSound
from MiniCPMO45.settings import GREEDY, DuplexSettings
from MiniCPMO45.token2wav.vocoder import finish_unit
from tests.fakes.batching import at_once, collect, stream_alone
from tests.fakes.scripted import CODE_EOS, HIDDEN_SIZE, ScriptedExecutor, ToneVoice, cached_labels
from tests.model.scripted_duplex import SETTINGS, Bench
from tests.model.test_speech import PER_CODE, SECOND, SILENCE, speak
from tests.model.toy import Toy, UnitInput, prepare, run_unit, speech

EARLY = 5  # codes of the first part; with the look-ahead the eight of the vocoder's smallest call
EARLY_SETTINGS = DuplexSettings(early_audio=True, decode_mode=GREEDY)


class Speaker:
    """A scripted conversation with speech, with or without early audio."""

    def __init__(self, is_early: bool = True) -> None:
        self.executor = ScriptedExecutor(1)
        self.session = self.executor.open_session()
        self.session.speech.vocoder = ToneVoice()
        self.session.settings = DuplexSettings(early_audio=is_early, decode_mode=GREEDY)

    def speak(
        self, n_codes: int | None = None, *, is_turn_end: bool = False
    ) -> tuple[list[UnitSound], tuple[np.ndarray, int]]:
        """Speak one unit; `n_codes` then the end, or as many as are wanted.

        Returns the early parts; the other samples; and the number of codes.
        """
        if n_codes is not None:
            self.executor.codes = [*range(10, 10 + n_codes), CODE_EOS]
        self.executor.requests.clear()
        draft = UnitDraft([300], [torch.ones(1, HIDDEN_SIZE)], end_of_turn=is_turn_end)
        spoken = collect(speak(self.session, draft), self.executor)
        self.executor.codes = []
        return spoken

    @property
    def calls(self) -> list[int]:
        """Codes of each vocoder call of the last unit."""
        return [len(each.codes) for each in self.executor.of_kind(Vocode)]


def joined(parts: list[UnitSound], rest: np.ndarray) -> np.ndarray:
    return np.concatenate([*(part.waveform for part in parts), rest])


def test_early_audio_is_optional() -> None:
    speaker = Speaker(is_early=False)
    for _ in range(2):
        parts, _ = speaker.speak()
        assert parts == []
    assert not DuplexSettings().early_audio


def test_first_part_within_a_turn_has_five_codes() -> None:
    speaker = Speaker()
    speaker.speak()
    [part], (wave, n_codes) = speaker.speak()
    assert [type(each) for each in speaker.executor.requests] == [
        DrawCodes,
        Vocode,
        DrawCodes,
        Vocode,
    ]
    assert [each.count for each in speaker.executor.of_kind(DrawCodes)] == [EARLY, 26 - EARLY]
    assert speaker.calls == [8, 23]
    assert (len(part.waveform), len(wave)) == (4_800, 19_200)
    assert (n_codes, part.n_samples) == (25, 4_800)


def test_first_unit_draws_all_codes_before_its_early_part() -> None:
    speaker = Speaker()
    [part], (wave, _) = speaker.speak(20)
    assert [each.count for each in speaker.executor.of_kind(DrawCodes)] == [26]
    assert speaker.calls == [8, 18]
    assert len(wave) == (20 - EARLY) * PER_CODE
    assert len(part.waveform) == SECOND - len(wave)
    lead = 5 * PER_CODE
    assert not part.waveform[:lead].any()
    assert part.waveform[lead:].all()


def test_last_unit_has_an_early_part() -> None:
    for n_codes in (0, 3, 4):
        speaker = Speaker()
        speaker.speak()
        parts, _ = speaker.speak(n_codes, is_turn_end=True)
        assert parts == []
    for n_codes in (5, 6, 25):
        speaker = Speaker()
        speaker.speak()
        [part], (_, drawn) = speaker.speak(n_codes, is_turn_end=True)
        assert len(part.waveform) == EARLY * PER_CODE
        assert drawn == n_codes


@given(
    first=st.integers(0, 25), inner=st.integers(0, 3), last=st.integers(0, 25), only=st.booleans()
)
def test_early_audio_preserves_length_and_codes(
    first: int, inner: int, last: int, only: bool
) -> None:
    """The scripted voice is a tone, so that the samples are the same, too."""
    early, whole = Speaker(), Speaker(is_early=False)
    plan = [] if only else [(first, False), *[(None, False)] * inner]
    for n_codes, is_turn_end in [*plan, (last, True)]:
        parts, (wave, drawn) = early.speak(n_codes, is_turn_end=is_turn_end)
        _, (expected, drawn_at_once) = whole.speak(n_codes, is_turn_end=is_turn_end)
        sound = joined(parts, wave)
        assert all(part.n_samples == len(part.waveform) for part in parts)
        np.testing.assert_array_equal(sound, expected)
        assert drawn == drawn_at_once
        assert cached_labels(early.session.speech.kv) == cached_labels(whole.session.speech.kv)
        assert early.session.speech.buffer == whole.session.speech.buffer


def test_unit_with_pending_codes_is_not_split() -> None:
    """A first unit of four codes leaves seven waiting; its turn goes on a second at a time."""
    speaker = Speaker()
    speaker.speak(4)
    for _ in range(2):
        parts, (wave, _) = speaker.speak()
        assert parts == []
        assert len(wave) == SECOND


def test_a_stop_after_the_first_part_ends_the_unit() -> None:
    speaker = Speaker()
    speaker.speak()
    draft = UnitDraft([300], [torch.ones(1, HIDDEN_SIZE)])
    stream = stream_alone(speak(speaker.session, draft), speaker.executor)
    speaker.executor.requests.clear()
    next(stream)
    speaker.session.stop.set()
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert speaker.calls == [8]
    wave, n_codes = end.value.value
    assert (len(wave), n_codes) == (0, EARLY)


def test_both_parts_equal_the_vocoder_with_that_split(toy: Toy) -> None:
    executor, config = toy.executor(), toy.config.tts_config
    session = executor.open_session("early", seed=0)
    session.speech.vocoder, session.settings = toy.open_voice(), EARLY_SETTINGS
    other = toy.open_voice()
    waiting = list(SILENCE)
    for number in range(3):
        hidden = torch.randn(2, toy.config.hidden_size, generator=_generator(number))
        draft = UnitDraft([300, 301], list(hidden.split(1)))
        answers = _Listening(executor)
        [part], (rest, _) = collect(speak(session, draft, config), answers)
        codes = [code for each in answers.codes for code in each][:25]
        assert len(codes) == 25
        every = [*waiting, *codes]
        for sound, piece in ((part.waveform, every[:8]), (rest, every[5:])):
            [samples] = executor.submit([Vocode(other, tuple(piece), False)])()
            np.testing.assert_array_equal(sound, finish_unit(samples.numpy(), is_last=True))
        waiting = every[-3:]


class _Listening:
    """Records the codes, and excludes the end of speech."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.codes: list[tuple[int, ...]] = []

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        endless = [
            replace(each, least=each.count) if isinstance(each, DrawCodes) else each
            for each in requests
        ]
        answers = self.executor.submit(endless)()
        self.codes += [
            answer.codes
            for request, answer in zip(requests, answers, strict=True)
            if isinstance(request, DrawCodes)
        ]
        return answers


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_result_has_the_rest_and_the_length_of_the_early_part(toy: Toy) -> None:
    bench = Bench(toy, replace(SETTINGS, early_audio=True))
    tokens = bench.tokens
    for _ in range(2):
        bench.prefill(tokens.speak, bench.a, tokens.chunk_eos)
        parts, result = collect(bench.duplex.streaming_generate(bench.session), bench.executor)
        bench.finalize()
        [part] = parts
        assert isinstance(result, UnitResult)
        assert part.n_samples == len(part.waveform)
        assert len(joined(parts, result.audio_waveform)) == SECOND
        assert result.n_tts_tokens == 25


def test_text_does_not_depend_on_early_audio(toy: Toy) -> None:
    texts = []
    for is_early in (False, True):
        executor, duplex = toy.executor(), toy.duplex()
        session = executor.open_session("toy", seed=0)
        settings = DuplexSettings(decode_mode="greedy", force_listen_count=0, early_audio=is_early)
        run_alone(prepare(duplex, session, settings, toy.open_voice()), executor)
        lengths = []
        for number in range(4):
            unit = run_unit(duplex, session, UnitInput(speech(1.0, number)))
            parts, result = collect(unit, executor)
            lengths.append((result.text, len(joined(parts, result.audio_waveform))))
        texts.append(lengths)
    assert texts[0] == texts[1]
