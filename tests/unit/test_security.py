"""Who is asking: addresses behind proxies, origins, administrators."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.requests import HTTPConnection

from config import SecuritySettings
from core.errors import ForbiddenError, OriginRefusedError, RateLimitedError, UnauthorizedError
from gateway_modules.security import ADMIN_COOKIE, Doorkeeper, is_loopback

TOKEN = "correct horse battery"


def connection(
    peer: str = "203.0.113.7", headers: Mapping[str, str] | None = None
) -> HTTPConnection:
    """A request from somewhere."""
    given = {"host": "demo.example:8006", **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    return HTTPConnection({"type": "http", "headers": raw, "client": (peer, 1234)})


def doorkeeper(**settings: object) -> Doorkeeper:
    """A doorkeeper with some rules, at a time that stands still."""
    return Doorkeeper(SecuritySettings.model_validate(settings), clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.7", None, "203.0.113.7"),
        ("203.0.113.7", "1.1.1.1", "203.0.113.7"),  # nobody we trust says so
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", "6.6.6.6, 1.1.1.1", "1.1.1.1"),  # what came before is the client's own word
        ("10.0.0.1", "1.1.1.1, 10.0.0.2", "1.1.1.1"),
        ("10.0.0.1", "rubbish", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "1.1.1.1", "1.1.1.1"),
    ],
)
def test_only_trusted_proxies_speak_for_others(
    peer: str, forwarded: str | None, expected: str
) -> None:
    door = doorkeeper(trusted_proxies=["10.0.0.0/8"])
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    assert door.client_address(connection(peer, headers)) == expected


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("127.0.0.1", {"host": "localhost:8006"}, True),
        ("127.0.0.1", {"host": "127.0.0.1:8006"}, True),
        ("::1", {"host": "[::1]:8006"}, True),
        ("::ffff:127.0.0.1", {"host": "LOCALHOST"}, True),
        ("127.0.0.1", {"host": "rebound.example"}, False),
        ("127.0.0.1", {"host": "localhost", "X-Forwarded-For": "127.0.0.1"}, False),
        ("127.0.0.1", {"host": "localhost", "Forwarded": "for=127.0.0.1"}, False),
        ("203.0.113.7", {"host": "localhost"}, False),
    ],
)
def test_this_machine_is_known_by_address_and_name(
    peer: str, headers: Mapping[str, str], expected: bool
) -> None:
    assert doorkeeper().is_this_machine(connection(peer, headers)) is expected


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        ("https://demo.example:8006", True),
        ("http://demo.example:8006", True),  # TLS may end at a proxy
        ("https://DEMO.example:8006", True),
        ("https://friend.example", True),
        ("https://friend.example:443/", True),
        ("https://friend.example:444", False),
        ("https://demo.example", False),
        ("https://demo.example:8006.evil.example", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
        ("https://demo.example:port", False),
    ],
)
def test_pages_of_other_sites_are_refused(origin: str, is_allowed: bool) -> None:
    door = doorkeeper(allowed_origins=["https://Friend.example"])
    if is_allowed:
        door.check_origin(connection(headers={"Origin": origin}))
    else:
        with pytest.raises(OriginRefusedError):
            door.check_origin(connection(headers={"Origin": origin}))


def test_what_no_browser_sent_has_no_origin() -> None:
    doorkeeper().check_origin(connection())


def test_a_trusted_proxy_says_what_the_host_was_called() -> None:
    headers = {"Origin": "https://shown.example", "X-Forwarded-Host": "shown.example"}
    doorkeeper(trusted_proxies=["10.0.0.1"]).check_origin(connection("10.0.0.1", headers))
    with pytest.raises(OriginRefusedError):
        doorkeeper().check_origin(connection("10.0.0.1", headers))


def test_a_token_opens_by_header_or_cookie() -> None:
    door = doorkeeper(admin_token=TOKEN)
    assert door.needs_token
    for headers in (
        {"X-Admin-Token": TOKEN},
        {"Cookie": f"{ADMIN_COOKIE}={door.cookie}"},
    ):
        door.check_admin(connection(headers=headers))
    for headers in ({}, {"X-Admin-Token": TOKEN[:-1]}, {"Cookie": f"{ADMIN_COOKIE}=x"}):
        with pytest.raises(UnauthorizedError):
            door.check_admin(connection("127.0.0.1", {"host": "localhost", **headers}))
    assert TOKEN not in door.cookie


def test_without_a_token_this_machine_opens_unless_everybody_may() -> None:
    local = connection("127.0.0.1", {"host": "localhost"})
    doorkeeper().check_admin(local)
    with pytest.raises(ForbiddenError):
        doorkeeper().check_admin(connection())
    doorkeeper(insecure_admin=True).check_admin(connection())
    with pytest.raises(UnauthorizedError):
        doorkeeper().check_token("", "1.1.1.1")


def test_wrong_tokens_run_out_for_one_address_only() -> None:
    door = doorkeeper(admin_token=TOKEN)
    for _ in range(10):
        with pytest.raises(UnauthorizedError):
            door.check_token("wrong", "1.1.1.1")
    with pytest.raises(RateLimitedError):
        door.check_token(TOKEN, "1.1.1.1")
    door.check_token(TOKEN, "2.2.2.2")


def test_loopback_in_all_spellings() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("", "localhost", "10.0.0.1", "::ffff:10.0.0.1", "::")))


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("127.0.0.1", {}, ""),
        ("127.0.0.1", {"x-forwarded-for": "198.51.100.7, 203.0.113.9"}, "203.0.113.9"),
        ("127.0.0.1", {"x-real-ip": "203.0.113.9"}, "203.0.113.9"),
        ("203.0.113.9", {"x-forwarded-for": "198.51.100.7"}, "203.0.113.9"),
        ("2001:db8:1:2::3", {}, "2001:db8:1:2::/64"),
    ],
)
def test_limits_count_clients_behind_a_proxy_of_this_machine(
    peer: str, headers: dict[str, str], client: str
) -> None:
    assert doorkeeper().limited_client(connection(peer, headers)) == client
