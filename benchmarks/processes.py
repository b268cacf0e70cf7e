"""Resources of processes, from the Linux kernel: time, memory, ports, descendants."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

PROC = Path("/proc")
PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ (?P<offset>\S+) \S+ (?P<inode>\d+)")
SIZE = re.compile(r"^(?P<kind>Rss|Anonymous):\s+(?P<kb>\d+) kB")
KB_PER_MB = 1024
NS_PER_S = 1e9
LISTENING = "0A"  # source: the kernel's tcp_states.h, TCP_LISTEN


def resident_bytes(pid: int) -> int:
    pages = int((PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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


def cpu_s(pid: int) -> float:
    return sum(_first_number(task / "schedstat") for task in tasks(pid)) / NS_PER_S


def with_variable(name: str, content: str) -> list[int]:
    """Return the processes with this value of an environment variable, except zombies."""
    wanted = f"{name}={content}".encode()
    found = []
    for process in PROC.glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def family(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not, parents first."""
    children: dict[int, list[int]] = {}
    for status in PROC.glob("[0-9]*/status"):
        try:
            found = PARENT.search(status.read_text())
        except OSError:
            continue  # it has ended
        if found:
            children.setdefault(int(found[1]), []).append(int(status.parent.name))
    members = [pid]
    for member in members:
        members += sorted(children.get(member, ()))
    return members


def listening_ports() -> set[int]:
    ports = set()
    for table in ("tcp", "tcp6"):
        path = PROC / "net" / table
        lines = path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []
        for words in (line.split() for line in lines):
            if words[3] == LISTENING:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def tasks(pid: int) -> Iterator[Path]:
    return (PROC / str(pid) / "task").iterdir()


def _first_number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii").split()[0])
    except OSError:
        return 0  # the thread has just ended


def describe_host(*distributions: str) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        **{name: version(name) for name in distributions},
    }
