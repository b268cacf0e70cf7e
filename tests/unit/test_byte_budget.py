"""Bytes and sockets of clients that are held at once."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from core.errors import RateLimitedError
from gateway_modules.web.limits import Budget


def test_held_bytes_are_limited_in_total_and_per_client() -> None:
    budget = Budget(100, 40)
    mine, also_mine, others, nobodys = map(budget.lease, ("a", "a", "b", ""))
    mine.add(30)
    with pytest.raises(RateLimitedError):
        also_mine.add(11)
    also_mine.add(10)
    others.add(10)
    with pytest.raises(RateLimitedError):
        nobodys.add(51)
    nobodys.add(50)
    assert budget.held == 100
    for lease in (mine, mine, also_mine, others, nobodys):
        lease.release()
    assert budget.held == 0


def test_what_a_lease_reserves_is_never_refused() -> None:
    budget = Budget(100, 40)
    neighbour, anybody = budget.lease("a"), budget.lease("")
    neighbour.add(40)
    anybody.add(60)
    call = budget.lease("a", reserved=10)
    for _ in range(3):
        call.add(10)
        with pytest.raises(RateLimitedError):
            call.add(1)
        assert budget.held == 110
        call.release()
    assert budget.held == 100
    anybody.release()
    with pytest.raises(RateLimitedError):
        call.add(11)


def test_sockets_are_limited_in_total_and_per_client() -> None:
    budget = Budget(4, 2, ("all", "one"))
    with ExitStack() as stack:
        for client in ("1.1.1.1", "1.1.1.1", ""):
            stack.enter_context(budget.lease(client)).add(1)
        with pytest.raises(RateLimitedError, match="one"):
            stack.enter_context(budget.lease("1.1.1.1")).add(1)
        stack.enter_context(budget.lease("")).add(1)
        with pytest.raises(RateLimitedError, match="all"):
            stack.enter_context(budget.lease("2.2.2.2")).add(1)
    assert budget.held == 0 and not budget.by_client
