"""Bytes of clients that are held at once."""

from __future__ import annotations

import pytest

from core.errors import RateLimitedError
from gateway_modules.web.limits import ByteBudget


def test_held_bytes_are_limited_in_total_and_per_client() -> None:
    budget = ByteBudget(total_bytes=100, per_client_bytes=40)
    mine, also_mine, others, nobodys = map(budget.lease, ("a", "a", "b", ""))
    mine.add(30)
    with pytest.raises(RateLimitedError):
        also_mine.add(11)
    also_mine.add(10)
    others.add(10)
    with pytest.raises(RateLimitedError):
        nobodys.add(51)
    nobodys.add(50)
    assert budget.held_bytes == 100
    for lease in (mine, mine, also_mine, others, nobodys):
        lease.release()
    assert budget.held_bytes == 0
