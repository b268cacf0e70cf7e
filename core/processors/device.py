"""The machine under the model: which device to take, its memory, and whether it still works."""

from __future__ import annotations

import gc

import torch

from core.errors import ModelError
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel

BYTES_PER_MB = 1_000_000


def choose_device(gpu_index: int | None) -> str:
    """Return the device to load a model to.

    Args:
        gpu_index: number of the GPU as people count; where fewer are visible, they take turns.
    """
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{(gpu_index or 0) % torch.cuda.device_count()}"


def settle(model: UnifiedModel) -> None:
    """Do what has to be done once, after loading.

    What was loaded stays for good, so later collections need not look at it. Toy tensors, and the
    small ones beside a GPU, gain nothing from a second thread and lose much waiting for it.
    """
    if model.model.config.model_variant or model.executor.device.type == "cuda":
        torch.set_num_threads(1)
    release_memory(model)
    gc.freeze()


def release_memory(model: UnifiedModel) -> None:
    """Give back what no conversation holds any more."""
    gc.collect()
    if model.executor.device.type == "cuda":
        torch.cuda.empty_cache()


def memory_mb(model: UnifiedModel) -> tuple[float, float] | None:
    """Return used and total memory of the model's GPU; None on a CPU."""
    device = model.executor.device
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / BYTES_PER_MB, total / BYTES_PER_MB


def check_device(model: UnifiedModel) -> None:
    """Compute something small.

    Raises:
        ModelError: the device does not work any more; only a new process helps.
    """
    try:
        torch.ones(1, device=model.executor.device).sum().item()
    except RuntimeError as error:
        raise ModelError(f"The device does not work any more: {error}") from error


def cache_room(model: UnifiedModel) -> float:
    """Return how much of the memory for conversations is free, 0 to 1; on the model's thread.

    There is none on a device that does not answer; `check_device` says so.
    """
    try:
        return model.executor.free_share
    except RuntimeError:
        return 0.0


def context_tokens(model: UnifiedModel) -> int:
    """Return the longest conversation the model has positions for."""
    return model.executor.llm_store.shape.max_position_embeddings
