"""What a person sees: progress bars in a terminal, plain lines in a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

PLAIN_LINE_STEP = 0.25  # of loading: a plain line is printed when this much more is done


@dataclass(frozen=True)
class Loading:
    """How far one program is.

    Attributes:
        name: of the program.
        stage: what it is doing.
        progress: 0 to 1, None if unknown.
        is_done: nothing is left to do.
    """

    name: str
    stage: str
    progress: float | None = None
    is_done: bool = False


class ForgivingStream(io.TextIOBase):
    """A stream that may go away; a closed terminal is no reason to leave programs behind."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream for as long as it takes anything."""
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or do not."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or do not."""
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only here
        """How text becomes bytes."""
        return self._stream.encoding or "utf8"


class Display:
    """Prints, and keeps a copy in the launcher's own log."""

    def __init__(self, console: Console | None = None, log: Path | None = None) -> None:
        """Print to a console.

        Args:
            console: where to; None is standard output.
            log: file that gets a copy, None for none.
        """
        output = cast(TextIO, ForgivingStream(sys.stdout))
        self.console = console or Console(file=output, highlight=False, soft_wrap=True)
        self._file: TextIO | None = None
        self._log: ForgivingStream | None = None
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._file = log.open("a", encoding="utf8", buffering=1)
            self._log = ForgivingStream(self._file)

    def say(self, text: str, style: str = "") -> None:
        """Print something that happened.

        Args:
            text: one or more lines.
            style: of rich, for the console only.
        """
        is_terminal = self.console.is_terminal
        stamped = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ} {text}"
        self._print(text if is_terminal else stamped, style)
        self._copy(stamped)

    def show(self, text: str) -> None:
        """Print what is for the person at the terminal alone: no file gets it."""
        if self.console.is_terminal:
            self._print(text, "bold")

    def trouble(self, text: str) -> None:
        """Print something that went wrong."""
        self.say(text, "bold red")

    def quote(self, title: str, lines: Sequence[str]) -> None:
        """Print what a program wrote, set off."""
        self.say(title)
        for line in lines:
            self._print(f"  | {line}", "dim")
            self._copy(f"  | {line}")

    def close(self) -> None:
        """Close the copy."""
        if self._file:
            with suppress(OSError):
                self._file.close()

    def _print(self, text: str, style: str) -> None:
        # As it is: rich would find markup in `[of what]` and a disc in the fingerprint 99:CD:88.
        self.console.print(text, style=style or None, markup=False, emoji=False)

    def _copy(self, text: str) -> None:
        if self._log:
            self._log.write(f"{text}\n")

    def loading(self) -> LoadingBars | LoadingLines:
        """Return a progress display for programs that start together."""
        return LoadingBars(self.console) if self.console.is_terminal else LoadingLines(self)


class LoadingBars:
    """One bar a program; drawn when told to, by nobody's thread."""

    def __init__(self, console: Console) -> None:
        """Draw on a terminal."""
        columns: list[ProgressColumn] = [
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[stage]}", markup=False),
        ]
        self._bars = Progress(*columns, console=console, auto_refresh=False)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Begin drawing."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the last picture standing."""
        self._bars.stop()

    def show(self, programs: Iterable[Loading]) -> None:
        """Draw how far each program is."""
        for program in programs:
            task = self._tasks.get(program.name)
            if task is None:
                task = self._bars.add_task(program.name, total=None, stage=program.stage)
                self._tasks[program.name] = task
            known = program.progress if not program.is_done else 1.0
            self._bars.update(
                task,
                stage=program.stage,
                total=None if known is None else 1.0,
                completed=known or 0.0,
            )
            if program.is_done:
                self._bars.stop_task(task)
        self._bars.refresh()


class LoadingLines:
    """A line when something changes."""

    def __init__(self, display: Display) -> None:
        """Print through a display."""
        self._display = display
        self._shown: dict[str, Loading] = {}

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; nothing is left open."""

    def show(self, programs: Iterable[Loading]) -> None:
        """Print what changed."""
        for program in programs:
            before = self._shown.get(program.name)
            if before is None or _differs(before, program):
                self._shown[program.name] = program
                share = "" if program.progress is None else f" {program.progress:.0%}"
                self._display.say(f"{program.name}: {program.stage}{share}")


def _differs(before: Loading, now: Loading) -> bool:
    grown = (now.progress or 0.0) - (before.progress or 0.0)
    return now.stage != before.stage or now.is_done != before.is_done or grown >= PLAIN_LINE_STEP
