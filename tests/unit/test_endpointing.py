"""When speech starts and ends, on a clock that counts samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.endpointing import (
    Endpointer,
    EndpointOptions,
    SpeechDiscarded,
    SpeechEnded,
    SpeechEvent,
    SpeechStarted,
)
from core.schemas.half_duplex import VadConfig

WINDOW = 1_024
PAD = 480  # 30 ms
SILENCE_WINDOWS = 13  # the first whole number of windows that is at least 800 ms

SPEECH, UNSURE, SILENCE = 0.95, 0.7, 0.1

probability_lists = st.lists(
    st.one_of(st.sampled_from([SPEECH, UNSURE, SILENCE, 0.8, 0.65]), st.floats(0, 1)), max_size=120
)
option_sets = st.builds(
    EndpointOptions,
    threshold=st.floats(0.05, 0.99),
    min_speech_duration_ms=st.integers(0, 1_000),
    min_silence_duration_ms=st.integers(0, 2_000),
    speech_pad_ms=st.integers(0, 3_000),
    window_samples=st.sampled_from([512, 1_024, 1_536]),
    max_speech_duration_s=st.one_of(st.just(300.0), st.floats(0.1, 5)),
)


def run(probabilities: list[float], options: EndpointOptions | None = None) -> list[SpeechEvent]:
    return Endpointer(options or EndpointOptions()).feed(probabilities)


def test_silence_says_nothing() -> None:
    assert run([SILENCE, UNSURE, 0.79] * 50) == []


def test_a_segment_has_pre_roll_and_its_trailing_silence_is_cut_to_the_pad() -> None:
    events = run([SILENCE] * 3 + [SPEECH] * 5 + [SILENCE] * SILENCE_WINDOWS)
    start, stop = 3 * WINDOW - PAD, 8 * WINDOW + PAD
    assert events == [SpeechStarted(start), SpeechEnded(start, stop, 5 * WINDOW)]


def test_the_start_is_told_at_once() -> None:
    endpointer = Endpointer(EndpointOptions())
    assert endpointer.feed([0.8]) == [SpeechStarted(0)]
    assert endpointer.is_speaking


def test_silence_must_last() -> None:
    almost = [SPEECH] * 5 + [SILENCE] * (SILENCE_WINDOWS - 1)
    assert run(almost) == [SpeechStarted(0)]
    assert run(almost + [SPEECH] + [SILENCE] * (SILENCE_WINDOWS - 1)) == [SpeechStarted(0)]


def test_between_the_thresholds_speech_goes_on_but_does_not_start() -> None:
    assert run([UNSURE] * 20) == []
    pause = [SILENCE] * (SILENCE_WINDOWS - 1)
    assert run([SPEECH, *pause, UNSURE, *pause, UNSURE, *pause]) == [SpeechStarted(0)]


def test_a_short_burst_is_discarded() -> None:
    events = run([SILENCE] * 2 + [SPEECH] + [SILENCE] * SILENCE_WINDOWS)
    start = 2 * WINDOW - PAD
    assert events == [SpeechStarted(start), SpeechDiscarded(start, 3 * WINDOW + PAD)]


def test_trailing_silence_does_not_count_as_speech() -> None:
    options = EndpointOptions(min_speech_duration_ms=500)
    events = run([SPEECH] * 2 + [SILENCE] * SILENCE_WINDOWS, options)
    assert isinstance(events[-1], SpeechDiscarded)


def test_the_shortest_speech_is_accepted() -> None:
    events = run([SPEECH] * 2 + [SILENCE] * SILENCE_WINDOWS)  # exactly 128 ms
    assert events[-1] == SpeechEnded(0, 2 * WINDOW + PAD, 2 * WINDOW)


def test_padding_stops_at_the_neighbour_and_at_the_clock() -> None:
    options = EndpointOptions(min_silence_duration_ms=64, speech_pad_ms=10_000)
    events = run([SPEECH, SPEECH, SILENCE, SPEECH, SPEECH, SILENCE], options)
    assert events == [
        SpeechStarted(0),
        SpeechEnded(0, 3 * WINDOW, 2 * WINDOW),
        SpeechStarted(3 * WINDOW),
        SpeechEnded(3 * WINDOW, 6 * WINDOW, 2 * WINDOW),
    ]


def test_flush_ends_what_goes_on() -> None:
    endpointer = Endpointer(EndpointOptions())
    endpointer.feed([SPEECH] * 4 + [SILENCE] * 2)
    assert endpointer.flush() == [SpeechEnded(0, 4 * WINDOW + PAD, 4 * WINDOW)]
    assert not endpointer.is_speaking
    assert endpointer.flush() == []


def test_endless_speech_is_cut_and_goes_on() -> None:
    options = EndpointOptions(max_speech_duration_s=0.256)  # 4 windows
    events = run([SPEECH] * 10, options)
    assert events == [
        SpeechStarted(0),
        SpeechEnded(0, 4 * WINDOW, 4 * WINDOW),
        SpeechStarted(4 * WINDOW),
        SpeechEnded(4 * WINDOW, 8 * WINDOW, 4 * WINDOW),
        SpeechStarted(8 * WINDOW),
    ]


def test_a_very_low_threshold_can_be_left() -> None:
    options = EndpointOptions(threshold=0.05)
    assert isinstance(run([0.06] * 3 + [0.0] * SILENCE_WINDOWS, options)[-1], SpeechEnded)


def test_the_clients_settings_are_taken_over() -> None:
    config = VadConfig(threshold=0.5, min_speech_duration_ms=1, speech_pad_ms=2)
    options = EndpointOptions(**dict(config), max_speech_duration_s=9)
    assert dict(options) == {**dict(config), "window_samples": WINDOW, "max_speech_duration_s": 9}


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 0.0},
        {"threshold": 1.1},
        {"window_samples": 0},
        {"speech_pad_ms": -1},
        {"max_speech_duration_s": 0.0},
    ],
)
def test_senseless_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises((ValueError, AssertionError)):
        Endpointer(EndpointOptions(**wrong))  # type: ignore[arg-type]


@given(probability_lists, option_sets, st.lists(st.integers(0, 30), max_size=40))
def test_any_chunking_gives_the_same_events(
    probabilities: list[float], options: EndpointOptions, sizes: list[int]
) -> None:
    whole = Endpointer(options)
    expected = whole.feed(probabilities) + whole.flush()
    pieces, at = Endpointer(options), 0
    events: list[SpeechEvent] = []
    for size in sizes:
        events += pieces.feed(probabilities[at : at + size])
        at += size
    events += pieces.feed(probabilities[at:]) + pieces.flush()
    assert events == expected


@given(probability_lists, option_sets)
def test_segments_never_overlap_and_starts_match_ends(
    probabilities: list[float], options: EndpointOptions
) -> None:
    endpointer = Endpointer(options)
    free_from, started = 0, None
    for probability in probabilities:
        needed = endpointer.needed_from_samples
        for event in endpointer.feed([probability]):
            assert event.start_samples >= needed
            if isinstance(event, SpeechStarted):
                assert started is None
                assert event.start_samples >= free_from
                started = event.start_samples
                continue
            assert event.start_samples == started
            assert started <= event.stop_samples <= endpointer.clock_samples
            started = None
            if isinstance(event, SpeechEnded):
                free_from = event.stop_samples
        assert endpointer.is_speaking == (started is not None)
