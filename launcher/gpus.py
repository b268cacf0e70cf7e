"""Which GPUs there are for workers; asks the driver's own tool, never a tensor library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.process import bound_command

QUERY_LIMIT_S = 20
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
VISIBLE = "CUDA_VISIBLE_DEVICES"
MIB_PER_GIB = 1024


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: the driver's number.
        visible_as: what `CUDA_VISIBLE_DEVICES` must say for a process to see it alone.
        name: the product's.
        memory_gib: its memory.
    """

    index: int
    visible_as: str
    name: str
    memory_gib: float


def find_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs this process may use, in the order in which it sees them."""
    installed = _installed()
    visible = environment.get(VISIBLE)
    if visible is None or not installed:
        return [gpu for gpu, _ in installed]
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = next((gpu for gpu, uuid in installed if _means(entry, gpu, uuid)), None)
        if match is None and entry.startswith("MIG-"):
            match = Gpu(len(chosen), entry, "MIG slice", 0.0)
        if match is None:
            break  # what follows an unknown entry is invisible. Source: CUDA programming guide
        chosen.append(Gpu(match.index, entry, match.name, match.memory_gib))
    return chosen


def _means(entry: str, gpu: Gpu, uuid: str) -> bool:
    """Whether an entry of the variable names the GPU: its number or the start of its UUID."""
    return entry == str(gpu.index) or (entry.startswith("GPU-") and uuid.startswith(entry))


def _installed() -> list[tuple[Gpu, str]]:
    """Every GPU of the machine with its UUID; none without a driver that answers."""
    try:
        answer = subprocess.run(
            bound_command(QUERY),
            capture_output=True,
            text=True,
            timeout=QUERY_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.stdout.splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) != len(QUERY[1].split(",")) or not fields[0].isdigit():
            continue
        index, uuid, name, memory_mib = fields
        memory_gib = float(memory_mib) / MIB_PER_GIB if memory_mib.isdigit() else 0.0
        found.append((Gpu(int(index), index, name, memory_gib), uuid))
    return found
