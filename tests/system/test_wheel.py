"""The wheel, installed without the repository: its server answers its client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.launched import Plan
from tests.source_tree import ROOT
from tests.system.running import LIMIT_S, RunningSystem

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
OFFLINE = ("--no-deps", "--no-index")
OTHERS = ("config", "core", "gateway", "settings", "worker")  # names that other packages have too
HOLD_A_CALL = """
import sys
from array import array
from minicpmo_live import Client
assert not {"torch", "numpy", "core"} & sys.modules.keys()
with Client(sys.argv[1]).duplex() as call:
    print([event.type for event in call.play(array("f", [0.0]) * 16_000, rest_s=1)])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as site-packages are, with the wheel and packages that have our names."""
    folder, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    build = (*PIP, "wheel", "--no-build-isolation", *OFFLINE, "--wheel-dir", str(wheels), str(ROOT))
    subprocess.run(build, check=True, cwd=wheels)
    (wheel,) = wheels.glob("*.whl")
    install = (*PIP, "install", *OFFLINE, "--no-compile", "--target", str(folder), str(wheel))
    subprocess.run(install, check=True, cwd=wheels)
    assert {path.name for path in folder.iterdir() if path.suffix != ".dist-info"} == {
        "bin",
        "minicpmo_live",
    }
    assert (folder / "minicpmo_live" / "py.typed").exists(), "its types are public: PEP 561"
    for name in OTHERS:
        (folder / f"{name}.py").write_text("raise ImportError('of another package')")
    return folder


@pytest.fixture(scope="module")
def environment(installed: Path) -> dict[str, str]:
    """Return variables with which a program finds what is installed, and not the repository."""
    home = installed.parent / "home"
    return {"PYTHONPATH": str(installed), "MINICPMO_HOME": str(home), "NO_PROXY": "*"}


@pytest.fixture(scope="module")
def running(
    installed: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningSystem]:
    command = (sys.executable, str(installed / "bin" / "minicpmo-live"), "serve")
    plan = Plan(backend="real", command=command, variables=environment)
    system = RunningSystem(tmp_path_factory.mktemp("wheel"), plan)
    with system:
        yield system
        assert system.stop() == 0


def test_the_installed_server_answers_the_installed_client(
    running: RunningSystem, installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    for name in running.names:
        command = Path(f"/proc/{running.pid(name)}/cmdline").read_text(encoding="utf8")
        assert str(installed / "minicpmo_live" / "server") in command
    done = subprocess.run(
        [sys.executable, "-c", HOLD_A_CALL, running.url],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'result'") == 2, done.stdout


def test_the_installed_pages_are_built(running: RunningSystem) -> None:
    page = running.ask("GET", "/")
    assert page.status_code == 200
    assert "/static/v-" in page.text
    assert "unbundled" not in running.log("gateway")


def test_the_installed_command_examines_the_machine(
    running: RunningSystem, installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    port = str(running.port)  # which is in use
    done = subprocess.run(
        [sys.executable, installed / "bin" / "minicpmo-live", "doctor"],
        cwd=tmp_path,
        env={**os.environ, **environment, "OMNI_SERVICE_GATEWAY_PORT": port},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert f"port {port} of 0.0.0.0 is already in use" in done.stdout
    assert f"user files: {environment['MINICPMO_HOME']}" in done.stdout
