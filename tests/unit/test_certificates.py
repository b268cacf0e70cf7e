"""The gateway's own certificate: what it says, who can read it, when it is made anew."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from gateway_modules.web.certificates import (
    RENEW_BEFORE_DAYS,
    VALID_DAYS,
    Certificate,
    GatewayTls,
    ensure_certificate,
    gateway_tls,
    host_names,
    pinned_context,
    tls_context,
)
from settings.sections import ServiceSettings

NAMES = ["localhost", "127.0.0.1", "::1", "studio", "192.168.7.9", "bücher.example"]
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def read(certificate: Certificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.certfile.read_bytes())


def test_the_certificate_names_the_machine_for_a_year(tmp_path: Path) -> None:
    made = ensure_certificate(tmp_path / "certs", NAMES, NOW)
    assert made.is_new
    names = read(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "localhost",
        "studio",
        "xn--bcher-kva.example",
    ]
    addresses = [ip_address(text) for text in ("127.0.0.1", "::1", "192.168.7.9")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    assert made.expires - NOW == timedelta(days=VALID_DAYS)
    assert not read(made).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert len(made.fingerprint.split(":")) == 32


def test_doors_starting_together_create_one_certificate(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def make(_: int) -> Certificate:
        start.wait()
        return ensure_certificate(tmp_path / "certs", NAMES, NOW)

    with ThreadPoolExecutor(8) as doors:
        made = list(doors.map(make, range(8)))
    assert sum(one.is_new for one in made) == 1
    assert len({one.fingerprint for one in made}) == 1


def test_only_the_owner_reads_the_key(tmp_path: Path) -> None:
    made = ensure_certificate(tmp_path, NAMES, NOW)
    assert stat.S_IMODE(made.keyfile.stat().st_mode) == 0o600
    made.keyfile.chmod(0o644)
    ensure_certificate(tmp_path, NAMES, NOW)
    assert stat.S_IMODE(made.keyfile.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cert.pem", "key.pem"]


def test_the_certificate_is_reused_until_shortly_before_it_expires(tmp_path: Path) -> None:
    made = ensure_certificate(tmp_path, NAMES, NOW)
    late = timedelta(days=VALID_DAYS - RENEW_BEFORE_DAYS)
    kept = ensure_certificate(tmp_path, NAMES, NOW + late - timedelta(hours=1))
    assert not kept.is_new
    assert kept.fingerprint == made.fingerprint
    renewed = ensure_certificate(tmp_path, NAMES, NOW + late)
    assert renewed.is_new
    assert renewed.fingerprint != made.fingerprint


@pytest.mark.parametrize("damaged", ["cert.pem", "key.pem"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_a_damaged_or_partial_pair_is_created_again(
    tmp_path: Path, damaged: str, content: bytes | None
) -> None:
    ensure_certificate(tmp_path, NAMES, NOW)
    if content is None:
        (tmp_path / damaged).unlink()
    else:
        (tmp_path / damaged).write_bytes(content)
    assert ensure_certificate(tmp_path, NAMES, NOW).is_new
    assert not ensure_certificate(tmp_path, NAMES, NOW).is_new


def test_a_key_of_another_certificate_does_not_fit(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path / "a", NAMES, NOW)
    other = ensure_certificate(tmp_path / "b", NAMES, NOW)
    first.keyfile.write_bytes(other.keyfile.read_bytes())
    assert ensure_certificate(tmp_path / "a", NAMES, NOW).is_new


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_client_that_trusts_the_certificate_connects(tmp_path: Path, name: str) -> None:
    made = ensure_certificate(tmp_path, NAMES)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certfile, made.keyfile)
    ours, theirs = socket.socketpair()

    def answer() -> None:
        with server.wrap_socket(ours, server_side=True) as channel:
            channel.sendall(b"hello")

    thread = threading.Thread(target=answer)
    thread.start()
    client = ssl.create_default_context(cafile=str(made.certfile))
    with client.wrap_socket(theirs, server_hostname=name) as channel:
        assert channel.recv(5) == b"hello"
    thread.join()


def test_every_host_name_fits_into_a_certificate(tmp_path: Path) -> None:
    names = host_names()
    assert names[:3] == ["localhost", "127.0.0.1", "::1"]
    assert socket.gethostname() in names
    assert len(names) == len(set(names))
    assert ensure_certificate(tmp_path).is_new


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    while ends:
        for end in list(ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)


def test_a_pinned_certificate_is_trusted_whatever_its_names_and_dates(tmp_path: Path) -> None:
    """Or the launcher would kill the gateway whose certificate expires while it runs."""
    long_ago = datetime.now(UTC) - timedelta(days=VALID_DAYS + 1)
    expired = ensure_certificate(tmp_path / "expired", ["studio"], long_ago)
    another = ensure_certificate(tmp_path / "another", ["studio"])
    server = tls_context(expired.certfile, expired.keyfile)
    shake_hands(server, pinned_context(expired.certfile))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, pinned_context(another.certfile))
    gateway = GatewayTls(expired.certfile, expired.keyfile, expired)
    shake_hands(server, gateway.context())


def test_the_launcher_finds_that_a_configured_certificate_cannot_be_used(tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    service = ServiceSettings(ssl_certfile=missing, ssl_keyfile=missing)
    with pytest.raises(OSError, match=f"TLS with {missing}"):
        gateway_tls(service)
