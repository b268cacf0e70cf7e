"""One child process: started bound to this one, asked to end, killed if it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.schemas.worker import RESTART_EXIT_CODE
from launcher.logs import LogFile

BOUND_EXEC = Path(__file__).with_name("bound_exec.py")


def bound_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command such that the program ends when this process does, however it does."""
    return (sys.executable, "-I", "-S", str(BOUND_EXEC), str(os.getpid()), *command)


class Child:
    """A running program, alone in a process group so that a terminal's Ctrl-C does not reach it."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: LogFile
    ) -> None:
        """Start it.

        Args:
            command: program and arguments.
            environment: all variables it gets.
            folder: to run in.
            log: where what it prints goes.

        Raises:
            OSError: it could not be started, or the log not be opened.
        """
        with log.open() as output:
            self._log, self._log_begin = log, log.size()
            self._process = subprocess.Popen(
                bound_command(command),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """It is gone, and so is whatever it left behind in its group."""
        had_ended = self._process.returncode is not None
        if self._process.poll() is None:
            return False
        if not had_ended:
            self._signal_group(signal.SIGKILL)
        return True

    @property
    def how_it_ended(self) -> str:
        """In words; empty while it runs."""
        code = self._process.returncode
        if code is None:
            return ""
        if code == RESTART_EXIT_CODE:
            return "was asked to start again"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    @property
    def succeeded(self) -> bool:
        """It ended with exit code 0."""
        return self._process.returncode == 0

    @property
    def wants_restart(self) -> bool:
        """It ended because it was asked to, and is to be started again at once."""
        return self._process.returncode == RESTART_EXIT_CODE

    def last_words(self) -> list[str]:
        """Return the end of what it has printed."""
        return self._log.tail(self._log_begin)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program itself; it takes down its own helpers."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Tell it and its group to end at once."""
        if not self.has_ended:
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left in it; macOS says so with the second
