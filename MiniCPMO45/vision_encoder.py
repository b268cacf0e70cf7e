"""From patch vectors to what the language model reads: vision tower, then resampler.

Slices are independent, so those of several pictures or sessions may share a call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from MiniCPMO45.image_processing import Patches
from MiniCPMO45.modeling_navit_siglip import SiglipVisionTransformer
from MiniCPMO45.resampler import Resampler

DEFAULT_BATCH_LIMIT = 16  # slices; `vision_batch_size` of the published configuration


@torch.no_grad()
def get_vision_embedding(
    vision: SiglipVisionTransformer,
    resampler: Resampler,
    patches: Sequence[Patches],
    *,
    batch_limit: int = DEFAULT_BATCH_LIMIT,
) -> list[Tensor]:
    """Encode slices in batches of at most `batch_limit`.

    Args:
        vision: the vision tower.
        resampler: the resampler behind it.
        patches: slices in any order and of any sizes.
        batch_limit: most slices per forward call; bounds the memory.

    Returns:
        One tensor [num_queries, H] per slice, in order, on the device and in the dtype of the
        weights.

    Raises:
        ValueError: `batch_limit` is below 1.
    """
    if batch_limit < 1:
        raise ValueError(f"batch_limit must be at least 1, got {batch_limit}")
    device = vision.post_layernorm.weight.device
    encoded: list[Tensor] = []
    for start in range(0, len(patches), batch_limit):
        batch = patches[start : start + batch_limit]
        sizes = [item.size for item in batch]
        features = vision(pad_patches(batch, device), sizes)  # [B, L, D]
        encoded.extend(resampler(features, sizes).unbind(0))  # B x [Q, H]
    return encoded


def pad_patches(patches: Sequence[Patches], device: torch.device) -> Tensor:
    """One batch on `device`, zero behind the shorter slices.

    Args:
        patches: at least one slice.
        device: where the batch shall live; the copy to a GPU does not wait for it.

    Returns:
        float32 [B, longest slice, 3 * 14 * 14].
    """
    length = max(len(item.values) for item in patches)
    width = patches[0].values.shape[1]
    on_host = torch.empty(
        (len(patches), length, width),
        dtype=torch.float32,
        device="cpu",
        pin_memory=device.type == "cuda",
    )
    for row, item in zip(on_host, patches, strict=True):
        count = len(item.values)
        row[:count] = torch.from_numpy(item.values)
        row[count:] = 0.0
    return on_host.to(device, non_blocking=True)
