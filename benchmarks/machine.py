"""The device of a benchmark: description, synchronisation, and memory in use."""

from __future__ import annotations

import gc
import os
from dataclasses import is_dataclass

import torch

from benchmarks import processes
from benchmarks.summary import Memory
from MiniCPMO45.engine.kv_cache import cached_bytes
from MiniCPMO45.engine.session import Session


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settle_memory() -> None:
    """Freeze existing objects for the garbage collector, as a worker does."""
    gc.collect()
    gc.freeze()


def unsettle_memory() -> None:
    gc.unfreeze()


def reset_peak(device: torch.device) -> None:
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
    cached, process = session_bytes(session), processes.resident_bytes(os.getpid())
    if device.type != "cuda":
        return Memory(cached, cached, cached, 0, cached, process)
    free, total = torch.cuda.mem_get_info(device)
    return Memory(
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
        torch.cuda.max_memory_allocated(device),
        total - free,
        cached,
        process,
    )


def describe(device: torch.device) -> dict[str, object]:
    """Return versions, device and settings that affect its speed."""
    found: dict[str, object] = {
        **processes.describe_host("numpy"),
        "torch": torch.__version__,
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
