"""What a person sees while the system starts."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO, cast

import pytest
from rich.console import Console

from launcher import control
from launcher.display import Display, ForgivingStream
from launcher.run_folder import Phase, RunFolder, SystemRecord


def on_terminal() -> tuple[Display, io.StringIO]:
    """A display on a terminal of 100 columns, and what was printed there."""
    screen = io.StringIO()
    return Display(Console(file=screen, force_terminal=True, width=100)), screen


def test_a_terminal_gets_a_bar_that_fills() -> None:
    display, screen = on_terminal()
    with display.loading() as bars:
        bars.show("worker_0", "starting")
        bars.show("worker_0", "reading [weights]", 0.4)
        bars.show("worker_0", "ready", None, is_done=True)
    text = screen.getvalue()
    assert "reading [weights]" in text  # not taken for markup
    assert "40%" in text
    assert "100%" in text
    assert "━" in text


def test_a_file_gets_a_line_when_something_changes() -> None:
    screen = io.StringIO()
    display = Display(Console(file=screen, width=100))
    with display.loading() as lines:
        for progress in (None, 0.0, 0.05, 0.1, 0.3, 0.31, 0.56):
            lines.show("worker_0", "loading", progress)
            lines.show("worker_1", "x")
        lines.show("worker_0", "ready", 1.0, is_done=True)
    said = [line.partition("Z ")[2] for line in screen.getvalue().splitlines()]
    assert said == [
        "worker_0: loading",
        "worker_1: x",
        "worker_0: loading 30%",
        "worker_0: loading 56%",
        "worker_0: ready 100%",
    ]


def test_a_copy_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "launcher.log"
    display = Display(Console(file=io.StringIO()), log)
    display.say("worker_0 died [of what]")
    display.quote("It printed:", ["Traceback"])
    display.close()
    lines = log.read_text(encoding="utf8").splitlines()
    assert lines[0].endswith("Z worker_0 died [of what]")
    assert lines[2] == "  | Traceback"


def test_texts_are_printed_as_they_are() -> None:
    screen = io.StringIO()
    display = Display(Console(file=screen, width=100))
    display.say("SHA-256 99:CD:88 [of what]")
    assert "SHA-256 99:CD:88 [of what]" in screen.getvalue()


class ClosedTerminal(io.StringIO):
    """A terminal whose window was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_closed_terminal_stops_nothing() -> None:
    stream = cast(TextIO, ForgivingStream(ClosedTerminal()))
    display = Display(Console(file=stream, force_terminal=True))
    display.error("x")
    with display.loading() as bars:
        bars.show("worker_0", "starting")


def test_a_program_started_without_standard_output_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    log = tmp_path / "launcher.log"
    display = Display(log=log)
    display.say("Ready.")
    display.close()
    assert log.read_text(encoding="utf8").endswith("Ready.\n")


@pytest.mark.parametrize(("letter", "logged"), [("中", "中"), ("\udcff", "?")])
def test_letters_that_an_encoding_lacks_stop_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, letter: str, logged: str
) -> None:
    shown, log = io.BytesIO(), tmp_path / "launcher.log"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="iso-8859-1"))
    display = Display(log=log)
    display.say(f"logs: /data/ü{letter}")
    display.close()
    assert shown.getvalue().decode("iso-8859-1").endswith("/data/ü?\n")
    assert log.read_text(encoding="utf8").endswith(f"/data/ü{logged}\n")


def test_cells_of_a_table_are_shown_as_they_are() -> None:
    display, screen = on_terminal()
    display.table(["program", "state"], [["worker_0", Phase.READY], ["[rank0] [/weights]", 7]])
    assert "[rank0] [/weights]" in screen.getvalue()
    assert "\x1b[32mready" in screen.getvalue()


def test_a_long_row_of_a_table_in_a_pipe_stays_on_one_line() -> None:
    piped = io.StringIO()
    Display(Console(file=piped)).table(["program", "log"], [["worker_0", "x" * 120]])
    assert "x" * 120 in piped.getvalue()


def test_the_status_shows_an_ipv6_address(tmp_path: Path) -> None:
    screen = io.StringIO()
    display = Display(Console(file=screen, highlight=False))
    folder, url = RunFolder(tmp_path), "https://[fd00::1]:8006"
    started = datetime(2026, 1, 1, tzinfo=UTC)
    with folder.held():
        folder.write(SystemRecord(phase=Phase.READY, started=started, urls=[url], programs=[]))
        assert control.show_status(folder, display) == 0
    assert url in screen.getvalue()
    assert "System: ready, started 2026-01-01 00:00:00Z" in screen.getvalue()
