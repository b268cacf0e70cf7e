"""Commands about a system that another process runs: status, stop, start in the background."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from types import FrameType

from rich.table import Table

from launcher.display import Display
from launcher.logs import LogFile
from launcher.pids import ProcessId
from launcher.state import Phase, RunFolder

EXIT_NOT_RUNNING = 3  # source: Linux Standard Base, status of init scripts
EXIT_INTERRUPTED = 130
LOOK_S = 0.1
REPORT_S = 5.0
STYLES = {Phase.READY: "green", Phase.FAILED: "red", Phase.RESTARTING: "yellow"}


def show_status(folder: RunFolder, display: Display) -> int:
    """Print what runs.

    Returns:
        Exit code: 0 if a launcher runs, 3 if none does.
    """
    launcher, record = folder.launcher(), folder.read()
    if launcher is None:
        leftovers = folder.leftovers()
        display.console.print("Not running.")
        for name, process in leftovers.items():
            display.console.print(
                f"Left behind by a killed launcher: {name}, process {process.pid}"
            )
        return EXIT_NOT_RUNNING
    display.console.print(f"Launcher: process {launcher.pid}")
    if record is None:
        display.console.print("It has only just started.")
        return 0
    display.console.print(f"System: {record.phase} since {record.started:%Y-%m-%d %H:%M:%SZ}")
    for url in record.urls:
        display.console.print(f"  {url}")
    table = Table(box=None, pad_edge=False)
    for title in ("program", "state", "process", "address", "restarts", "on", "doing", "log"):
        table.add_column(title, overflow="fold")
    for row in record.programs:
        style = STYLES.get(row.phase, "")
        table.add_row(
            row.name,
            f"[{style}]{row.phase}[/]" if style else row.phase.value,
            str(row.pid or "-"),
            row.url,
            str(row.restarts),
            row.runs_on,
            row.note,
            str(row.log),
        )
    display.console.print(table)
    return 0


def stop(folder: RunFolder, display: Display, limit_s: float) -> int:
    """Stop the running system, or what a killed launcher left of it.

    Args:
        folder: of the system.
        display: for people.
        limit_s: longest wait for it to end by itself; then it is made to.

    Returns:
        Exit code: 0 when nothing runs any more, 1 otherwise.
    """
    launcher = folder.launcher()
    if launcher is None and not folder.leftovers():
        display.say("Nothing is running.")
        return 0
    if launcher:
        display.say(f"Stopping (process {launcher.pid}); running sessions may finish first.")
        launcher.send(signal.SIGTERM)
        if not _has_ended([launcher], limit_s, display):
            launcher.send(signal.SIGTERM)  # the second one means: at once
            if not _has_ended([launcher], limit_s, display):
                launcher.kill_group()
                _has_ended([launcher], LOOK_S, display)
    leftovers = list(folder.leftovers().values())
    for process in leftovers:
        process.send(signal.SIGTERM)
    if not _has_ended(leftovers, limit_s, display):
        for process in leftovers:
            process.kill_group()
    if launcher and launcher.is_alive:
        display.trouble("It could not be stopped.")
        return 1
    if folder.launcher() is None:
        folder.clear()
    display.say("Stopped.")
    return 0


def _has_ended(processes: Sequence[ProcessId], limit_s: float, display: Display) -> bool:
    """Wait for processes that are not our children; report while it takes long."""
    begin_s = reported_s = time.monotonic()
    while any(process.is_alive for process in processes):
        now_s = time.monotonic()
        if now_s - begin_s > limit_s:
            return False
        if now_s - reported_s > REPORT_S:
            reported_s = now_s
            display.say(f"still running after {now_s - begin_s:.0f} s")
        time.sleep(LOOK_S)
    return True


def detach(command: Sequence[str], folder: RunFolder, log: LogFile, display: Display) -> int:
    """Start the launcher in the background and follow it until the system is up.

    Args:
        command: that runs the launcher in the foreground.
        folder: of the system.
        log: where the launcher prints to.
        display: for people.

    Returns:
        Exit code: 0 once it is up, else the launcher's.
    """
    with log.open() as output:
        shown_bytes = log.size()
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        while launcher.poll() is None:
            running, record = folder.launcher(), folder.read()
            shown_bytes = _follow(log, shown_bytes, display)
            is_up = record is not None and record.phase is Phase.READY
            if is_up and running and running.pid == launcher.pid:
                return 0
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        launcher.terminate()
        launcher.wait()
        _follow(log, shown_bytes, display)
        return EXIT_INTERRUPTED
    _follow(log, shown_bytes, display)
    return launcher.returncode or 1


def _follow(log: LogFile, shown_bytes: int, display: Display) -> int:
    """Print what was added to a log; return how much of it has been printed."""
    with log.path.open("rb") as file:
        file.seek(shown_bytes)
        text = file.read()
    display.console.out(text.decode("utf8", errors="replace"), end="", highlight=False)
    return shown_bytes + len(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
