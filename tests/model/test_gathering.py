"""Who is answered in a round: everybody while few are there, then whoever waited or has company."""

from __future__ import annotations

from core.processors.gathering import COMPANY_MIN, ENOUGH, LONGEST_WAIT_S, Asking, chosen
from MiniCPMO45.steps import DrawCodes, EncodeStream, LlmForward, Vocode

DECODING = [Asking(LlmForward, 0.0, 1.0) for _ in range(30)]


def test_few_never_wait() -> None:
    asking = [Asking(kind, 0.0, 1.0) for kind in (Vocode, EncodeStream, DrawCodes, LlmForward)]
    assert len(asking) == COMPANY_MIN
    assert sorted(chosen(asking, 0.0)) == [0, 1, 2, 3]


def test_among_many_a_stage_waits_for_company_and_decoding_goes_on() -> None:
    asking = [Asking(Vocode, 0.0, 1.0), *DECODING]
    assert sorted(chosen(asking, 0.01)) == list(range(1, 31))


def test_enough_company_is_not_waited_with() -> None:
    asking = [*(Asking(Vocode, 0.0, 1.0) for _ in range(ENOUGH[Vocode])), *DECODING]
    assert len(chosen(asking, 0.01)) == len(asking)


def test_nobody_waits_long_and_company_goes_along() -> None:
    asking = [Asking(Vocode, 0.0, 1.0), Asking(Vocode, LONGEST_WAIT_S, 2.0), *DECODING]
    assert set(chosen(asking, LONGEST_WAIT_S)) >= {0, 1}


def test_the_device_never_idles_and_who_is_due_first_goes_first() -> None:
    asking = [Asking(Vocode, 0.0, due_s) for due_s in (5.0, 4.0, 3.0)]
    asking += [Asking(DrawCodes, 0.0, due_s) for due_s in (2.0, 6.0)]
    assert chosen(asking, 0.001) == [3, 4], "one kind goes, the other gathers on"


def test_who_is_due_first_stands_in_front_and_unhurried_work_grows_old() -> None:
    asking = [
        Asking(LlmForward, 9.0, due_s=10.0),
        Asking(LlmForward, 9.0),
        Asking(LlmForward, 1.0),
        Asking(LlmForward, 9.0, due_s=9.5),
    ]
    assert chosen(asking, 9.0) == [2, 3, 0, 1]
