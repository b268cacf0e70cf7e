"""`python worker.py` as a process: flags, signals and exit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from fastapi import FastAPI
from typer.testing import CliRunner

import worker
from benchmarks.launched import free_ports
from config import Settings
from core.schemas.limits import SLOTS_MAX
from core.schemas.worker import RESTART_EXIT_CODE, SUPERVISED_VARIABLE
from core.serving.fake_backend import FakeBackend
from tests.service.workers import (
    LIMIT_S,
    SILENCE,
    Client,
    eventually,
    running_worker,
    settings_for,
)
from tests.source_tree import ROOT
from tests.system.loops import in_loop
from worker import cli, fake_times, real_backend

START_LIMIT_S = 600.0  # ends a test that hangs: a program that has ended is seen at once
ASK_S = 0.1  # every request costs time of both programs
UNUSABLE = 2


class Program:
    """One process."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.port = free_ports(1)
        self.printed = folder / "printed"
        environment = {
            **os.environ,
            "OMNI_SERVICE_DATA_DIR": str(folder),
            "OMNI_SERVICE_DRAIN_TIMEOUT_S": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        with self.printed.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "worker.py", "--port", str(self.port), *flags],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self.printed.read_text(encoding="utf8")

    def health(self) -> dict[str, object]:
        """Its health; empty while it does not listen."""
        try:
            # Making a client takes the time that the program needs to start, at every look.
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S).close()
        except OSError:
            assert self.process.poll() is None, self.output
            return {}
        # Nothing to verify without TLS, and certificates take long to load.
        url = f"http://127.0.0.1:{self.port}/health"
        return dict(httpx.get(url, trust_env=False, verify=False, timeout=LIMIT_S).json())

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)


@contextmanager
def program(folder: Path, *flags: str, waits: bool = True) -> Iterator[Program]:
    """Yield a worker, ready if it `waits`."""
    running = Program(folder, flags)
    try:
        if waits:
            eventually(
                "it is ready",
                lambda: running.health().get("model_loaded"),
                START_LIMIT_S,
                ASK_S,
            )
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


@in_loop
async def test_sigterm_lets_sessions_end_and_then_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SUPERVISED_VARIABLE, raising=False)
    with program(tmp_path, "--backend", "fake", "--fake-ms", "unit=5") as running:
        assert running.health()["is_supervised"] is False
        async with Client(running.port).talk("duplex") as talk:
            prepared = await talk.prepared()
            for _ in range(2):  # as from the kernel, when a launcher with two threads is killed
                running.process.send_signal(signal.SIGTERM)
            assert (await talk.ask("audio_chunk", audio=SILENCE))["type"] == "result"
            assert [each["type"] for each in await talk.stop()] == ["stopped"]
        assert running.wait() == 0, running.output
        folder = tmp_path / "sessions" / prepared["recording_session_id"]
        assert len(json.loads((folder / "recording.json").read_text())["chunks"]) == 1


@pytest.mark.matrix  # by default `test_worker_life.py` sees it without a process
@in_loop
async def test_sigterm_ends_sessions_that_do_not_end(tmp_path: Path) -> None:
    with program(tmp_path, "--backend", "fake") as running:
        async with Client(running.port).talk("half_duplex") as talk:
            await talk.prepared()
            running.process.send_signal(signal.SIGTERM)
            assert [each["type"] for each in await talk.hear_all()] == ["error"]
            assert talk.close_code == 1001
        assert running.wait() == 0, running.output


@in_loop
async def test_a_restart_request_ends_the_program_for_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUPERVISED_VARIABLE, "1")
    with program(tmp_path, "--backend", "fake", "--fake-ms", "unit=5") as running:
        client = Client(running.port)
        assert running.health()["is_supervised"] is True
        async with client.talk("duplex") as talk:
            await talk.prepared()
            assert (await client.post("/restart")).json()["success"] is True
            assert (await client.post("/restart")).status_code == 503  # it does already
            assert (await talk.ask("audio_chunk", audio=SILENCE))["type"] == "result"
            assert [each["type"] for each in await talk.stop()] == ["stopped"]
        assert running.wait() == RESTART_EXIT_CODE, running.output


