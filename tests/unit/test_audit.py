"""What is kept of administrators' deeds: enough to know, bounded, no secret."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.store import Store
from gateway_modules import administration as state
from gateway_modules.administration import (
    BODY_READ_BYTES,
    BodyStart,
    append_entry,
    entry_of,
    newest_entries,
    shown_address,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def body_of(*parts: bytes) -> BodyStart:
    body = BodyStart()
    for part in parts:
        body.saw(part)
    return body


def write(store: Store, target: str) -> None:
    append_entry(store, entry_of(NOW, "127.0.0.1", "PUT /x/{y}", target, body_of(b'{"a":1}'), 200))


def test_the_audit_log_is_newest_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert newest_entries(store, 10) == []
    for number in range(5):
        write(store, str(number))
    assert [entry.target for entry in newest_entries(store, 3)] == ["4", "3", "2"]
    (entry,) = newest_entries(store, 1)
    assert (entry.address, entry.action, entry.details) == ("127.0.0.1", "PUT /x/{y}", "a=1")
    assert (entry.status, entry.time) == (200, NOW)


def test_the_audit_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ENTRIES_MAX", 10)
    store = Store(tmp_path)
    for number in range(30):
        write(store, str(number))
    assert store.rows("SELECT count(*) FROM audit") == [(10,)]
    numbers = [int(entry.target) for entry in newest_entries(store, 100)]
    assert numbers == list(range(29, 19, -1))


def test_damaged_entries_are_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction() as state:
        state.execute("INSERT INTO audit (entry) VALUES ('{half')")
    write(store, "good")
    assert [entry.target for entry in newest_entries(store, 10)] == ["good"]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.168.1.7", "192.168.1.7"),
        ("::1", "::1"),
        ("::ffff:10.0.0.3", "10.0.0.3"),
        ("8.8.4.4", "8.8.4.0/24"),
        ("2606:4700:1:2:3::4", "2606:4700:1::/48"),
        ("no address", ""),
        ("", ""),
    ],
)
def test_public_addresses_are_truncated_to_their_network(told: str, kept: str) -> None:
    assert shown_address(told) == kept


@pytest.mark.parametrize(
    ("parts", "details"),
    [
        ((), ""),
        ((b'{"enabled": tr', b"ue}"), "enabled=true"),
        ((b'{"days": 1.5, "name": "x", "deep": {"a": 1}, "list": [1]}',), "days=1.5, name=x"),
        ((b"[1, 2]",), ""),
        ((b"not json",), ""),
        ((b'{"file": "', b"A" * BODY_READ_BYTES, b'"}'), ""),
    ],
)
def test_only_short_scalar_values_of_a_body_are_logged(
    parts: tuple[bytes, ...], details: str
) -> None:
    assert body_of(*parts).details() == details


def test_long_values_are_truncated() -> None:
    details = body_of(b'{"name": "' + b"n" * 500 + b'"}').details()
    assert len(details) < 100 and details.endswith("…")


def test_lone_surrogates_are_replaced_in_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path)
    body = body_of(rb'{"paused": true, "x\ud800": "\udfff"}')
    append_entry(store, entry_of(NOW, "127.0.0.1", "PUT /x", "\ud800", body, 200))
    (entry,) = newest_entries(store, 1)
    assert (entry.target, entry.details) == ("?", "paused=true, x?=?")
