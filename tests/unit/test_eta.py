"""How long requests take and how long places wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.schemas.queue import RequestType
from gateway_modules.queue.estimates import (
    OVERRUN_FLOOR_S,
    EtaConfig,
    EtaTracker,
    Forecast,
    remaining_s,
)

CONFIG = EtaConfig(
    eta_chat_s=10,
    eta_streaming_s=11,
    eta_half_duplex_s=12,
    eta_audio_duplex_s=13,
    eta_omni_duplex_s=14,
    eta_duplex_s=15,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat", 10),
        ("chat_ws", 10),
        ("streaming", 11),
        ("half_duplex_audio", 12),
        ("half_duplex", 12),
        ("audio_duplex", 13),
        ("omni_duplex", 14),
        ("duplex", 15),
    ],
)
def test_settings_apply_until_there_are_measurements(name: str, expected: float) -> None:
    assert EtaTracker(CONFIG).get_eta(name) == expected


def test_defaults() -> None:
    tracker = EtaTracker()
    found = {name: tracker.get_eta(name) for name in RequestType}
    assert found == {
        "chat": 15,
        "streaming": 20,
        "half_duplex_audio": 180,
        "audio_duplex": 120,
        "omni_duplex": 90,
        "duplex": 90,
    }


def test_a_lone_half_duplex_value_counts_for_streaming_too() -> None:
    tracker = EtaTracker(EtaConfig(eta_chat_s=5, eta_half_duplex_s=33))
    assert tracker.get_eta("streaming") == 33
    tracker.update_config(EtaConfig(eta_half_duplex_s=44))
    assert tracker.get_eta("streaming") == 44


def test_an_explicit_streaming_value_outlives_a_patch() -> None:
    tracker = EtaTracker(CONFIG)
    tracker.update_config(EtaConfig(eta_half_duplex_s=44))
    assert tracker.get_eta("streaming") == 11
    assert tracker.get_eta("half_duplex") == 44


def test_the_first_duration_sets_the_average_and_later_ones_move_it() -> None:
    tracker = EtaTracker(CONFIG.model_copy(update={"ema_alpha": 0.25}))
    tracker.record_duration("chat", 4.0)
    assert tracker.get_status().ema_chat_s == 4.0
    tracker.record_duration("chat", 8.0)
    assert tracker.get_status().ema_chat_s == pytest.approx(5.0)
    assert tracker.get_status().ema_chat_samples == 2


def test_measurements_apply_from_the_third_duration() -> None:
    tracker = EtaTracker(CONFIG)
    for _ in range(2):
        tracker.record_duration("chat", 5.0)
        assert tracker.get_eta("chat") == 10.0
    tracker.record_duration("chat_ws", 5.0)
    assert tracker.get_eta("chat") == pytest.approx(5.0)
    assert tracker.get_eta("streaming") == 11.0


def test_invalid_durations_are_ignored() -> None:
    tracker = EtaTracker(CONFIG)
    for duration_s in (0.0, -1.0, float("nan"), float("inf")):
        tracker.record_duration("chat", duration_s)
    status = tracker.get_status()
    assert (status.ema_chat_s, status.ema_chat_samples) == (None, 0)


def test_a_patch_changes_only_its_fields() -> None:
    tracker = EtaTracker(CONFIG.model_copy(update={"ema_alpha": 0.5}))
    tracker.record_duration("chat", 5.0)
    tracker.update_config(EtaConfig(eta_chat_s=99))
    status = tracker.get_status()
    assert status.config.eta_chat_s == 99
    assert status.config.eta_omni_duplex_s == 14
    assert (status.ema_alpha, status.ema_chat_s) == (0.5, 5.0)
    tracker.update_config(EtaConfig(ema_alpha=0.1))
    assert tracker.get_status().ema_alpha == 0.1
    assert tracker.get_eta("chat") == 99


def test_unspecified_duplex_counts_as_omni_unless_set() -> None:
    tracker = EtaTracker(CONFIG)
    tracker.update_config(EtaConfig(eta_duplex_s=None))
    assert tracker.get_eta("duplex") == 14


def test_status_names_every_type() -> None:
    tracker = EtaTracker(CONFIG)
    names = ["chat", "streaming", "half_duplex", "audio_duplex", "omni_duplex"]
    for number, name in enumerate(names, start=1):
        tracker.record_duration(name, float(number))
    told = tracker.get_status().model_dump()
    assert [told[f"ema_{name}_s"] for name in names] == [1, 2, 3, 4, 5]
    assert [told[f"ema_{name}_samples"] for name in names] == [1] * 5


@pytest.mark.parametrize(
    "field", ["eta_chat_s", "eta_streaming_s", "eta_duplex_s", "ema_alpha", "eta_omni_duplex_s"]
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_settings_must_be_positive(field: str, value: float) -> None:
    with pytest.raises(ValidationError):
        EtaConfig.model_validate({field: value})


def test_alpha_is_at_most_one() -> None:
    with pytest.raises(ValidationError):
        EtaConfig(ema_alpha=1.01)


def test_an_overrun_task_has_a_minimum_remaining_time() -> None:
    assert remaining_s(15.0, 5.0) == 10.0
    assert remaining_s(15.0, 14.9) == pytest.approx(0.1)
    assert remaining_s(15.0, 15.0) == OVERRUN_FLOOR_S
    assert remaining_s(15.0, 99.0) == OVERRUN_FLOOR_S


def waits_of(running_s: list[float], waiting_s: list[float]) -> list[float]:
    forecast = Forecast(running_s)
    return [forecast.add(duration_s) for duration_s in waiting_s]


def test_two_workers_and_three_waiting() -> None:
    assert waits_of([15.0, 10.0], [20.0, 20.0, 20.0]) == [10.0, 15.0, 30.0]


def test_without_an_occupied_slot_the_estimate_is_zero() -> None:
    assert waits_of([], [20.0, 20.0]) == [0.0, 0.0]


def test_estimates_are_rounded_to_a_tenth() -> None:
    assert waits_of([1.26], [1.0]) == [1.3]


seconds = st.floats(0.1, 1000)


@given(st.lists(seconds, min_size=1, max_size=5), st.lists(seconds, max_size=20))
def test_waits_never_shrink_along_the_queue(running: list[float], waiting: list[float]) -> None:
    waits = waits_of(running, waiting)
    assert len(waits) == len(waiting)
    assert waits == sorted(waits)
    assert waits[:1] == [round(min(running), 1)][: len(waits)]
