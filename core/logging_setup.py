"""Logging of the programs: one line per event, with its session, without blocking the event loop.

Loggers of the standard library, such as uvicorn's, and of structlog produce the same lines. Called
once per program; imports nothing else of the project.
"""

from __future__ import annotations

import atexit
import logging
import queue
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

UVICORN_LOGGERS: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
CHATTY_LOGGERS: Final = ("httpx", "httpcore", "websockets")  # they log every request
QUIET_PATHS: Final = ("/health", "/metrics")  # polled every few seconds
ACCESS_PATH: Final = 2  # of uvicorn's access arguments: client, method, path, version, status
# Characters that control the terminal on which a log is read, or the order of what is shown, and
# may come from clients.
CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
SECRET_PARTS: Final = ("token", "secret", "authorization", "cookie", "password")
HIDDEN: Final = "[hidden]"
FORMATTER_FIELDS: Final = ("_record", "_from_structlog")  # read by structlog's formatter
VALUE_MAX_CHARS: Final = 2_000  # payloads are not logged in full
LINES_MAX: Final = 10_000  # capacity of the queue
REPEATS_MAX: Final = 20  # problems of one kind that are written per period
REPEATS_PERIOD_S: Final = 10.0
KINDS_MAX: Final = 1_000  # kinds that are counted; the oldest is dropped
CLOSE_LIMIT_S: Final = 2.0  # wait for the last lines, which a stopped terminal never accepts

Fields = MutableMapping[str, Any]  # structlog's type of a line before it is text


class LogWriter(logging.Handler):
    """Writes lines on a separate thread.

    When a slow disk or a stopped terminal fills the queue of `LINES_MAX` lines, new ones are
    dropped, and their number is written once lines can be written again.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.dropped = 0
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._thread = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
        except (TypeError, ValueError, KeyError):
            self.handleError(record)  # arguments that do not fit the text

    def close(self) -> None:
        """Write the queued lines, for `CLOSE_LIMIT_S` at most; harmless when called again."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._lines.put(None, timeout=CLOSE_LIMIT_S)
                self._thread.join(CLOSE_LIMIT_S)
        super().close()

    def _write(self) -> None:
        reported = 0
        while (line := self._lines.get()) is not None:
            if self.dropped > reported:
                line = f"{line}\n{self.dropped - reported} log lines were dropped before this one"
                reported = self.dropped
            # An error of the log's own stream cannot be logged.
            with suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                if self._lines.empty():
                    self._stream.flush()


def _is_not_polled(record: logging.LogRecord) -> bool:
    """Whether a line of the access log is about another path than the polled ones."""
    arguments = record.args
    if not isinstance(arguments, tuple) or len(arguments) <= ACCESS_PATH:
        return True
    return str(arguments[ACCESS_PATH]).partition("?")[0] not in QUIET_PATHS


class FewRepeats(logging.Filter):
    """Limits the problems of one kind that are logged per period, and reports how many were not.

    Problems that a client can cause repeatedly must not rotate everything else out of the log
    files. Lines below warning level are not limited.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
            record.exc_info = None  # a client sent invalid text
        fields = record.msg if isinstance(record.msg, dict) else None
        kind = record.name, str(fields.get("event") if fields is not None else record.msg)
        now_s = self._clock()
        began_s, count = self._seen.pop(kind, (now_s, 0))
        if now_s - began_s >= REPEATS_PERIOD_S:
            if fields is not None and count > REPEATS_MAX:
                fields["left_out"] = count - REPEATS_MAX
            began_s, count = now_s, 0
        self._seen[kind] = began_s, count + 1
        if len(self._seen) > KINDS_MAX:
            self._seen.popitem(last=False)
        return count < REPEATS_MAX


def setup_logging(
    level: str, *, json_lines: bool, program: str, stream: TextIO | None = None
) -> LogWriter:
    """Route every logger of the process to one stream, by default standard output.

    Each line has the program's name, such as "worker_0". The writer is closed at exit.
    """
    stream = stream or sys.stdout
    writer = LogWriter(stream)
    writer.addFilter(FewRepeats())
    writer.setFormatter(_formatter(stream, program, json_lines=json_lines))
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        if isinstance(handler, LogWriter):
            handler.close()  # of an earlier call
    root.addHandler(writer)
    root.setLevel(level)
    for name in UVICORN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name in CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("uvicorn.access").filters[:] = [_is_not_polled]
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(program),
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    atexit.register(writer.close)
    return writer


def _formatter(
    stream: TextIO, program: str, *, json_lines: bool
) -> structlog.stdlib.ProcessorFormatter:
    # The default traceback prints the values of variables, which may be conversations.
    plain = structlog.dev.plain_traceback
    text = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)
    json = structlog.processors.JSONRenderer(ensure_ascii=False, default=repr)
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, json] if json_lines else [text]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(program),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


def _shared(program: str) -> list[structlog.typing.Processor]:
    def add_program(logger: object, method: str, fields: Fields) -> Fields:
        fields["program"] = program
        return fields

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _drop_private,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        add_program,
        _hide_and_shorten,
    ]


def _drop_private(logger: object, method: str, fields: Fields) -> Fields:
    # Libraries may add fields to every record, such as `_ray_timestamp_ns` of Ray.
    for name in [name for name in fields if name.startswith("_") and name not in FORMATTER_FIELDS]:
        del fields[name]
    return fields


def _hide_and_shorten(logger: object, method: str, fields: Fields) -> Fields:
    for name, value in fields.items():
        if isinstance(value, str) and any(part in name.lower() for part in SECRET_PARTS):
            fields[name] = HIDDEN
        elif isinstance(value, str | bytes) and len(value) > VALUE_MAX_CHARS:
            fields[name] = f"{value[:VALUE_MAX_CHARS]!r}… ({len(value)} in all)"
        elif isinstance(value, str):
            fields[name] = CONTROLS.sub(lambda found: repr(found[0])[1:-1], value)
    return fields
