"""Resources of the machine: GPUs, as listed by nvidia-smi, CPUs, free ports."""

from __future__ import annotations

import errno
import glob
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.processes import bound_command

QUERY_LIMIT_S = 20
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
QUERY_FIELDS = 4
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"  # by default CUDA numbers the fastest GPU 0
MIB_PER_GIB = 1024
LISTENING = "0A"  # source: Linux, include/net/tcp_states.h
SHOWN_COMMAND_CHARS = 80


@dataclass(frozen=True)
class Gpu:
    index: int  # number in the driver
    visible_as: str  # value of `CUDA_VISIBLE_DEVICES` that exposes only this GPU
    name: str
    memory_gib: float  # total memory, 0 if unknown


class PortError(Exception):
    """A port cannot be used; the text gives port and reason."""


def find_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs visible to this process, in its order."""
    installed = _installed()
    visible = environment.get(VISIBLE)
    if visible is None or not installed:
        return [gpu for gpu, _ in installed]
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = next((gpu for gpu, uuid in installed if _names(entry, gpu, uuid)), None)
        if match is None and entry.startswith("MIG-"):
            match = Gpu(len(chosen), entry, "MIG slice", 0.0)
        if match is None:
            break  # entries after an unknown one are ignored. Source: CUDA programming guide
        chosen.append(Gpu(match.index, entry, match.name, match.memory_gib))
    return chosen


def _names(entry: str, gpu: Gpu, uuid: str) -> bool:
    """Whether an entry is the GPU's number or a prefix of its UUID."""
    return entry == str(gpu.index) or (entry.startswith("GPU-") and uuid.startswith(entry))


def _installed() -> list[tuple[Gpu, str]]:
    """Return every GPU of the machine with its UUID; none without a working driver."""
    try:
        answer = subprocess.run(
            bound_command(QUERY), capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.stdout.splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) != QUERY_FIELDS or not fields[0].isdigit():
            continue
        index, uuid, name, memory_mib = fields
        memory_gib = float(memory_mib) / MIB_PER_GIB if memory_mib.isdigit() else 0.0
        found.append((Gpu(int(index), index, name, memory_gib), uuid))
    return found


def cpu_count() -> int:
    """Return the number of CPUs that this process, and so its programs, may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_port(host: str, port: int, setting: str = "") -> None:
    """Raise a PortError if no server can listen on the address, whose port `setting` chooses."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise PortError(f"{host} is not an address of this machine: {error}") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do, so that lingering connections of the last run do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            reasons = {
                errno.EADDRINUSE: f"is already in use{_listener(port)}",
                errno.EACCES: "requires root; choose a port above 1023",
            }
            reason = reasons.get(error.errno or 0, f"cannot be used: {error.strerror}")
            is_used = error.errno == errno.EADDRINUSE
            remedy = "stop that program or choose another port with" if is_used else "it is set by"
            chosen_by = f"; {remedy} {setting}" if setting else ""
            raise PortError(f"port {port} of {host} {reason}{chosen_by}") from error


def _listener(port: int) -> str:
    """Name the process that listens on a port, if it is one whose sockets this user may see."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            listening = [row for row in rows if row[3] == LISTENING]
            sockets |= {f"socket:[{row[9]}]" for row in listening if row[1][-4:] == f"{port:04X}"}
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):  # the process has ended, or is another user's
            if os.readlink(descriptor) in sockets:
                process = Path(descriptor).parents[1]
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                command = " ".join(words).strip()[:SHOWN_COMMAND_CHARS]
                return f" by process {process.name} ({command})"
    return ""
