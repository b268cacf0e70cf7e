"""Log lines: one format for all, the session on each, no payload, no waiting."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
import structlog

from core.logging_setup import (
    HIDDEN,
    LINES_MAX,
    REPEATS_MAX,
    REPEATS_PERIOD_S,
    VALUE_MAX_CHARS,
    FewRepeats,
    LogWriter,
    setup_logging,
)

Setup = Callable[..., LogWriter]

LIMIT_S = 120.0  # ends a test that hangs


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def setup(stream: io.StringIO) -> Iterator[Setup]:
    """Set logging up; everything is as before afterwards."""
    root = logging.getLogger()
    before, usual_log = (root.handlers[:], root.level), structlog.get_config()
    writers = []

    def make(level: str = "INFO", *, json_lines: bool = True) -> LogWriter:
        writers.append(
            setup_logging(level, json_lines=json_lines, program="worker_0", stream=stream)
        )
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()
        root.removeHandler(writer)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    structlog.configure(**usual_log)
    logging.captureWarnings(False)


def lines(stream: io.StringIO, writer: LogWriter) -> list[dict[str, object]]:
    """Return what was written, after everything was."""
    writer.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_both_kinds_of_logger_give_the_same_line(setup: Setup, stream: io.StringIO) -> None:
    writer = setup()
    structlog.stdlib.get_logger("ours").info("opened", mode="duplex")
    logging.getLogger("ours").info("opened", extra={"mode": "duplex", "_mark": 1})
    first, second = lines(stream, writer)
    times = (first.pop("timestamp"), second.pop("timestamp"))
    assert all(str(time).endswith("Z") for time in times)
    assert first == second
    assert first == {
        "event": "opened",
        "level": "info",
        "logger": "ours",
        "mode": "duplex",
        "program": "worker_0",
    }


def test_the_session_is_on_every_line_of_its_tasks_and_on_no_other(
    setup: Setup, stream: io.StringIO
) -> None:
    writer = setup()
    log = structlog.stdlib.get_logger("x")

    async def child(name: str) -> None:
        await asyncio.sleep(0)
        logging.getLogger("library").warning(name)

    async def session(name: str) -> None:
        with structlog.contextvars.bound_contextvars(session_id=name, request_id=f"r-{name}"):
            task = asyncio.create_task(child(name))
            await asyncio.sleep(0)
            log.info(name)
            await task
        log.info("outside")

    async def both() -> None:
        await asyncio.gather(session("a"), session("b"))

    asyncio.run(both())
    found = lines(stream, writer)
    assert len(found) == 6
    for line in found:
        expected = None if line["event"] == "outside" else line["event"]
        assert line.get("session_id") == expected
        assert ("request_id" in line) == (expected is not None)


def test_uvicorn_logs_like_everyone_but_not_every_health_check(
    setup: Setup, stream: io.StringIO
) -> None:
    for name in ("uvicorn", "uvicorn.access"):
        logging.getLogger(name).addHandler(logging.StreamHandler(stream))
    writer = setup()
    access = '%s - "%s %s HTTP/%s" %d'
    for path in ("/health", "/metrics?x=1", "/api/chat", "/healthy"):
        logging.getLogger("uvicorn.access").info(access, "127.0.0.1:1", "GET", path, "1.1", 200)
    logging.getLogger("uvicorn.error").info("Application startup complete.")
    logging.getLogger("httpx").info("HTTP Request: GET")
    events = [line["event"] for line in lines(stream, writer)]
    assert events == [
        '127.0.0.1:1 - "GET /api/chat HTTP/1.1" 200',
        '127.0.0.1:1 - "GET /healthy HTTP/1.1" 200',
        "Application startup complete.",
    ]


def test_secrets_and_payloads_stay_out(setup: Setup, stream: io.StringIO) -> None:
    writer = setup()
    log = structlog.stdlib.get_logger()
    log.info("x", admin_token="abc", **{"X-Worker-Secret": "abc"}, n_tokens=3)
    log.info("x", audio="A" * (VALUE_MAX_CHARS + 1))
    secret, payload = lines(stream, writer)
    assert (secret["admin_token"], secret["X-Worker-Secret"]) == (HIDDEN, HIDDEN)
    assert secret["n_tokens"] == 3
    assert len(str(payload["audio"])) < VALUE_MAX_CHARS + 50
    assert f"({VALUE_MAX_CHARS + 1} in all)" in str(payload["audio"])


def test_a_traceback_shows_no_values(setup: Setup, stream: io.StringIO) -> None:
    writer = setup()
    conversation = "private"
    try:
        raise RuntimeError(f"{len(conversation)} failed")
    except RuntimeError:
        logging.getLogger().exception("it failed")
        structlog.stdlib.get_logger().exception("it failed")
    logged = lines(stream, writer)
    assert len(logged) == 2
    for line in logged:
        assert "RuntimeError: 7 failed" in str(line["exception"])
        assert "'private'" not in str(line["exception"])


def test_text_for_people(setup: Setup, stream: io.StringIO) -> None:
    writer = setup(json_lines=False)
    with structlog.contextvars.bound_contextvars(session_id="s-1"):
        structlog.stdlib.get_logger("ours").warning("slow", wait_s=2)
    writer.close()
    text = stream.getvalue()
    assert "warning" in text
    assert "slow" in text
    assert "session_id=s-1" in text
    assert "\x1b" not in text  # no colours in a file


def test_the_level_holds_for_both_kinds(setup: Setup, stream: io.StringIO) -> None:
    writer = setup("WARNING")
    logging.getLogger("x").info("no")
    structlog.stdlib.get_logger("x").info("no")
    structlog.stdlib.get_logger("x").warning("yes")
    assert [line["event"] for line in lines(stream, writer)] == ["yes"]


def test_setting_up_again_replaces_the_first(setup: Setup, stream: io.StringIO) -> None:
    setup()
    writer = setup()
    logging.getLogger("x").info("once")
    assert len(lines(stream, writer)) == 1


def test_arguments_that_do_not_fit_end_nothing(
    setup: Setup, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    writer = setup()
    logging.getLogger("x").info("%d", "no number")
    logging.getLogger("x").info("next")
    assert [line["event"] for line in lines(stream, writer)] == ["next"]


class StuckStream(io.StringIO):
    """A terminal that takes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.released.wait(LIMIT_S)
        return super().write(text)


