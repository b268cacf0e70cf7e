"""The cascade in a real worker: its memory, and the time from a start without any model files.

Packages are installed already; the files come from where an ordinary start fetches them.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from benchmarks.embedded_questions import Report
from benchmarks.embedded_speech import in_room
from benchmarks.launched import ASK_S, LaunchedSystem, Plan, wait_until
from benchmarks.processes import PROC, family
from core.audio import FloatArray, encode_wire_audio
from core.schemas.chat import ChatRequest
from core.schemas.common import AudioContent, Message, Role, TextContent, TTSConfig
from core.schemas.worker import ModelKind
from settings.embedded import FetchProgress, read_progress

QUESTIONS: Final = 3  # after them no process grows any more
ANSWER_LIMIT_S: Final = 120.0
KB_PER_MB: Final = 1024
MAPPING: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ (?P<offset>\S+) \S+ (?P<inode>\d+)")
SIZE: Final = re.compile(r"^(?P<kind>Rss|Anonymous):\s+(?P<kb>\d+) kB")
QUESTION: Final = TextContent(text="What is your name?")
LINE_BYTES_PER_S: Final = 50e6 / 8  # of the limits: 50 Mbit/s
NANO_BYTES: Final = 70_000_000
FETCH_LIMIT_S: Final = 1_800.0


def measure_memory(questions: list[FloatArray], folder: Path, report: Report) -> None:
    """Ask a real worker spoken questions, then add up its memory; `folder` has the cascade."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        data.mkdir()
        for name in ("cascade", "nano"):  # what is missing is downloaded
            if (found := folder.resolve().with_name(name)).is_dir():
                (data / name).symlink_to(found)
        plan = Plan(backend="real", config={"model": {"embedded": "cascade"}})
        with LaunchedSystem(Path(place), plan) as system:
            for question in questions[:QUESTIONS]:
                audio = AudioContent(data=encode_wire_audio(in_room(question)))
                ask(f"{system.url}/api/chat", audio)
            used = resident_mb(family(system.pid("worker_0")))
    report.add("memory of the worker, MB", used, 1_500, QUESTIONS, is_most=True)


def resident_mb(pids: Sequence[int]) -> float:
    """Return the resident memory of processes together; pages of a file count once.

    That is the sum of their PSS where no other program maps the same files.
    """
    anonymous_kb = 0
    files_kb: dict[tuple[str, str], int] = {}  # by inode and offset
    for pid in pids:
        place, resident_kb = ("", ""), 0
        for line in (PROC / str(pid) / "smaps").read_text().splitlines():
            if mapping := MAPPING.match(line):
                place = mapping["inode"], mapping["offset"]
            elif (size := SIZE.match(line)) and size["kind"] == "Rss":
                resident_kb = int(size["kb"])
            elif size:
                anonymous_kb += int(size["kb"])
                file_kb = resident_kb - int(size["kb"])
                files_kb[place] = max(files_kb.get(place, 0), file_kb)
    return (anonymous_kb + sum(files_kb.values())) / KB_PER_MB


def ask(url: str, question: TextContent | AudioContent) -> None:
    message = Message(role=Role.USER, content=[question])
    body = ChatRequest(messages=[message], tts=TTSConfig(enabled=True)).model_dump(mode="json")
    answer = httpx.post(url, json=body, trust_env=False, timeout=ANSWER_LIMIT_S)
    answer.raise_for_status()
    assert answer.json()["audio_data"], "it speaks"


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

    wait_until("the files are there", is_complete, FETCH_LIMIT_S, ASK_S)
    assert progress is not None
    if progress.problem:
        raise RuntimeError(progress.problem)
    fetched_s = time.monotonic() - began_s
    wait_until(
        "the cascade is loaded",
        lambda: system.worker_health(0)["model"]["kind"] == ModelKind.CASCADE,
        FETCH_LIMIT_S,
        ASK_S,
    )
    return max(0.0, progress.total_bytes / LINE_BYTES_PER_S - fetched_s)
