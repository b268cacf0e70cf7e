"""Description of the machine, and memory in use."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.summary import Memory
from MiniCPMO45.engine.session import Session

_STATM = Path("/proc/self/statm")


def waiter(device: torch.device) -> Callable[[], None]:
    """Return a function that synchronises with the device."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def settle_memory() -> None:
    """Freeze existing objects for the garbage collector, as a worker does."""
    gc.collect()
    gc.freeze()


def unsettle_memory() -> None:
    gc.unfreeze()


def reset_peak(device: torch.device) -> None:
    """Reset the peak of `read_memory`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_memory(device: torch.device, session: Session) -> Memory:
    held, process = session.nbytes, resident_bytes()
    if device.type != "cuda":
        return Memory(held, held, held, 0, held, process)
    free, total = torch.cuda.mem_get_info(device)
    return Memory(
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
        torch.cuda.max_memory_allocated(device),
        total - free,
        held,
        process,
    )


def resident_bytes() -> int:
    """Return the resident memory of the process, 0 if unknown."""
    if not _STATM.is_file():
        return 0
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def describe(device: torch.device) -> dict[str, object]:
    """Return versions, device and settings that affect its speed."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "device_name": properties.name,
            "device_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_convolution": torch.backends.cudnn.allow_tf32,
        }
    return found
