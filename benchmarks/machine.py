"""Description of the machine, and memory in use."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.summary import Memory
from MiniCPMO45.engine.kv_cache import cached_bytes
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


def tensor_bytes(*values: object) -> int:
    """Return the bytes of tensors and of those inside tuples and dataclasses."""
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.nbytes
        elif isinstance(value, tuple):
            total += tensor_bytes(*value)
        elif is_dataclass(value):
            total += tensor_bytes(*vars(value).values())
    return total


def session_bytes(session: Session) -> int:
    """Return the bytes of a session's caches, without the shared voice."""
    tokens = sum(
        kv.capacity * cached_bytes(kv.store.shape, kv.store.pool.dtype)
        for kv in (session.kv, session.speech.kv)
    )
    vocoder = session.speech.vocoder
    return tokens + tensor_bytes(session.audio_input, vocoder and vocoder.memory)


def read_memory(device: torch.device, session: Session) -> Memory:
    held, process = session_bytes(session), resident_bytes()
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
