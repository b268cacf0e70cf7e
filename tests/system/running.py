"""The real system under test, started as a person does, and what must be left of it: nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks import processes
from benchmarks.launched import LaunchedSystem, Plan, wait_until
from core.files import TOKEN_FILE
from gateway_modules.web.security import ADMIN_HEADER
from launcher.plan import SECRET_VARIABLE
from tests.source_tree import ROOT

LIMIT_S = 120.0  # ends a test that hangs; how long something takes here says nothing


@dataclass(frozen=True)
class Holdings:
    """Resources of one process.

    Attributes:
        sockets: open ones, including listening ones.
        files: open regular files, by path.
    """

    sockets: int
    files: tuple[str, ...]
    threads: int


def holdings(pid: int) -> Holdings:
    targets = list(_open_descriptors(pid))
    return Holdings(
        sockets=sum(target.startswith("socket:") for target in targets),
        files=tuple(sorted(target for target in targets if Path(target).is_file())),
        threads=sum(1 for _ in processes.tasks(pid)),
    )


def _open_descriptors(pid: int) -> Iterator[str]:
    for link in (processes.PROC / str(pid) / "fd").iterdir():
        try:
            yield str(link.readlink())
        except OSError:
            continue  # closed meanwhile


class RunningSystem(LaunchedSystem):
    """One system in a folder of its own."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Make the folder; nothing is started yet."""
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, plan)

    def log(self, name: str) -> str:
        return (self.data / "logs" / f"{name}.log").read_text(encoding="utf8")

    @property
    def admin_headers(self) -> dict[str, str]:
        """What an administrator shows: the configured token, else the one the start made."""
        configured = self.plan.config.get("security", {}).get("admin_token")
        return {ADMIN_HEADER: configured or (self.data / TOKEN_FILE).read_text().strip()}

    def worker_secret(self, index: int) -> str:
        """Return what a worker and the gateway share, as the launcher handed it over."""
        environment = Path(f"/proc/{self.pid(f'worker_{index}')}/environ").read_bytes()
        mark = f"{SECRET_VARIABLE}=".encode()
        (secret,) = (part for part in environment.split(b"\0") if part.startswith(mark))
        return secret.removeprefix(mark).decode()

    # Any: what httpx takes.
    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Call a route of the gateway as an administrator, from outside a loop."""
        return httpx.request(
            method,
            self.url + path,
            headers=self.admin_headers,
            trust_env=False,
            verify=False,
            **given,
        )

    # Any: what httpx takes.
    async def call(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **given: Any
    ) -> httpx.Response:
        """Call a route of the gateway, as an administrator unless other headers are given."""
        shown = self.admin_headers if headers is None else headers
        # Without TLS there is nothing to verify, and no certificates to load for it.
        async with httpx.AsyncClient(
            base_url=self.url, headers=shown, trust_env=False, timeout=60, verify=False
        ) as http:
            return await http.request(method, path, **given)

    def metrics(self, name: str) -> list[str]:
        index = self.names.index(name)
        url = self.url if index == 0 else self.worker_url(index - 1)
        return httpx.get(
            f"{url}/metrics", trust_env=False, timeout=60, verify=False
        ).text.splitlines()

    def holdings(self) -> dict[str, Holdings]:
        return {name: holdings(self.pid(name)) for name in self.names}

    def assert_nothing_left(self) -> None:
        """No process, no listening socket, no process id on disk; and nothing went wrong inside."""
        wait_until("every process ended", lambda: not self.processes(), LIMIT_S)
        assert sorted(path.name for path in (self.data / "run").iterdir()) == ["lock"]
        ours = set(range(self.port, self.port + self.plan.workers + 1))
        assert not processes.listening_ports() & ours
        for name in self.names:
            assert "Traceback" not in self.log(name), name


def start_command() -> tuple[str, ...]:
    """Return the command a person types, or what it becomes where it would install first."""
    stamp = ROOT / ".venv" / "installed"
    newest = (ROOT / "pyproject.toml").stat().st_mtime
    is_set_up = stamp.exists() and stamp.stat().st_mtime > newest
    is_set_up = is_set_up and (ROOT / "node_modules" / ".installed").exists()
    if is_set_up and Path(sys.prefix) == ROOT / ".venv":
        return ("./start_all.sh",)
    return (sys.executable, "-m", "launcher")
