"""The gateway's self-signed certificate: created at the first start, renewed before it expires.

The key never leaves the machine it was created on.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from core.addresses import address_of
from core.files import atomic_write, locked
from core.worker_tls import private_pem, self_issued
from settings.sections import ServiceSettings

VALID_DAYS = 365  # source: docs/specification/service.md#4.4
RENEW_BEFORE_DAYS = 14  # so that it does not expire while the system runs
LONGEST_COMMON_NAME = 64  # source: RFC 5280, appendix A.1, ub-common-name
IGNORE_DATES = ssl.VerifyFlags(0x200000)  # source: OpenSSL, X509_V_FLAG_NO_CHECK_TIME
UNROUTED_ADDRESS = ("192.0.2.1", 9)  # nothing is sent. Source: RFC 5737, TEST-NET-1


@dataclass(frozen=True)
class Certificate:
    """`fingerprint` is SHA-256, as browsers show it."""

    certfile: Path
    keyfile: Path
    is_new: bool
    fingerprint: str
    expires: datetime


def host_names() -> list[str]:
    """Return this machine's likely names and addresses, loopback first."""
    names = ["localhost", "127.0.0.1", "::1"]
    host = socket.gethostname()
    names += [host, socket.getfqdn(host)]
    return list(dict.fromkeys(name for name in [*names, *lan_addresses()] if name))


def lan_addresses() -> list[str]:
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):  # no network at all
            probe.connect(UNROUTED_ADDRESS)
            found.append(str(probe.getsockname()[0]))
    with suppress(OSError):
        known = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        found += [str(entry[4][0]).partition("%")[0] for entry in known]
    return [
        place
        for place in dict.fromkeys(found)
        if (address := address_of(place)) is not None
        and not (address.is_loopback or address.is_link_local)
    ]


def ensure_certificate(
    folder: Path, names: list[str] | None = None, now: datetime | None = None
) -> Certificate:
    """Return the folder's certificate, or create one for `names` (default: the machine's).

    A lock prevents several processes on one folder from creating it twice.
    """
    now = now or datetime.now(UTC)
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        found = _usable(certfile, keyfile, now)
        is_new = found is None
        if found is None:
            found = _make(certfile, keyfile, names or host_names(), now)
    digest = found.fingerprint(hashes.SHA256())
    return Certificate(
        certfile, keyfile, is_new, digest.hex(":").upper(), found.not_valid_after_utc
    )


def tls_context(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """Return a server's context; the error for files that cannot be used names them."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certfile, keyfile)
    except OSError as error:
        raise OSError(f"TLS with {certfile} and {keyfile}: {error}") from error
    return context


def pinned_context(certfile: Path) -> ssl.SSLContext:
    """Return a client's context that trusts this certificate alone, whatever its names and dates.

    So a certificate that expires while its server runs ends nothing.
    """
    context = ssl.create_default_context(cafile=str(certfile))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | IGNORE_DATES
    return context


@dataclass(frozen=True)
class GatewayTls:
    """Files of the gateway's certificate; `made` if it is a generated one."""

    certfile: Path
    keyfile: Path
    made: Certificate | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context for requests to the gateway.

        A configured certificate may be renewed while the gateway runs, so it is not verified.
        """
        if self.made is not None:
            return pinned_context(self.certfile)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def gateway_tls(service: ServiceSettings) -> GatewayTls | None:
    """Return the certificate, generated if none is configured, or None for HTTP.

    Raises OSError if it cannot be used; the launcher calls this before it loads models.
    """
    if not service.https:
        return None
    if service.ssl_certfile is not None and service.ssl_keyfile is not None:
        tls_context(service.ssl_certfile, service.ssl_keyfile)
        return GatewayTls(service.ssl_certfile, service.ssl_keyfile)
    made = ensure_certificate(service.data_dir / "certs")
    return GatewayTls(made.certfile, made.keyfile, made)


def certificate_names(certfile: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate(certfile.read_bytes())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)


def _usable(certfile: Path, keyfile: Path, now: datetime) -> x509.Certificate | None:
    try:
        certificate = x509.load_pem_x509_certificate(certfile.read_bytes())
        key = serialization.load_pem_private_key(keyfile.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    if keyfile.stat().st_mode & 0o077:
        keyfile.chmod(0o600)
    fits = certificate.public_key() == key.public_key()
    lasts = certificate.not_valid_after_utc - now > timedelta(days=RENEW_BEFORE_DAYS)
    return certificate if fits and lasts and certificate.not_valid_before_utc <= now else None


def _make(certfile: Path, keyfile: Path, names: list[str], now: datetime) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    common_name = next((name for name in names if address_of(name) is None), "localhost")
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, common_name[:LONGEST_COMMON_NAME])]
    )
    certificate = (
        self_issued(subject, key, now, timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([general_name(name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    # Key first: after a crash in between the pair does not match and is created again.
    atomic_write(keyfile, private_pem(key))
    atomic_write(certfile, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return certificate


def general_name(name: str) -> x509.GeneralName:
    address = address_of(name)
    if address is not None:
        return x509.IPAddress(address)
    try:
        return x509.DNSName(name.encode("idna").decode("ascii"))  # source: RFC 5890 (A-labels)
    except UnicodeError:
        return x509.DNSName("localhost")
