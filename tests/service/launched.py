"""Runs the launcher as a person does, in a folder of its own, and looks at what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.launched import free_ports, wait_until
from benchmarks.processes import with_variable
from launcher.processes import bound_command
from launcher.run_folder import Phase, RunFolder, SystemRecord
from tests.fakes.stand_in import Deeds
from tests.source_tree import ROOT

LIMIT_S = 120.0  # ends a test that hangs
LOOK_S = 0.05
MARK = "LAUNCHED_FOR"


def eventually(what: str, is_true: Callable[[], object]) -> None:
    wait_until(what, is_true, LIMIT_S, LOOK_S)


class Launched:
    """One folder in which the launcher is run, perhaps several times."""

    def __init__(self, folder: Path) -> None:
        """Choose free ports; nothing is started yet.

        Args:
            folder: for everything.
        """
        self.folder = folder
        self.data = folder / "data"
        self.trace_file = folder / "trace"
        self.port = free_ports(4)
        self.deeds: dict[str, Deeds] = {}
        self.variables: dict[str, str] = {}
        self.printed = folder / "printed"
        self._mark = uuid.uuid4().hex
        self._runs: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        deeds = {name: deed.as_json() for name, deed in self.deeds.items()}
        return {
            **os.environ,
            "OMNI_SERVICE_DATA_DIR": str(self.data),
            "OMNI_SERVICE_GATEWAY_HOST": "127.0.0.1",
            "OMNI_SERVICE_GATEWAY_PORT": str(self.port),
            "OMNI_SERVICE_WORKER_BASE_PORT": str(self.port + 1),
            "OMNI_SERVICE_DRAIN_TIMEOUT_S": "2",
            "OMNI_MODEL_EMBEDDED": "toy",
            "CUDA_VISIBLE_DEVICES": "",
            "STAND_IN_DEEDS": json.dumps(deeds),
            "STAND_IN_TRACE": str(self.trace_file),
            MARK: self._mark,
            **self.variables,
        }

    def run(self, *arguments: str, command: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the launcher as a terminal would: leading a process group of its own."""
        launcher = command or (sys.executable, "-m", "tests.fakes.launching", *arguments)
        with self.printed.open("ab") as output:
            process = subprocess.Popen(
                bound_command(launcher),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._runs.append(process)
        return process

    def finish(self, *arguments: str) -> int:
        """Run the launcher until it ends by itself and return its exit code."""
        return self.run(*arguments).wait(LIMIT_S)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run the launcher until the system is up."""
        process = self.run(*arguments)
        eventually("the system is up", lambda: self.is_up or process.poll() is not None)
        assert process.poll() is None, self.output
        return process

    def press_ctrl_c(self, process: subprocess.Popen[bytes]) -> int:
        os.killpg(process.pid, signal.SIGINT)
        return process.wait(LIMIT_S)

    @property
    def output(self) -> str:
        return self.printed.read_text(encoding="utf8")

    @property
    def trace(self) -> list[str]:
        if not self.trace_file.exists():
            return []
        return self.trace_file.read_text(encoding="utf8").splitlines()

    @property
    def record(self) -> SystemRecord | None:
        return RunFolder(self.data / "run").read()

    @property
    def is_up(self) -> bool:
        """Everything runs, and it is not an earlier launcher that said so."""
        # The launcher first: it removes an earlier one's record before it announces itself.
        is_alive = RunFolder(self.data / "run").launcher() is not None
        record = self.record
        return is_alive and record is not None and record.phase is Phase.READY

    def phase(self, name: str) -> Phase | None:
        record = self.record
        rows = record.programs if record else []
        return next((row.phase for row in rows if row.name == name), None)

    def pid(self, name: str) -> int:
        record = self.record
        assert record
        found = next(row.pid for row in record.programs if row.name == name)
        assert found
        return found

    def restarts(self, name: str) -> int:
        record = self.record
        assert record
        return next(row.restarts for row in record.programs if row.name == name)

    def processes(self) -> list[int]:
        """Return every process that was started from here and still runs."""
        return with_variable(MARK, self._mark)

    def left_files(self) -> list[str]:
        return sorted(path.name for path in (self.data / "run").glob("*") if path.name != "lock")

    def assert_nothing_left(self) -> None:
        eventually(f"all ended: {self.output}", lambda: not self.processes())
        assert self.left_files() == []

    def close(self) -> None:
        for process in self._runs:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