@in_loop
async def test_without_a_launcher_a_restart_is_refused(tmp_path: Path) -> None:
    with running_worker(settings_for(tmp_path), FakeBackend) as running:
        client = Client(running.port)
        assert (await client.health())["is_supervised"] is False
        answer = await client.post("/restart")
        assert answer.status_code == 409 and "not started by the launcher" in answer.text
        health = await client.health()
        assert health["model_loaded"] is True and health["is_draining"] is False


@in_loop
async def test_without_a_model_it_serves_a_toy(tmp_path: Path) -> None:
    with program(tmp_path, "--worker-index", "3", "--slots", "2") as running:
        assert running.health()["slots"] == 2
        model = running.health()["model"]
        assert isinstance(model, dict)
        assert (model["kind"], model["device"], model["dtype"]) == ("tiny_random", "cpu", "float32")
        assert model["is_demonstration"] is True and 0 < model["parameters"] < 100_000_000
        async with Client(running.port).talk("duplex") as talk:
            await talk.prepared()
            assert (await talk.ask("audio_chunk", audio=SILENCE))["type"] == "result"
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 0, running.output
        assert "worker_3" in running.output and (tmp_path / "tiny" / "config.json").is_file()


def test_an_invalid_checkpoint_is_reported_by_health(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, model={"model_path": str(tmp_path)})
    with running_worker(settings, lambda: real_backend(settings, None), waits=False) as running:

        def health() -> dict[str, object]:
            return asyncio.run(Client(running.port).health())

        eventually("it failed", lambda: health()["status"] == "error", START_LIMIT_S, ASK_S)
        assert str(tmp_path) in str(health()["error"])


@pytest.mark.matrix  # by default `test_invalid_flags_are_named` sees it without a process
def test_invalid_flags_end_the_program(tmp_path: Path) -> None:
    with program(tmp_path, "--slots", str(SLOTS_MAX + 1), waits=False) as running:
        assert running.process.wait(START_LIMIT_S) == UNUSABLE
        assert "worker_slots" in running.output


def test_a_port_in_use_is_named_before_the_worker_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    monkeypatch.setenv("OMNI_SERVICE_DATA_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = CliRunner().invoke(cli, ["--backend", "fake", "--port", str(port)])
    assert done.exit_code == UNUSABLE, done.output
    assert f"port {port} of 127.0.0.1 is already in use" in done.stderr
    assert "choose another port with --port or service.worker_base_port" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--slots", str(SLOTS_MAX + 1)), "worker_slots"),
        (("--fake-ms", "nonsense=1"), "nonsense"),
        (("--fake-ms", "unit=x"), "unit=100"),
        (("--config", "/no/such/file.json"), "does not exist"),
        (("--port", "65536"), "65535"),
    ],
)
def test_invalid_flags_are_named(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    done = CliRunner().invoke(cli, flags)
    assert done.exit_code == UNUSABLE
    assert told in done.stderr


@pytest.mark.parametrize(
    ("flags", "has_cuda", "slots"),
    [
        (("--gpu-id", "0"), True, 1),  # too small for the model, and tried all the same
        (("--worker-index", "1"), True, 52),
        (("--worker-index", "1"), False, None),  # PyTorch without CUDA
        (("--gpu-id", "1", "--slots", "4"), True, 4),
        (("--gpu-id", "1", "--backend", "fake"), True, None),
    ],
)
def test_without_a_launcher_a_worker_counts_what_fits_its_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    has_cuda: bool,
    slots: int | None,
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(
        "#!/bin/sh\nprintf '0, GPU-a, Card A, 8192\\n1, GPU-b, Card B, 81920\\n'\n",
        encoding="ascii",
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    monkeypatch.setattr(worker, "setup_logging", lambda *args, **options: None)
    served: list[Settings] = []

    def serve(app: FastAPI, settings: Settings, host: str, port: int) -> None:
        served.append(settings)
        raise ValueError  # before anything starts

    monkeypatch.setattr(worker, "DrainingServer", serve)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    port = ("--port", str(free_ports(1)))
    assert CliRunner().invoke(cli, (*flags, *port)).exit_code == UNUSABLE
    assert [settings.service.worker_slots for settings in served] == [slots]


def test_delays_of_the_fake_are_read() -> None:
    times = fake_times(["unit=7", "load=2.5"])
    assert times.unit_ms == 7 and times.load_ms == 2.5
    assert times.piece_ms == fake_times([]).piece_ms


def test_the_fake_needs_none_of_the_models_libraries() -> None:
    told = "import sys, worker; print({'torch', 'transformers'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
