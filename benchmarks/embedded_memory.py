"""Memory of a worker with the cascade and of the processes that it starts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from benchmarks.embedded_report import Report
from benchmarks.embedded_speech import in_room
from benchmarks.launched import LaunchedSystem, Plan
from benchmarks.processes import PROC, family
from core.audio import FloatArray, encode_wire_audio
from core.schemas.chat import ChatRequest
from core.schemas.common import AudioContent, Message, Role, TextContent, TTSConfig

QUESTIONS: Final = 3  # after them no process grows any more
ANSWER_LIMIT_S: Final = 120.0
KB_PER_MB: Final = 1024
MAPPING: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ (?P<offset>\S+) \S+ (?P<inode>\d+)")
SIZE: Final = re.compile(r"^(?P<kind>Rss|Anonymous):\s+(?P<kb>\d+) kB")


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
    """Ask for a spoken answer, and check that there is one."""
    message = Message(role=Role.USER, content=[question])
    body = ChatRequest(messages=[message], tts=TTSConfig(enabled=True)).model_dump(mode="json")
    answer = httpx.post(url, json=body, trust_env=False, timeout=ANSWER_LIMIT_S)
    answer.raise_for_status()
    assert answer.json()["audio_data"], "it speaks"
