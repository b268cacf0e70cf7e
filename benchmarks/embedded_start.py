"""Time from a start without any model files to the first answers of nano and of the cascade.

Packages are installed already; the files come from where an ordinary start fetches them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.embedded_memory import ask
from benchmarks.embedded_report import Report
from benchmarks.launched import LaunchedSystem, Plan, wait_until
from core.schemas.common import TextContent
from core.schemas.worker import ModelKind
from settings.embedded import FetchProgress, read_progress

QUESTION: Final = TextContent(text="What is your name?")
LINE_BYTES_PER_S: Final = 50e6 / 8  # of the limits: 50 Mbit/s
NANO_BYTES: Final = 70_000_000
FETCH_LIMIT_S: Final = 1_800.0
POLL_S: Final = 0.2


def measure_start(report: Report) -> None:
    """Start with an empty data folder, and ask nano and then the cascade.

    What 50 Mbit/s would take beyond this network is added to the times measured; of nano's
    files, whose transfer is not seen here, all of it.
    """
    with tempfile.TemporaryDirectory() as place:
        plan = Plan(backend="real", config={"model": {"embedded": "auto"}})
        system = LaunchedSystem(Path(place), plan)
        began_s = time.monotonic()
        with system:
            ask(f"{system.url}/api/chat", QUESTION)
            nano_s = time.monotonic() - began_s
            slower_s = _wait_for_cascade(system)
            ask(f"{system.url}/api/chat", QUESTION)
            cascade_s = time.monotonic() - began_s
    line_s = NANO_BYTES / LINE_BYTES_PER_S
    nano_s, cascade_s = nano_s + line_s, cascade_s + line_s + slower_s
    report.add("first word of nano, s", nano_s, 60, 1, is_most=True)
    report.add("first word of the cascade, s", cascade_s, 180, 1, is_most=True)


def _wait_for_cascade(system: LaunchedSystem) -> float:
    """Wait for the cascade; return how much longer its files take at 50 Mbit/s, in seconds."""
    began_s = time.monotonic()
    progress: FetchProgress | None = None

    def is_complete() -> bool:
        nonlocal progress
        progress = read_progress(system.data)
        return progress is not None and progress.state != "fetching"

    wait_until("the files are there", is_complete, FETCH_LIMIT_S, POLL_S)
    assert progress is not None
    if progress.problem:
        raise RuntimeError(progress.problem)
    fetched_s = time.monotonic() - began_s
    wait_until(
        "the cascade is loaded",
        lambda: system.worker_health(0)["model"]["kind"] == ModelKind.CASCADE,
        FETCH_LIMIT_S,
        POLL_S,
    )
    return max(0.0, progress.total_bytes / LINE_BYTES_PER_S - fetched_s)
