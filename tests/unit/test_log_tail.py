"""Reading on in a log that grows, is turned over, or is not there."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from core.errors import BadRequestError, NotFoundError
from core.files import LOGS_FOLDER
from gateway_modules import administration as logs
from gateway_modules.administration import LogPart, parse_line, read_log
from launcher.processes import LogFile
from settings.workers import worker_name


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / LOGS_FOLDER / "gateway.log"
    path.parent.mkdir()
    path.touch()
    return path


def write(path: Path, *lines: str) -> None:
    with path.open("a", encoding="utf8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def texts(part: LogPart) -> list[str]:
    return [line.text for line in part.lines]


def test_the_end_of_a_log_and_what_follows(tmp_path: Path, log: Path) -> None:
    tail = partial(read_log, tmp_path)
    write(log, *(f"line {number}" for number in range(10)))
    first = tail("gateway", None, 3)
    assert texts(first) == ["line 7", "line 8", "line 9"]
    assert not first.has_more and not first.was_turned_over
    again = tail("gateway", first.cursor)
    assert again.lines == [] and again.cursor == first.cursor
    write(log, "new", "newer")
    after = tail("gateway", again.cursor)
    assert texts(after) == ["new", "newer"]
    assert tail("gateway", after.cursor).lines == []


def test_an_unfinished_line_is_held_back(tmp_path: Path, log: Path) -> None:
    tail = partial(read_log, tmp_path)
    log.write_text("whole\nhal")
    first = tail("gateway", None)
    assert texts(first) == ["whole"]
    with log.open("a") as file:
        file.write("f\n")
    assert texts(tail("gateway", first.cursor)) == ["half"]


def test_long_logs_are_returned_in_parts(tmp_path: Path, log: Path) -> None:
    tail = partial(read_log, tmp_path)
    write(log, "begin")
    part = tail("gateway", None)
    write(log, *(str(number) for number in range(1_200)))
    seen: list[str] = []
    for _ in range(3):
        part = tail("gateway", part.cursor)
        assert len(part.lines) <= 500
        seen += texts(part)
    assert seen == [str(number) for number in range(1_200)] and not part.has_more


def test_nothing_is_lost_by_a_rotation(tmp_path: Path, log: Path) -> None:
    tail, turning = partial(read_log, tmp_path), LogFile(log, max_bytes=100, kept=2)
    write(log, *(f"old line {number}" for number in range(20)))
    first = tail("gateway", None)
    write(log, "last of the old")
    turning.rotate()
    write(log, "first of the new")
    after = tail("gateway", first.cursor)
    assert texts(after) == ["last of the old", "first of the new"]
    assert after.was_turned_over
    assert tail("gateway", after.cursor).lines == []


def test_a_long_rest_of_a_rotated_file_is_returned_in_parts(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "READ_MAX_BYTES", 1_000)
    tail, turning = partial(read_log, tmp_path), LogFile(log, max_bytes=100, kept=2)
    write(log, "begin")
    part = tail("gateway", None)
    lines = [f"{number:090}" for number in range(30)]  # fewer than a part has, and longer
    write(log, *lines)
    turning.rotate()
    write(log, "new")
    seen: list[str] = []
    for _ in range(4):
        part = tail("gateway", part.cursor)
        seen += texts(part)
    assert seen == [*lines, "new"] and not part.has_more


def test_after_two_rotations_reading_continues_with_the_new_file(tmp_path: Path, log: Path) -> None:
    tail, turning = partial(read_log, tmp_path), LogFile(log, max_bytes=10, kept=2)
    write(log, "the first of all lines")
    first = tail("gateway", None)
    for number in range(2):
        turning.rotate()
        write(log, f"file number {number}")
    assert texts(tail("gateway", first.cursor)) == ["file number 1"]


def test_a_new_file_that_is_longer_than_the_old_is_recognised(tmp_path: Path, log: Path) -> None:
    tail = partial(read_log, tmp_path)
    write(log, "short")
    first = tail("gateway", None)
    log.write_text("a much longer line\nand another\n")
    assert texts(tail("gateway", first.cursor)) == ["a much longer line", "and another"]


def test_a_response_is_bounded(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "READ_MAX_BYTES", 1_000)
    tail = partial(read_log, tmp_path)
    write(log, *("x" * 90 for _ in range(100)))
    assert len(tail("gateway", None).lines) <= 11
    log.write_text("y" * 5_000)
    assert tail("gateway", None).lines == []
    cursor = logs.cursor_at(log, 0)
    part = tail("gateway", cursor)
    assert [len(line.text) for line in part.lines] == [1_000] and part.has_more


@pytest.mark.parametrize(
    "source", ["", "..", "../audit", "gateway.log", "/etc/passwd", "worker_0/..", "tiny_checkpoint"]
)
def test_only_logs_of_programs_are_read(tmp_path: Path, log: Path, source: str) -> None:
    (tmp_path / "audit.log").write_text("no\n")
    (log.parent / "tiny_checkpoint.log").write_text("no\n")
    with pytest.raises(NotFoundError):
        read_log(tmp_path, source, None)


def test_each_program_of_the_launcher_has_a_log(tmp_path: Path, log: Path) -> None:
    public = [worker_name("0.0.0.0", index) for index in (0, 7)]
    for name in ("desk", "door_0", "door_12", "webrtc", "seat_0", "seat_1023", *public):
        (log.parent / f"{name}.log").write_text("up\n")
        assert name in read_log(tmp_path, name, None).sources


def test_without_a_source_it_is_the_gateway_or_the_desk(tmp_path: Path, log: Path) -> None:
    for name in ("desk", "door_0", "cascade_files"):
        (log.parent / f"{name}.log").write_text("up\n")
    for expected in ("gateway", "desk", "door_0"):
        assert read_log(tmp_path, None, None).source == expected
        (log.parent / f"{expected}.log").unlink()
    with pytest.raises(NotFoundError, match="not started by the launcher"):
        read_log(tmp_path, None, None)


def test_symlinks_are_not_followed(tmp_path: Path, log: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("no\n")
    (log.parent / "worker_0.log").symlink_to(secret)
    with pytest.raises(NotFoundError):
        read_log(tmp_path, "worker_0", None)


def test_without_logs_the_error_explains_why(tmp_path: Path, log: Path) -> None:
    shutil.rmtree(log.parent)
    with pytest.raises(NotFoundError, match="not started by the launcher"):
        read_log(tmp_path, "gateway", None)


@pytest.mark.parametrize("cursor", ["", "x", "1-2", "-1-0-0", "1-2-zz", "9" * 40])
def test_an_invalid_cursor_is_refused(tmp_path: Path, log: Path, cursor: str) -> None:
    with pytest.raises(BadRequestError):
        read_log(tmp_path, "gateway", cursor)


@pytest.mark.parametrize(
    ("line", "time", "level", "text"),
    [
        (
            "2026-01-02T03:04:05.678901Z [warning  ] worker lost    [health] worker_id=worker_0",
            "2026-01-02T03:04:05.678901Z",
            "warning",
            "worker lost    [health] worker_id=worker_0",
        ),
        (
            '{"event":"request","level":"info","timestamp":"2026-01-02T03:04:05Z","path":"/"}',
            "2026-01-02T03:04:05Z",
            "info",
            "request path=/",
        ),
        ("Traceback (most recent call last):", None, None, "Traceback (most recent call last):"),
        ("{no json", None, None, "{no json"),
    ],
)
def test_lines_are_parsed(line: str, time: str | None, level: str | None, text: str) -> None:
    got = parse_line(line.encode())
    assert (got.time, got.level, got.text) == (time, level, text)
