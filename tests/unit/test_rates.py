"""Buckets that refill with time."""

from __future__ import annotations

import pytest

from gateway_modules.web.limits import ADDRESSES_MAX, AddressBuckets, TokenBucket


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_limits_bursts_and_the_sustained_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(3, 2.0, clock)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    clock.now_s = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    clock.now_s = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_borrowing_returns_the_delay() -> None:
    clock = Clock()
    bucket = TokenBucket(10, 4.0, clock)
    assert bucket.borrow_s(10) == 0.0
    assert bucket.borrow_s(2) == 0.5
    assert bucket.borrow_s(2) == 1.0
    clock.now_s = 1.0
    assert bucket.borrow_s(0) == 0.0


def test_each_address_has_its_own_bucket() -> None:
    clock = Clock()
    buckets = AddressBuckets(1, 1.0, clock)
    assert [buckets.take("a"), buckets.take("a"), buckets.take("b")] == [True, False, True]
    clock.now_s = 1.0
    assert [buckets.take("a"), buckets.take("a")] == [True, False]


def test_the_number_of_buckets_is_bounded() -> None:
    buckets = AddressBuckets(1, 1.0, Clock())
    for number in range(ADDRESSES_MAX + 1):
        buckets.take(str(number))
    assert buckets.take("0")  # forgotten, so it starts anew
    assert not buckets.take(str(ADDRESSES_MAX))


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_an_ipv6_network_is_one_client(first: str, second: str, is_one: bool) -> None:
    buckets = AddressBuckets(1, 1, lambda: 0.0)
    assert buckets.take(first)
    assert buckets.take(second) is not is_one
