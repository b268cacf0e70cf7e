"""The launcher's output: progress bars in a terminal, time-stamped lines in a file."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from launcher.run_folder import Phase

STYLES = {Phase.READY: "green", Phase.FAILED: "red", Phase.RESTARTING: "yellow"}
PLAIN_LINE_STEP = 0.25  # minimum progress between two plain lines
PIPED_COLUMNS = 240  # of a table in a file or a pipe, where rich would assume 80


class ForgivingStream(io.TextIOBase):
    """A stream that ignores errors: a closed terminal must not stop the launcher."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream or Path(os.devnull).open("w", encoding="utf8")  # started without one

    def write(self, text: str) -> int:
        with suppress(OSError):
            # Paths may contain letters that the locale's encoding lacks.
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only here
        return self._stream.encoding or "utf8"


class Display:
    """Prints to a console, by default standard output, and to the launcher's log."""

    def __init__(self, console: Console | None = None, log: Path | None = None) -> None:
        output = cast(TextIO, ForgivingStream(sys.stdout))
        self.console = console or Console(file=output, highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console.width = PIPED_COLUMNS
        self._file: TextIO | None = None
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._file = log.open("a", encoding="utf8", errors="replace", buffering=1)

    def say(self, text: str, style: str = "") -> None:
        """Print an event; `style` is a rich style for the terminal."""
        stamped = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ} {text}"
        self.print(text if self.console.is_terminal else stamped, style)
        self._copy(stamped)

    def show(self, text: str) -> None:
        """Print text that must not be logged: only to a terminal."""
        if self.console.is_terminal:
            self.print(text, "bold")

    def error(self, text: str) -> None:
        self.say(text, "bold red")

    def quote(self, title: str, lines: Sequence[str]) -> None:
        self.say(title)
        for line in lines:
            self.print(f"  | {line}", "dim")
            self._copy(f"  | {line}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table, on the console only; phases are coloured."""
        table = Table(box=None, pad_edge=False)
        for title in columns:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*map(_cell, row))
        self.console.print(table)

    @contextmanager
    def loading(self) -> Iterator[LoadingProgress]:
        progress = LoadingProgress(self)
        with progress.bars:
            yield progress

    def close(self) -> None:
        if self._file:
            with suppress(OSError):
                self._file.close()

    def print(self, text: str, style: str = "") -> None:
        """Print text on the console only, verbatim."""
        # rich would parse `[fd00::1]` as markup and `:CD:` in a fingerprint as an emoji.
        self.console.print(text, style=style or None, markup=False, emoji=False)

    def _copy(self, text: str) -> None:
        if self._file:
            with suppress(OSError):
                self._file.write(f"{text}\n")


def _cell(value: object) -> Text:
    return Text(str(value), STYLES.get(value, "") if isinstance(value, Phase) else "")


class LoadingProgress:
    """One bar per program in a terminal, otherwise a line per change."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._shown: dict[str, tuple[str, bool, float]] = {}
        self.bars = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[stage]}", markup=False),
            console=display.console,
            auto_refresh=False,
            disable=not display.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(
        self, name: str, stage: str, progress: float | None = None, *, is_done: bool = False
    ) -> None:
        """Show a program's stage and its progress, 0 to 1, None if unknown."""
        if self.bars.disable:
            *before, done = self._shown.get(name, ("", False, 0.0))
            if before != [stage, is_done] or (progress or 0.0) - done >= PLAIN_LINE_STEP:
                self._shown[name] = (stage, is_done, progress or 0.0)
                share = "" if progress is None else f" {progress:.0%}"
                self._display.say(f"{name}: {stage}{share}")
            return
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(name, stage=stage)
        task, known = self._tasks[name], 1.0 if is_done else progress
        total = None if known is None else 1.0
        self.bars.update(task, stage=stage, total=total, completed=known or 0.0)
        if is_done:
            self.bars.stop_task(task)
        self.bars.refresh()
