"""What the load and latency programs make of their measurements."""

from __future__ import annotations

import json

import pytest
import typer

from benchmarks.paced_client import Session
from benchmarks.relay import DIRECT, GATEWAY, GATEWAY_TLS, TCP_RELAY, Measured, chunk_of
from benchmarks.session_load import Load, judge_load
from benchmarks.sessions import Options, judge_churn, plan_of
from benchmarks.stand_in_worker import result_of
from benchmarks.summary import BYTES_PER_MIB, Verdict
from core.schemas.limits import SLOTS_MAX

LOAD = Load(sessions=2, units=3)


def passed(verdicts: list[Verdict]) -> dict[str, bool]:
    return {verdict.name: verdict.passed for verdict in verdicts}


def measured(gateway_ms: float, cpu_ms: float) -> Measured:
    units_ms = {DIRECT: [0.2] * 3, TCP_RELAY: [0.3] * 3, GATEWAY: [0.2, gateway_ms, 9.0]}
    return Measured(units_ms, {GATEWAY: cpu_ms, GATEWAY_TLS: 0.25 + cpu_ms, TCP_RELAY: 0.25})


def test_the_gateway_is_judged_by_what_the_bare_relay_of_the_same_run_costs() -> None:
    names = ("added median", "CPU", "CPU with TLS to the worker")
    assert passed(measured(0.319, 0.299).verdicts()) == dict.fromkeys(names, True)
    assert passed(measured(0.321, 0.301).verdicts()) == dict.fromkeys(names, False)
    assert measured(0.3, 0.3).added_ms(TCP_RELAY) == pytest.approx(0.1)


def test_messages_are_as_long_as_asked_for() -> None:
    for text, kind in ((chunk_of(5_000), "audio_chunk"), (result_of(7_000), "result")):
        assert len(text) == (5_000 if kind == "audio_chunk" else 7_000)
        assert json.loads(text)["type"] == kind


def test_a_unit_is_late_after_a_second_and_none_may_be_missing() -> None:
    good = [Session([0.1, 0.2, 1.0]), Session([0.1, 0.2, 0.3])]
    assert passed(judge_load(good, LOAD)) == dict.fromkeys(
        ("sessions", "late units", "warnings"), True
    )
    late = [Session([0.1, 0.2, 1.01]), Session([0.1, 0.2, 0.3])]
    assert not passed(judge_load(late, LOAD))["late units"]
    short = [Session([0.1, 0.2]), Session([0.1, 0.2, 0.3], problem="lost")]
    verdicts = passed(judge_load(short, LOAD))
    assert not verdicts["late units"] and not verdicts["sessions"]
    refused = [Session([0.1, 0.2, 0.3]), Session(problem="no place")]
    verdicts = passed(judge_load(refused, LOAD))
    assert verdicts["late units"] and not verdicts["sessions"]
    warned = [Session([0.1] * 3, warnings=["late_chunk"]), Session([0.1] * 3)]
    assert not passed(judge_load(warned, LOAD))["warnings"]


def test_memory_that_rises_in_the_second_half_is_a_leak() -> None:
    flat = [{"gateway": (80 + min(i, 3)) * BYTES_PER_MIB} for i in range(10)]
    rising = [{"gateway": (80 + i) * BYTES_PER_MIB} for i in range(10)]
    assert passed(judge_churn(flat)) == {"memory of gateway": True}
    assert passed(judge_churn(rising)) == {"memory of gateway": False}


def test_one_sample_of_memory_is_not_judged() -> None:
    assert judge_churn([{"gateway": 80 * BYTES_PER_MIB}]) == []


def test_sessions_are_spread_over_the_workers() -> None:
    options = Options((Load(200, 1),), workers=4)
    assert plan_of(options).config["service"]["worker_slots"] == 50
    with pytest.raises(typer.BadParameter):
        plan_of(Options((Load(SLOTS_MAX + 1, 1),)))