def test_a_stuck_terminal_holds_nobody_up_and_lost_lines_are_counted() -> None:
    stuck = StuckStream()
    writer = LogWriter(stuck)
    record = logging.LogRecord("x", logging.INFO, "", 0, "line", None, None)
    writer.emit(record)
    assert stuck.entered.wait(LIMIT_S)  # the writer holds one line; the queue is empty
    for _ in range(LINES_MAX + 7):
        writer.emit(record)
    assert writer.dropped == 7
    stuck.released.set()
    writer.close()
    assert "7 log lines were dropped" in stuck.getvalue()
    assert stuck.getvalue().count("line\n") == LINES_MAX + 1


class BrokenStream(io.StringIO):
    """A full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_nothing() -> None:
    writer = LogWriter(BrokenStream())
    for _ in range(3):
        writer.emit(logging.LogRecord("x", logging.INFO, "", 0, "line", None, None))
    writer.close()
    assert writer.dropped == 0


def test_what_happens_again_and_again_is_written_a_few_times(
    setup: Setup, stream: io.StringIO
) -> None:
    writer = setup()
    for number in range(1_000):
        logging.getLogger("asyncio").error("no more sockets for %d", number)
        structlog.get_logger("http").warning("socket refused", number=number)
        structlog.get_logger("http").info("request", number=number)
    structlog.get_logger("http").warning("something else")
    told = [line["event"] for line in lines(stream, writer)]
    assert told.count("socket refused") == REPEATS_MAX
    assert sum(str(event).startswith("no more") for event in told) == REPEATS_MAX
    assert told.count("request") == 1_000
    assert told.count("something else") == 1


def test_what_was_left_out_is_counted_later() -> None:
    now_s = 0.0
    few = FewRepeats(lambda: now_s)

    def line() -> logging.LogRecord:
        fields = {"event": "socket refused"}
        return logging.LogRecord("http", logging.WARNING, "", 0, fields, None, None)  # type: ignore[arg-type]

    assert sum(few.filter(line()) for _ in range(REPEATS_MAX + 5)) == REPEATS_MAX
    now_s = REPEATS_PERIOD_S
    next_line = line()
    assert few.filter(next_line)
    assert next_line.msg == {"event": "socket refused", "left_out": 5}


def test_bad_text_of_a_client_writes_no_traceback(setup: Setup, stream: io.StringIO) -> None:
    writer = setup(json_lines=False)
    try:
        b"\xff".decode()
    except UnicodeDecodeError:
        logging.getLogger("uvicorn.error").exception("Invalid UTF-8 sequence received.")
    writer.close()
    assert stream.getvalue().count("\n") == 1


def test_no_character_of_a_client_controls_the_terminal(setup: Setup, stream: io.StringIO) -> None:
    writer = setup(json_lines=False)
    structlog.stdlib.get_logger("ours").info("request", path="/\x1b]0;title\x07\x9b2J")
    writer.close()
    assert "/\\x1b]0;title\\x07\\x9b2J" in stream.getvalue()
    assert "\x1b]" not in stream.getvalue() and "\x9b" not in stream.getvalue()


def test_no_character_of_a_client_reorders_a_line(setup: Setup, stream: io.StringIO) -> None:
    writer = setup(json_lines=True)
    structlog.stdlib.get_logger("ours").info("request", path="/a\u202eb\u2066c\u2028d")
    (line,) = lines(stream, writer)
    assert line["path"] == "/a\\u202eb\\u2066c\\u2028d"
