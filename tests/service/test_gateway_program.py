"""`gateway.py` as a program: its flags, TLS with a certificate of its own, and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

import gateway
from benchmarks.launched import free_ports
from core.serving.fake_backend import FakeBackend
from gateway_modules.queue.worker_pool import TICKET_FILE
from gateway_modules.web.certificates import ensure_certificate
from tests.service.workers import SILENCE, Client, running_worker, settings_for
from tests.source_tree import ROOT
from tests.system.loops import in_loop

LIMIT_S = 120.0  # ends a test that hangs
POLL_S = 0.02
BAD_START = 2


def command(folder: Path, *flags: str) -> list[str]:
    """How the program is started; what it keeps goes to a folder."""
    config = folder / "config.json"
    service = {"data_dir": str(folder), "drain_timeout_s": 5, "gateway_port": free_ports(1)}
    config.write_text(json.dumps({"service": service}))
    return [sys.executable, "gateway.py", "--config", str(config), *flags]


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(
        command(folder, *flags),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMNI_LOGGING_JSON": "true"},
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def ask(url: str, trusted: ssl.SSLContext | bool = False) -> httpx.Response:
    """Ask until there is an answer.

    Args:
        url: where.
        trusted: certificates; without TLS there is nothing to verify.
    """
    place = httpx.URL(url)
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            # Making a client takes the time that the program needs to start, at every look.
            socket.create_connection((place.host, place.port or 0), LIMIT_S).close()
            return httpx.get(url, verify=trusted, trust_env=False)
        except (OSError, httpx.TransportError):
            assert time.monotonic() < deadline_s, "no answer"
            time.sleep(POLL_S)


def test_the_program_serves_and_exits_cleanly(tmp_path: Path) -> None:
    port = free_ports(1)
    flags = ("--http", "--host", "127.0.0.1", "--port", str(port), "--workers", "127.0.0.1:1")
    with running(tmp_path, *flags, "--max-queue-size", "7", "--lang", "zh") as program:
        health = ask(f"http://127.0.0.1:{port}/health").json()
        assert (health["status"], health["ready"], health["workers_total"]) == ("healthy", False, 1)
        assert ask(f"http://127.0.0.1:{port}/status").json()["max_queue_size"] == 7
        assert ask(f"http://127.0.0.1:{port}/api/frontend_defaults").json()["default_lang"] == "zh"
        program.send_signal(signal.SIGTERM)
        output, _ = program.communicate(timeout=LIMIT_S)
        assert program.returncode == 0
    events = [json.loads(line)["event"] for line in output.splitlines()]
    assert "request" in events and "draining" in events


def test_tls_uses_a_self_signed_certificate(tmp_path: Path) -> None:
    port = free_ports(1)
    with running(tmp_path, "--https", "--host", "127.0.0.1", "--port", str(port)) as program:
        deadline_s = time.monotonic() + LIMIT_S
        while not (tmp_path / "certs" / "cert.pem").exists():
            assert time.monotonic() < deadline_s
            time.sleep(POLL_S)
        trusted = ssl.create_default_context(cafile=str(tmp_path / "certs" / "cert.pem"))
        assert ask(f"https://127.0.0.1:{port}/health", trusted).json()["status"] == "healthy"
        assert (tmp_path / "certs" / "key.pem").stat().st_mode & 0o077 == 0
        program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=LIMIT_S)
        assert program.returncode == 0 and "draining" in output


@in_loop
async def test_two_signals_at_once_let_sessions_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SERVICE_DRAIN_TIMEOUT_S", "600")  # a slow machine ends no session
    port = free_ports(1)
    with running_worker(settings_for(tmp_path / "worker"), FakeBackend) as worker:
        address = f"127.0.0.1:{worker.port}"
        flags = ("--http", "--host", "127.0.0.1", "--port", str(port), "--workers", address)
        with running(tmp_path, *flags) as program:
            ask(f"http://127.0.0.1:{port}/health")
            async with Client(port).talk("duplex/adx_1") as talk:
                await talk.hear_until("queue_done")
                await talk.prepared()
                # Of one kind, they could become one on their way; while it is stopped, the time
                # between them is none.
                for sent in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
                    program.send_signal(sent)
                assert program.stdout is not None
                while "draining" not in await asyncio.to_thread(program.stdout.readline):
                    assert program.poll() is None
                assert (await talk.ask("audio_chunk", audio=SILENCE))["type"] == "result"
                assert [each["type"] for each in await talk.stop()] == ["stopped"]
            program.communicate(timeout=LIMIT_S)
            assert program.returncode == 0


@pytest.mark.matrix  # by default `test_invalid_settings_are_named` sees it without a process
def test_invalid_settings_end_the_program(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--port", "99999"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == BAD_START, done.stderr
    assert "service.gateway_port" in done.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--port", "99999"), "service.gateway_port"),
        (("--config", "/nowhere/config.json"), "/nowhere/config.json does not exist"),
        (("--lang", "xx"), "service.default_lang"),
        (("--ssl-certfile", "cert.pem"), "given together"),
        (("--workers", "host:port:x"), "host:port:x"),
        (("--workers", "a:1,a:1"), "comes twice"),
    ],
)
def test_invalid_settings_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    program = typer.Typer()
    program.command()(gateway.main)
    done = CliRunner().invoke(program, command(tmp_path, *flags)[2:])
    assert done.exit_code == BAD_START, done.stderr
    assert reason in done.stderr.replace("\n", " ")


def test_a_port_in_use_is_named_before_any_file_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    program, outstanding = typer.Typer(), tmp_path / TICKET_FILE
    program.command()(gateway.main)
    outstanding.write_text("of the gateway that has the port")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        flags = ("--https", "--host", "127.0.0.1", "--port", str(port))
        given = command(tmp_path, *flags)[2:]
        before = sorted(tmp_path.iterdir())
        done = CliRunner().invoke(program, given)
    assert done.exit_code == BAD_START, done.output
    told = " ".join(done.stderr.split())  # without the console's line breaks
    assert f"port {port} of 127.0.0.1 is already in use by process {os.getpid()} (" in told
    assert "--port or service.gateway_port" in told
    assert sorted(tmp_path.iterdir()) == before and outstanding.exists()


def test_a_key_of_another_certificate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    one, other = (ensure_certificate(tmp_path / name, ["localhost"]) for name in ("one", "other"))
    flags = ("--ssl-certfile", str(one.certfile), "--ssl-keyfile", str(other.keyfile))
    program = typer.Typer()
    program.command()(gateway.main)
    done = CliRunner().invoke(program, command(tmp_path, "--https", *flags)[2:])
    assert done.exit_code == BAD_START, done.stderr
    assert str(other.keyfile) in done.stderr.replace("\n", "")
