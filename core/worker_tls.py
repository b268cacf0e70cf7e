"""TLS between the gateway and its workers: CA, certificates and SSL contexts.

Every worker presents a certificate for the same name, which is verified wherever it runs, because
the addresses of workers change.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from config import Settings
from core.files import atomic_write, locked

WORKER_TLS_NAME: Final = "worker.minicpmo-live.internal"
SNI: Final = {"sni_hostname": WORKER_TLS_NAME}
"""Option of a request by httpx: the name to ask for and to check, whatever the address is."""

PEM: Final = serialization.Encoding.PEM
CA_FILE: Final = Path("certs") / "worker_ca.pem"
VALID: Final = timedelta(days=3_650)  # ours; only this project's programs use these certificates
CLOCK_SKEW: Final = timedelta(hours=1)  # tolerated for peers whose clock is behind


def client_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the gateway's SSL context for workers, None without TLS; raises as `worker_ca`."""
    if not settings.security.worker_tls:
        return None
    context = ssl.create_default_context(cafile=worker_ca(settings))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """Return a worker's SSL context, None without TLS; raises as `issue`."""
    security = settings.security
    if not security.worker_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if security.worker_certfile is not None:
        context.load_cert_chain(security.worker_certfile, security.worker_keyfile)
        return context
    try:
        signed = issue(worker_ca(settings), [x509.DNSName(WORKER_TLS_NAME)])
    except ValueError as error:
        raise ValueError(
            f"{error}: set security.worker_certfile and security.worker_keyfile"
        ) from error
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # the library only reads files
        file.write(signed)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def worker_ca(settings: Settings) -> Path:
    """Return the CA's file, created if it is our own and missing; raises `OSError`."""
    if settings.security.worker_ca is not None:
        return settings.security.worker_ca
    return ensure_ca(settings.service.data_dir / CA_FILE)


def ensure_ca(path: Path) -> Path:
    """Return the file of our CA's certificate and key, created if missing; raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):  # programs that share the folder may start together
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "minicpmo-live workers")])
            certificate = (
                self_issued(name, key, datetime.now(UTC), VALID)
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
                .add_extension(_usage(signs=True), True)
                .sign(key, hashes.SHA256())
            )
            atomic_write(path, certificate.public_bytes(PEM) + private_pem(key), is_durable=True)
    return path


def issue(ca_file: Path, names: Sequence[x509.GeneralName], *, for_clients: bool = False) -> bytes:
    """Return a new certificate and its key, signed by the CA of `ensure_ca`.

    With `for_clients` it also authenticates clients. Raises `OSError` if the file cannot be read,
    and `ValueError` if it has no key to sign with.
    """
    content = ca_file.read_bytes()
    try:
        ca = x509.load_pem_x509_certificate(content)
        ca_key = serialization.load_pem_private_key(content, password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise ValueError("the key is neither of an elliptic curve nor RSA")
        if ca_key.public_key() != ca.public_key():
            raise ValueError("the key is not that of the certificate")
    except (ValueError, TypeError) as error:  # the second for an encrypted key
        raise ValueError(
            f"{ca_file} does not hold both a certificate and its key, so no worker's certificate "
            f"can be signed ({error})"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(names[0].value))])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH]
    if for_clients:
        uses.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    own_id, until = _key_id(ca, ca_key.public_key()), ca.not_valid_after_utc
    certificate = (
        _builder(name, ca.subject, key, own_id, datetime.now(UTC), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_usage(signs=False), True)
        .add_extension(x509.ExtendedKeyUsage(uses), False)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .sign(ca_key, hashes.SHA256())
    )
    return certificate.public_bytes(PEM) + private_pem(key)


def self_issued(
    name: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    """Return the builder of a certificate that is to be signed with its own key."""
    own_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return _builder(name, name, key, own_id, now, now + lasts)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    private = serialization.PrivateFormat.PKCS8
    return key.private_bytes(PEM, private, serialization.NoEncryption())


def _key_id(
    ca: x509.Certificate, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.AuthorityKeyIdentifier:
    """Return a CA's own key id, because not every CA derives it in the same way."""
    try:
        own = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issued_by: x509.AuthorityKeyIdentifier,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(issued_by, False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)
