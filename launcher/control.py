"""Commands for a running system: status, stop, start in the background."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from launcher.display import Display
from launcher.plan import COMMAND
from launcher.processes import LogFile, ProcessId, end_processes, until
from launcher.run_folder import AlreadyRunningError, Phase, RunFolder
from launcher.system import EXIT_FAILED, EXIT_INTERRUPTED

EXIT_NOT_RUNNING = 3  # source: Linux Standard Base, status of init scripts
POLL_S = 0.1
REPORT_S = 5.0
COLUMNS = ("program", "state", "process", "address", "restarts", "on", "doing", "log")


def show_status(folder: RunFolder, display: Display) -> int:
    """Print what runs; return 0 if a launcher runs and 3 if none does."""
    launcher, record = folder.launcher(), folder.read()
    show = display.print
    if launcher is None:
        show("Not running.")
        for name, process in folder.leftovers().items():
            show(f"Left over from a killed launcher: {name}, process {process.pid}")
        return EXIT_NOT_RUNNING
    show(f"Launcher: process {launcher.pid}")
    if record is None:
        show("It is starting.")
        return 0
    show(f"System: {record.phase}, started {record.started:%Y-%m-%d %H:%M:%SZ}")
    for url in record.urls:
        show(f"  {url}")
    rows = [
        (one.name, one.phase, one.pid or "-", one.url, one.restarts, one.runs_on, one.note, one.log)
        for one in record.programs
    ]
    display.table(COLUMNS, rows)
    return 0


def report_running(folder: RunFolder, display: Display) -> int:
    launcher, record = folder.launcher(), folder.read()
    who = f"process {launcher.pid}" if launcher else "another process"
    display.error(f"It is already running ({who}).")
    for url in record.urls if record else []:
        display.say(f"  {url}")
    display.say(f"  status: {COMMAND} --status   stop: {COMMAND} --stop")
    return EXIT_FAILED


async def stop(folder: RunFolder, display: Display, limit_s: float) -> int:
    """Stop the system, or what a killed one left; kill after `limit_s`; return the exit code."""
    launcher = folder.launcher()
    if launcher is None and not folder.leftovers():
        display.say("Not running.")
        return 0
    if launcher:
        display.say(f"Stopping (process {launcher.pid}); running sessions may finish first.")
        for _ in range(2):  # the second signal ends sessions at once
            launcher.send(signal.SIGTERM)
            if await _has_ended(launcher, limit_s, display):
                break
        launcher.kill_group()
    await end_processes(folder.leftovers().values(), POLL_S, limit_s)
    left = [*(["launcher"] if launcher and launcher.is_alive else []), *folder.leftovers()]
    if left:
        display.error(f"Could not be stopped: {', '.join(left)}.")
        return EXIT_FAILED
    with suppress(AlreadyRunningError, OSError), folder.held():
        pass  # which removes the files
    display.say("Stopped.")
    return 0


async def _has_ended(process: ProcessId, limit_s: float, display: Display) -> bool:
    begin_s = time.monotonic()
    while not await until(lambda: not process.is_alive, POLL_S, min(REPORT_S, limit_s)):
        waited_s = time.monotonic() - begin_s
        if waited_s > limit_s:
            return False
        display.say(f"still running after {waited_s:.0f} s")
    return True


def detach(command: Sequence[str], folder: RunFolder, log: LogFile, display: Display) -> int:
    """Start the launcher in the background and print its log; return 0 once ready."""
    with log.open() as output:
        shown_bytes = log.size()
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        while launcher.poll() is None:
            running, record = folder.launcher(), folder.read()
            shown_bytes = _follow(log, shown_bytes, display)
            is_up = record is not None and record.phase is Phase.READY
            if is_up and running and running.pid == launcher.pid:
                return 0
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        launcher.terminate()
        launcher.wait()
        return EXIT_INTERRUPTED
    finally:
        _follow(log, shown_bytes, display)
    return launcher.returncode or EXIT_FAILED


def _follow(log: LogFile, shown_bytes: int, display: Display) -> int:
    """Print the log from `shown_bytes` on; return the new offset."""
    with log.path.open("rb") as file:
        file.seek(shown_bytes)
        text = file.read()
    display.console.out(text.decode("utf8", errors="replace"), end="", highlight=False)
    return shown_bytes + len(text)
