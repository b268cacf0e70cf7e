"""Speech of duplex units, scripted and with the toy model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engine.passes import run_alone, run_together
from MiniCPMO45.configuration_minicpmo import TTSConfig
from MiniCPMO45.engine.kv_cache import KvHandle, KvStore
from MiniCPMO45.engine.policies import (
    CodeRule,
    keep_top_k,
    keep_top_p_ascending,
    penalise_frequency,
)
from MiniCPMO45.engine.session import Session, UnitDraft
from MiniCPMO45.engine.steps import DrawCodes, Steps, Vocode
from MiniCPMO45.modes.speech import CodeRun, Stopwatch, condition, speak_unit, speak_whole
from MiniCPMO45.settings import GREEDY, DuplexSettings, SpeechSampling
from tests.fakes.decoders import decoder_shape
from tests.fakes.scripted import (
    CODE_COUNT,
    CODE_EOS,
    HIDDEN_SIZE,
    TONE_LEVEL,
    ScriptedExecutor,
    ToneVoice,
    cached_angles,
    cached_labels,
    one_hot,
    spoken,
)
from tests.model.toy import Toy

CONFIG = TTSConfig(audio_bos_token_id=900, text_eos_token_id=901)
RULE = CodeRule(temperature=0.8, repetition_penalty=1.05, is_greedy=True)
SHAPE = decoder_shape(positions=4_096)
SECOND = 24_000
PER_CODE = 960
LEAD_IN = 3_840  # zeros before the first sample of a turn
SILENCE = [4218, 4218, 4218]


class Bench:
    """A scripted conversation with speech."""

    def __init__(self, speech_limit: int = 4096) -> None:
        self.executor = ScriptedExecutor(1, speech_limit=speech_limit)
        self.session: Session = self.executor.open_session()
        self.voice = ToneVoice()
        self.session.speech.vocoder = self.voice
        self.session.settings = DuplexSettings(decode_mode=GREEDY)

    def speak(
        self, n_text: int = 3, *, n_codes: int | None = None, is_turn_end: bool = False
    ) -> tuple[np.ndarray, int]:
        """Speak one unit; `n_codes` then the end, or as many as are wanted.

        Returns its samples, and the number of codes.
        """
        if n_codes is not None:
            self.executor.codes = [*range(10, 10 + n_codes), CODE_EOS]
        hidden = list(torch.ones(n_text, 1, HIDDEN_SIZE))
        draft = UnitDraft([*range(300, 300 + n_text)], hidden, end_of_turn=is_turn_end)
        spoken_unit = run_alone(speak(self.session, draft), self.executor)
        self.executor.codes = []
        return spoken_unit

    @property
    def cached(self) -> list[int]:
        return cached_labels(self.session.speech.kv)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def speak(
    session: Session, draft: UnitDraft, config: TTSConfig = CONFIG
) -> Steps[tuple[np.ndarray, int]]:
    """Speak a unit; return its samples, none if nothing is due, and the number of codes."""
    eos = config.speech_eos_id
    sound, n_codes = yield from speak_unit(session, draft, config, Stopwatch(), eos=eos)
    if sound is None:
        return np.zeros(0, np.float32), n_codes
    assert len(sound.waveform) == sound.n_samples
    return sound.waveform, n_codes


def test_a_condition_is_text_then_audio_begin(bench: Bench) -> None:
    hidden = torch.zeros(2, 4)
    rows = condition([5, 6], hidden, CONFIG, is_text_end=False)
    assert (rows.ids, rows.vectors) == ((5, 6, 900), ((0, hidden),))
    assert condition([5, 6], hidden, CONFIG, is_text_end=True).ids == (5, 6, 901, 900)
    only = condition([], None, CONFIG, is_text_end=False)
    assert (only.ids, only.vectors) == ((900,), ())


def test_an_inner_unit_gives_25_codes_and_one_second(bench: Bench) -> None:
    bench.speak()
    for _ in range(3):
        bench.executor.requests.clear()
        wave, n_codes = bench.speak()
        assert (len(wave), n_codes) == (SECOND, 25)
        [asked] = bench.executor.of_kind(DrawCodes)
        assert (asked.count, asked.least) == (26, 26), "the 26th code is thrown away"
        [call] = bench.executor.of_kind(Vocode)
        assert (len(call.codes), call.is_last) == (28, False)


def test_the_cache_holds_condition_and_codes_and_nothing_else(bench: Bench) -> None:
    """Its length is the position of the next row: conditions and codes of all units so far."""
    expected: list[int] = []
    for number, n_text in enumerate((3, 0, 2)):
        bench.speak(n_text)
        drawn = range(26 * number, 26 * number + 25)
        expected += [*range(300, 300 + n_text), 900, *drawn]
        assert bench.cached == expected
        assert bench.session.speech.kv.length == len(expected)


def test_each_code_but_the_last_is_fed_back(bench: Bench) -> None:
    """Inside a request and between requests alike."""
    for counts in ((26,), (5, 21), (1,) * 26):
        bench.session.reset_speech()
        bench.executor.requests.clear()
        bench.executor.codes = [*range(26)]
        run = _run(bench, 26)
        for count in counts:
            run_alone(run.draw(count), bench.executor)
        first, *others = bench.executor.of_kind(DrawCodes)
        assert spoken(first) == (300,)
        assert all(i >= CONFIG.num_text_tokens for each in others for i in each.rows.ids)
        assert bench.cached == [300, 900, *range(25)]
        assert run.codes == [*range(26)]


@pytest.mark.parametrize("n_codes", [0, 1, 4, 5, 24, 25])
def test_first_unit_of_a_turn_may_be_short_and_starts_with_silence(
    bench: Bench, n_codes: int
) -> None:
    wave, drawn = bench.speak(n_codes=n_codes)
    assert drawn == n_codes
    assert len(bench.cached) == 3 + 1 + n_codes
    if n_codes + 3 < 8:
        assert not len(wave)
        assert bench.session.speech.buffer.waiting == [*SILENCE, *range(10, 10 + n_codes)]
        return
    assert len(wave) == SECOND
    sounding = n_codes * PER_CODE
    assert not wave[: SECOND - sounding].any()
    np.testing.assert_allclose(wave[SECOND - sounding :], TONE_LEVEL, atol=1e-4)
    assert len(bench.session.speech.buffer.waiting) == 3


def test_speech_may_not_end_inside_a_turn(bench: Bench) -> None:
    """The end is masked, so the next likeliest code is drawn."""
    bench.speak()
    likely_end = one_hot(CODE_EOS, CODE_COUNT)
    likely_end[77] = 1.0
    bench.executor.codes = [likely_end] * 26
    assert bench.speak()[1] == 25
    assert bench.cached[-25:] == [77] * 25


@pytest.mark.parametrize("n_codes", [0, 3, 25])
def test_last_unit_flushes_and_resets(bench: Bench, n_codes: int) -> None:
    bench.speak(n_codes=20)
    waiting = 3
    wave, drawn = bench.speak(n_codes=n_codes, is_turn_end=True)
    assert drawn == n_codes
    assert len(wave) == (waiting + n_codes) * PER_CODE + LEAD_IN
    assert bench.executor.of_kind(Vocode)[-1].is_last
    assert bench.voice.resets == 1
    session = bench.session
    assert (session.speech.kv.length, session.speech.buffer.waiting) == (0, SILENCE)


@given(
    first=st.integers(0, 25), inner=st.integers(0, 4), last=st.integers(0, 25), only=st.booleans()
)
def test_every_code_of_a_turn_is_vocoded_once(
    first: int, inner: int, last: int, only: bool
) -> None:
    """Those of all its units and the three codes of silence before them."""
    bench = Bench()
    if not only:
        bench.speak(n_codes=first)
        for _ in range(inner):
            bench.speak()
    bench.speak(n_codes=last, is_turn_end=True)
    calls = bench.executor.of_kind(Vocode)
    consumed = sum(len(each.codes) - (0 if each.is_last else 3) for each in calls)
    assert consumed == 3 + last + (0 if only else first + 25 * inner)
    assert [each.is_last for each in calls] == [False] * (len(calls) - 1) + [True]
    assert all(len(each.codes) <= 28 for each in calls)


def test_penalty_covers_the_codes_of_the_unit_only(bench: Bench) -> None:
    """Two codes nearly tie; the one drawn before in this unit loses, one of an earlier unit not."""
    near_tie = torch.zeros(CODE_COUNT)
    near_tie[5], near_tie[6] = 1.0, 0.99
    bench.executor.codes = [near_tie.clone() for _ in range(26)]
    bench.speak()
    first_unit = bench.cached[4:]
    bench.executor.codes = [near_tie.clone() for _ in range(26)]
    bench.speak()
    assert first_unit[:2] == [5, 6]
    assert bench.cached[len(first_unit) + 8 :] == first_unit


def test_long_turn_evicts_its_oldest_codes(bench: Bench) -> None:
    """The speech decoder knows 4096 positions, two minutes of speech in one turn."""
    limit = 100
    unlimited, limited = Bench(), Bench(limit)
    for _ in range(20):
        wave, n_codes = limited.speak()
        unlimited.speak()
        assert (n_codes, len(wave)) == (25, SECOND)
        kept = limited.cached
        assert limit // 2 <= len(kept) <= limit or kept == unlimited.cached
        assert kept == unlimited.cached[-len(kept) :]
        off = cached_angles(limited.session.speech.kv) - torch.arange(len(kept))
        off = (off + torch.pi).remainder(2 * torch.pi) - torch.pi
        torch.testing.assert_close(off, torch.zeros(len(kept)), atol=1e-3, rtol=0)


def test_long_turns_share_the_speech_cache_of_a_card(bench: Bench) -> None:
    """Together they would need more than its 1,024 rows."""
    executor = bench.executor
    executor.tts_store = KvStore(SHAPE, device=torch.device("cpu"), dtype=torch.float32, pages=16)
    sessions = [executor.open_session(str(number)) for number in range(3)]
    for session in sessions:
        session.speech.vocoder = ToneVoice()
        session.settings = DuplexSettings(decode_mode=GREEDY)
    for _ in range(20):
        drafts = [UnitDraft([300], [torch.ones(1, HIDDEN_SIZE)]) for _ in sessions]
        units = run_together(executor, list(map(speak, sessions, drafts)))
        assert [(len(wave), n_codes) for wave, n_codes in units] == [(SECOND, 25)] * 3


def test_a_whole_reply_keeps_its_text_when_the_speech_cache_is_short(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[tuple[int, ...]] = []
    monkeypatch.setattr(KvHandle, "drop", lambda _, *rows: dropped.append(rows))
    store = KvStore(SHAPE, device=torch.device("cpu"), dtype=torch.float32, pages=16)
    other, bench.session.speech.kv = store.open(), store.open()
    other.reserve(500)
    bench.executor.codes = [*range(450), CODE_EOS]
    sampling = SpeechSampling(is_greedy=True)
    whole = speak_whole(bench.session, [300], torch.ones(1, HIDDEN_SIZE), CONFIG, sampling)
    assert len(run_alone(whole, bench.executor)) >= 450 * PER_CODE
    assert not dropped


@pytest.mark.parametrize(("n_text", "n_spoken"), [(32, 32), (33, 32), (100, 32)])
def test_a_reply_longer_than_the_decoders_context_is_spoken_from_its_beginning(
    n_text: int, n_spoken: int
) -> None:
    bench = Bench(speech_limit=64)
    bench.executor.codes = [*range(20), CODE_EOS]
    ids, hidden = range(300, 300 + n_text), torch.ones(n_text, HIDDEN_SIZE)
    sampling = SpeechSampling(is_greedy=True, min_codes_per_reply=0)
    wave = run_alone(speak_whole(bench.session, ids, hidden, CONFIG, sampling), bench.executor)
    assert len(wave) == 20 * PER_CODE
    assert spoken(bench.executor.of_kind(DrawCodes)[0]) == tuple(ids[:n_spoken])


def _run(bench: Bench, most: int, least: int = 0, history: list[int] | None = None) -> CodeRun:
    rows = condition([300], torch.ones(1, HIDDEN_SIZE), CONFIG, is_text_end=False)
    given = bench.session, rows, RULE, CODE_EOS, CONFIG.num_text_tokens
    return CodeRun(*given, most, least, history or [])


def test_a_run_ends_at_its_budget(bench: Bench) -> None:
    run = _run(bench, 7)
    assert run_alone(run.finish(), bench.executor) == list(range(7))
    assert not run.has_ended
    assert bench.cached == [300, 900, *range(6)], "the last code is not fed"


def test_a_run_ends_when_the_model_ends_it(bench: Bench) -> None:
    bench.executor.codes = [8, 9, CODE_EOS]
    run = _run(bench, 7)
    assert run_alone(run.finish(), bench.executor) == [8, 9]
    assert run.has_ended
    assert run_alone(run.draw(1), bench.executor) == (), "and stays ended"


def test_history_includes_the_codes_of_the_run(bench: Bench) -> None:
    history = [1, 2]
    run = _run(bench, 2, history=history)
    bench.executor.codes = [8, 9]
    assert run_alone(run.finish(), bench.executor) == [8, 9]
    assert history == [1, 2, 8, 9]


def test_a_stop_ends_a_run_before_the_next_request(bench: Bench) -> None:
    run = _run(bench, 26, 26)
    assert run_alone(run.draw(1), bench.executor) == (0,)
    bench.session.stop.set()
    assert run_alone(run.finish(), bench.executor) == [0]
    assert len(bench.executor.of_kind(DrawCodes)) == 1


def test_long_run_is_requested_second_by_second(bench: Bench) -> None:
    """So that a stop never waits for hundreds of codes."""
    run = _run(bench, 100, 60)
    run_alone(run.finish(), bench.executor)
    asked = bench.executor.of_kind(DrawCodes)
    assert [each.count for each in asked] == [26, 26, 26, 22]
    assert [each.least for each in asked] == [60, 34, 8, 0]
    assert run.codes == [*range(100)]


def test_run_is_limited_by_the_decoders_context() -> None:
    bench = Bench(speech_limit=10)
    run = _run(bench, 12)
    assert run_alone(run.draw(12), bench.executor) == tuple(range(12))
    assert [each.count for each in bench.executor.of_kind(DrawCodes)] == [9, 3]
    assert bench.cached[-2:] == [9, 10]


def test_codes_follow_the_order_of_the_rules() -> None:
    """Temperature, penalty, nucleus, top-k, then the end is masked."""
    generator = torch.Generator().manual_seed(0)
    history = [3, 3, 4]
    rule = CodeRule(temperature=0.5, repetition_penalty=1.3, top_p=0.9, top_k=5)
    for seed in range(20):
        logits = torch.randn(12, generator=torch.Generator().manual_seed(seed)) * 3
        expected = penalise_frequency(logits / 0.5, history, 1.3)
        expected = keep_top_k(keep_top_p_ascending(expected, 0.9), 5)
        expected[11] = -torch.inf
        state = generator.get_state()
        code = rule.choose(logits, history, 11, generator, may_end=False)
        generator.set_state(state)
        assert code == int(torch.multinomial(expected.softmax(-1), 1, generator=generator))


def test_the_first_code_is_filtered() -> None:
    logits = torch.tensor([2.0, 1.9, 1.8, 1.7, 1.6])
    generator = torch.Generator().manual_seed(0)
    rule = CodeRule(1.0, 1.0, top_p=0.01, top_k=1)
    drawn = {rule.choose(logits, [], 4, generator, may_end=True) for _ in range(60)}
    assert drawn == {0, 1, 2}, "a filter leaves at least three"


def test_the_toy_model_speaks_whole_seconds_inside_a_turn(toy: Toy) -> None:
    executor = toy.executor()
    session = executor.open_session("speech", seed=3)
    session.speech.vocoder = toy.open_voice(session.sampler.generator)
    config = toy.config.tts_config
    generator = torch.Generator().manual_seed(1)
    position = 0
    for number in range(4):
        hidden = torch.randn(3, toy.config.hidden_size, generator=generator)
        draft = UnitDraft([300, 301, 302], list(hidden.split(1)))
        wave, n_codes = run_alone(speak(session, draft, config), executor)
        position += 3 + 1 + n_codes
        assert session.speech.kv.length == position
        if number:
            assert (len(wave), n_codes) == (SECOND, 25)
            assert np.abs(wave).max() > 0.01
    waiting = len(session.speech.buffer.waiting)
    wave, n_codes = run_alone(speak(session, UnitDraft(end_of_turn=True), config), executor)
    assert len(wave) == (waiting + n_codes) * PER_CODE + LEAD_IN
    assert session.speech.kv.length == 0


def test_laps_add_up_by_stage_and_the_total_is_all_time() -> None:
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    for stage, seconds in (("llm", 2.0), ("tts", 3.0), ("llm", 4.0)):
        now[0] += seconds
        watch.lap(stage)
    now[0] += 5.0
    assert (watch.seconds["llm"], watch.seconds["tts"], watch.seconds["never"]) == (6.0, 3.0, 0.0)
    assert watch.total() == 14.0
