"""A gateway and a worker with TLS between them: who is believed, and what is said of who is not."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import ValidationError

from config import Settings
from core.schemas.worker import WorkerStatus
from core.serving.fake_backend import FakeBackend
from core.worker_tls import (
    CA_FILE,
    WORKER_TLS_NAME,
    client_context,
    ensure_ca,
    issue,
    server_context,
)
from launcher.plan import Options, Planner, Programs
from launcher.scaling import Bounds
from launcher.supervisor import check_health
from tests.fakes.gateway_stage import HURRY, LIMIT_S, Stage, settings_for, until
from tests.fakes.pools import idle_count
from tests.service.workers import RunningWorker, running_worker

SECRET = "the secret of both"
TLS: Mapping[str, object] = {"worker_tls": True, "worker_secret": SECRET}


def configured(folder: Path, **security: object) -> Settings:
    folder.mkdir(exist_ok=True)
    return settings_for(folder, security={**TLS, **security}, recording={"enabled": False})


def meet(worker: Settings, gateway: Settings, refused: str | None = None) -> None:
    """Have a gateway find a worker and talk through it, or refuse it with such a problem.

    On a busy machine a worker may time out before it is refused.
    """

    async def scenario(running: RunningWorker) -> None:
        stage = Stage(gateway, 0, HURRY)
        await stage.start()
        try:
            pool = stage.gateway.pool
            await pool.directory.replace([f"127.0.0.1:{running.port}"])
            (found,) = pool.workers.values()
            if refused is not None:

                def problem() -> str:
                    return (found.service.last_error or ("", None))[0]

                await until(lambda: problem() and refused in problem(), f"not {refused!r}")
                assert (
                    found.status in {WorkerStatus.OFFLINE, WorkerStatus.ERROR}
                    and not found.available_slots
                )
                return
            await until(lambda: idle_count(pool) == 1, f"refused: {found.service.last_error}")
            async with stage.client("/ws/duplex/adx_1") as client:
                await client.expect("queue_done")
                await client.say("prepare")
                await client.expect("prepared")
                await client.say("stop")
                await client.expect("stopped")
            await stage.check_quiet()
        finally:
            await stage.stop()

    with running_worker(worker, FakeBackend) as running:
        asyncio.run(scenario(running))


def test_a_talk_passes_with_the_ca_that_the_first_start_makes(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    meet(settings, settings)
    assert (tmp_path / CA_FILE).stat().st_mode & 0o077 == 0


def test_a_talk_passes_with_an_operators_files(tmp_path: Path) -> None:
    """The gateway has the CA's certificate alone, the worker its own and no CA."""
    ours = configured(tmp_path / "ca")
    client_context(ours)
    ca_file = tmp_path / "ca" / CA_FILE
    pair, public = tmp_path / "worker.pem", tmp_path / "ca.pem"
    pair.write_bytes(issue(ca_file, [x509.DNSName(WORKER_TLS_NAME)]))
    public.write_text(ca_file.read_text().partition("-----BEGIN PRIVATE KEY")[0])
    worker = configured(tmp_path / "worker", worker_certfile=pair, worker_keyfile=pair)
    gateway = configured(tmp_path / "gateway", worker_ca=public)
    meet(worker, gateway)
    with pytest.raises(ValueError, match="set security.worker_certfile"):
        server_context(gateway)


def test_a_worker_of_another_ca_is_refused(tmp_path: Path) -> None:
    meet(configured(tmp_path / "a"), configured(tmp_path / "b"), "CERTIFICATE_VERIFY_FAILED")


def test_a_certificate_for_something_else_is_refused(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    client_context(settings)
    other = issue(tmp_path / CA_FILE, [x509.DNSName("mail.example.com")])
    (tmp_path / "pair.pem").write_bytes(other)
    worker = configured(
        tmp_path, worker_certfile=tmp_path / "pair.pem", worker_keyfile=tmp_path / "pair.pem"
    )
    meet(worker, settings, "mismatch")


def test_a_worker_without_tls_is_refused_by_a_gateway_with_it(tmp_path: Path) -> None:
    plain = configured(tmp_path, worker_tls=False)
    meet(plain, configured(tmp_path), "SSL")


def test_another_secret_is_refused_and_named(tmp_path: Path) -> None:
    another = configured(tmp_path, worker_secret="another one")
    meet(configured(tmp_path), another, "security.worker_secret")


def test_the_launcher_asks_a_worker_how_it_is(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    (plan,) = Planner(settings, Options(workers=Bounds(1, 1)), Programs(), {}, 1).workers([])
    with running_worker(settings, FakeBackend) as running:
        asked = check_health(replace(plan, port=running.port), client_context(settings), LIMIT_S)
        assert asyncio.run(asked).is_ready


def test_programs_that_start_together_make_one_ca(tmp_path: Path) -> None:
    settings = configured(tmp_path)

    async def start() -> None:
        await asyncio.gather(*(asyncio.to_thread(server_context, settings) for _ in range(8)))

    asyncio.run(start())
    first = x509.load_pem_x509_certificate((tmp_path / CA_FILE).read_bytes())
    client_context(settings)
    assert x509.load_pem_x509_certificate((tmp_path / CA_FILE).read_bytes()) == first
    shutil.rmtree(tmp_path / "certs")
    server_context(settings)
    assert x509.load_pem_x509_certificate((tmp_path / CA_FILE).read_bytes()) != first


@pytest.mark.parametrize(
    ("security", "problem"),
    [
        ({"worker_tls": True, "worker_certfile": "a.pem"}, "given together"),
        ({"worker_ca": "a.pem"}, "no effect without worker_tls"),
    ],
)
def test_files_that_would_do_nothing_are_refused(security: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Settings.model_validate({"security": security})


EC_KEY, RSA_KEY = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65_537, 2_048)


@pytest.mark.parametrize("key_id", [None, b"an id of its own"])
@pytest.mark.parametrize("key", [EC_KEY, RSA_KEY], ids=["ec", "rsa"])
def test_a_ca_may_have_a_key_of_either_kind_and_call_it_as_it_likes(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, key_id: bytes | None
) -> None:
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "an operator's")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    if key_id is not None:
        made = made.add_extension(x509.SubjectKeyIdentifier(key_id), False)
    ca = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "ca.pem").write_bytes(ca + secret)
    pair = tmp_path / "pair.pem"
    pair.write_bytes(issue(tmp_path / "ca.pem", [x509.DNSName(WORKER_TLS_NAME)]))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair)
    client = ssl.create_default_context(cadata=ca.decode())
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=WORKER_TLS_NAME),
        server.wrap_bio(up, down, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def test_a_ca_with_the_key_of_another_is_named(tmp_path: Path) -> None:
    first, second = (ensure_ca(tmp_path / name / "ca.pem") for name in ("one", "two"))
    begin = b"-----BEGIN PRIVATE KEY-----"
    certificate, key = (file.read_bytes().split(begin) for file in (first, second))
    first.write_bytes(certificate[0] + begin + key[1])
    with pytest.raises(ValueError, match="the key is not that of the certificate"):
        issue(first, [x509.DNSName(WORKER_TLS_NAME)])
