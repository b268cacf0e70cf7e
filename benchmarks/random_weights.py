"""Random weights for a model of any size, drawn on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from MiniCPMO45.loading.checkpoint import expected_shapes, fill_randomly
from MiniCPMO45.loading.quantisation import reserve_quantised, stored_tensors
from MiniCPMO45.settings import Weights


def random_weights(
    module: nn.Module,
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.bfloat16,
    weights: Weights = Weights.BF16,
    seed: int,
) -> int:
    """Fill a module built on the meta device with random values, without gradients.

    The same seed, device and dtype give the same weights. Returns the number of elements.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    shapes = expected_shapes(module)
    schemes = reserve_quantised(module, weights, dtype, torch.device(device))
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape, device=device, dtype=dtype)
        fill_randomly(name, drawn, generator)
        tensors |= stored_tensors(name, drawn, schemes.get(name), device, dtype)
    module.load_state_dict(tensors, strict=True, assign=True)
    module.requires_grad_(False).eval()
    return sum(math.prod(shape) for shape in shapes.values())
