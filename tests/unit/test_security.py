"""Who is asking: addresses behind proxies, origins, administrators."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError
from starlette.requests import HTTPConnection

from core.addresses import is_loopback
from core.errors import OriginRefusedError, RateLimitedError, UnauthorizedError
from core.files import TOKEN_FILE, ensure_admin_token
from gateway_modules.web.security import (
    ADMIN_COOKIE,
    HOST_PREFIX,
    SESSION_AGE_S,
    AccessPolicy,
)
from settings.sections import SecuritySettings

TOKEN = "correct horse battery"


def connection(
    peer: str = "203.0.113.7", headers: Mapping[str, str] | None = None, scheme: str = "http"
) -> HTTPConnection:
    given = {"host": "demo.example:8006", **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "scheme": scheme, "headers": raw, "client": (peer, 1234)}
    return HTTPConnection(scope)


def access_policy(clock: Callable[[], float] = lambda: 0.0, **settings: object) -> AccessPolicy:
    rules = SecuritySettings.model_validate(settings)
    return AccessPolicy(rules, TOKEN, ["demo.example"], clock)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.7", None, "203.0.113.7"),
        ("203.0.113.7", "1.1.1.1", "203.0.113.7"),  # nobody we trust says so
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", "6.6.6.6, 1.1.1.1", "1.1.1.1"),  # what came before is the client's own word
        ("10.0.0.1", "1.1.1.1, 10.0.0.2", "1.1.1.1"),
        ("10.0.0.1", "rubbish", ""),  # nobody is taken for the proxy itself
        ("10.0.0.1", "1.1.1.1:80", ""),
        ("10.0.0.1", "1.1.1.1, rubbish, 10.0.0.2", ""),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "1.1.1.1", "1.1.1.1"),
    ],
)
def test_only_trusted_proxies_headers_are_believed(
    peer: str, forwarded: str | None, expected: str
) -> None:
    door = access_policy(trusted_proxies=["10.0.0.0/8"])
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    assert door.client_address(connection(peer, headers)) == expected


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("demo.example", True),
        ("DEMO.example.:8006", True),
        ("localhost:8006", True),
        ("192.168.1.5:8006", True),
        ("[2001:db8::1]:8006", True),
        ("talk.lan", True),
        ("a.parts.lan", True),
        ("a.b.parts.lan", False),
        ("parts.lan", False),
        ("rebound.example:8006", False),
        ("demo.example.evil.example", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_only_configured_host_names_and_addresses_are_accepted(host: str, is_known: bool) -> None:
    door = access_policy(allowed_hosts=["Talk.lan", "*.parts.lan"])
    if is_known:
        door.check_host(connection(headers={"host": host}))
    else:
        with pytest.raises(OriginRefusedError, match="allowed_hosts"):
            door.check_host(connection(headers={"host": host}))
    access_policy(allowed_hosts=["*"]).check_host(connection(headers={"host": host}))


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
        ("http://[::1", False),
        ("http://[nonsense]", False),
    ],
)
def test_foreign_origins_are_refused(origin: str, is_allowed: bool) -> None:
    door = access_policy(allowed_origins=["https://Friend.example"])
    if is_allowed:
        door.check_origin(connection(headers={"Origin": origin}))
    else:
        with pytest.raises(OriginRefusedError):
            door.check_origin(connection(headers={"Origin": origin}))


def test_requests_without_origin_are_accepted() -> None:
    access_policy().check_origin(connection())


def test_a_trusted_proxy_forwards_the_host_name() -> None:
    headers = {"Origin": "https://shown.example", "X-Forwarded-Host": "shown.example"}
    access_policy(trusted_proxies=["10.0.0.1"]).check_origin(connection("10.0.0.1", headers))
    with pytest.raises(OriginRefusedError):
        access_policy().check_origin(connection("10.0.0.1", headers))


@pytest.mark.parametrize(
    "origin",
    ["example.com", "null", "https://", "ftp://a.example", "https://a.example/page", "http://[::1"],
)
def test_an_allowed_origin_needs_scheme_and_host(origin: str) -> None:
    with pytest.raises(ValidationError, match="allowed_origins"):
        SecuritySettings.model_validate({"allowed_origins": [origin]})


def test_an_administrator_presents_a_token_or_a_session_cookie() -> None:
    door = access_policy()
    cookie = door.sessions.begin()
    assert cookie != door.sessions.begin() and TOKEN not in cookie
    for headers in ({"X-Admin-Token": TOKEN}, {"Cookie": f"{ADMIN_COOKIE}={cookie}"}):
        assert door.is_admin(connection(headers=headers))
    for headers in ({}, {"X-Admin-Token": TOKEN[:-1]}, {"Cookie": f"{ADMIN_COOKIE}=x"}):
        assert not door.is_admin(connection("127.0.0.1", {"host": "localhost", **headers}))


def test_a_session_ends_with_logout_and_with_age() -> None:
    now_s = 0.0
    door = access_policy(lambda: now_s)
    first, second = door.sessions.begin(), door.sessions.begin()
    door.sessions.end(first)
    assert not door.sessions.is_open(first) and door.sessions.is_open(second)
    now_s = SESSION_AGE_S
    assert not door.sessions.is_open(second)


def test_with_tls_only_a_host_bound_cookie_is_accepted() -> None:
    door = access_policy(trusted_proxies=["10.0.0.1"])
    told = {"X-Forwarded-Proto": "https"}
    cookie = door.sessions.begin()
    assert door.cookie_name(connection("10.0.0.1", told)) == HOST_PREFIX + ADMIN_COOKIE
    assert door.cookie_name(connection(scheme="https")) == HOST_PREFIX + ADMIN_COOKIE
    assert door.cookie_name(connection("10.0.0.2", told)) == ADMIN_COOKIE  # no proxy of ours
    planted = {"Cookie": f"{ADMIN_COOKIE}={cookie}"}  # a page of a sister domain may set this one
    assert not door.is_admin(connection(headers=planted, scheme="https"))


def test_only_insecure_admin_without_a_token_is_open() -> None:
    assert access_policy(insecure_admin=True).is_admin(connection())
    assert not access_policy(insecure_admin=True, admin_token=TOKEN).is_admin(connection())


def test_wrong_tokens_are_rate_limited_and_the_right_one_never_is() -> None:
    door = access_policy()
    for _ in range(10):
        with pytest.raises(UnauthorizedError):
            door.check_token("wrong", "1.1.1.1")
    with pytest.raises(RateLimitedError):
        door.check_token("wrong", "1.1.1.1")
    with pytest.raises(UnauthorizedError):
        door.check_token("wrong", "2.2.2.2")
    door.check_token(TOKEN, "1.1.1.1")


def test_the_first_start_creates_a_private_token(tmp_path: Path) -> None:
    token = ensure_admin_token(tmp_path / "data")
    file = tmp_path / "data" / TOKEN_FILE
    assert len(token) >= 22 and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    assert ensure_admin_token(tmp_path / "data") == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("")
    with pytest.raises(OSError, match="delete it"):
        ensure_admin_token(tmp_path / "data")


def test_loopback_in_all_spellings() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost")))
    assert not any(map(is_loopback, ("", "10.0.0.1", "::ffff:10.0.0.1", "::")))


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
    assert access_policy().limited_client(connection(peer, headers)) == client
