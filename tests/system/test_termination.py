"""A program that launched a system takes it along when it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.launched import wait_until

LIMIT_S = 120.0

LAUNCHER = """
import json, pathlib, signal, sys
config = json.loads(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
run = pathlib.Path(config["service"]["data_dir"]) / "run"
run.mkdir(parents=True)
(run / "state.json").write_text(json.dumps({"phase": "ready"}))
signal.pause()
"""
PROGRAM = """
import pathlib, signal, sys
from benchmarks.launched import LaunchedSystem, Plan
plan = Plan(command=(sys.executable, "-c", sys.argv[2]))
with LaunchedSystem(pathlib.Path(sys.argv[1]), plan) as system:
    print(*system.processes(), flush=True)
    signal.pause()
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_sigterm_stops_what_was_launched(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), LAUNCHER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        launched = [int(word) for word in program.stdout.readline().split()]
        assert launched
        program.send_signal(signal.SIGTERM)
        program.wait(LIMIT_S)
    wait_until("all has ended", lambda: not any(map(is_running, launched)), LIMIT_S)
