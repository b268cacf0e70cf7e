"""Which weights are quantised, and how, while a checkpoint is loaded: one tensor at a time.

The language model's projections are; its output head is stored in 8 bits, and with `int4` so is
its embedding table. Encoders, speech decoder and vocoder stay as they are: they are a seventh of
the bytes, and the speech decoder's time is not that of its weights (benchmarks/README.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from MiniCPMO45.kernels.products import Quantisable
from MiniCPMO45.kernels.quantised import Scheme, quantise
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.settings import Weights

LANGUAGE_MODEL = "llm."
HEAD, TABLE = "llm.lm_head", "llm.model.embed_tokens"
# From here on a card converts e4m3, and reads its weights to the tensor cores, by itself.
# Source: NVIDIA PTX ISA, cvt with .e4m3x2.
FP8_CAPABILITY = (8, 9)
INT4_CAPABILITY = (8, 0)  # bfloat16 products


def scheme_of(layer: str, weights: Weights) -> Scheme | None:
    """Return how the weight of a layer, a name such as `llm.lm_head`, is stored; None: densely."""
    if weights is Weights.BF16 or not layer.startswith(LANGUAGE_MODEL):
        return None
    if layer == TABLE:
        return Scheme.INT8 if weights is Weights.INT4 else None
    if layer == HEAD:
        return Scheme.INT8
    return Scheme(weights.value)


def reserve_quantised(
    module: nn.Module, weights: Weights, dtype: torch.dtype, device: torch.device
) -> dict[str, Scheme]:
    """Make the layers of a model that is still on the meta device expect quantised weights.

    Returns:
        Schemes by the published names of the weights.

    Raises:
        CheckpointError: the card cannot compute with such weights.
    """
    _require_capable(weights, device)
    schemes = {}
    for layer, part in module.named_modules():
        scheme = scheme_of(layer, weights)
        if scheme is not None and isinstance(part, Quantisable):
            part.reserve(scheme, dtype)
            schemes[f"{layer}.weight"] = scheme
    return schemes


def _require_capable(weights: Weights, device: torch.device) -> None:
    if weights is Weights.BF16 or device.type != "cuda":
        return
    least = FP8_CAPABILITY if weights is Weights.FP8 else INT4_CAPABILITY
    found = torch.cuda.get_device_capability(device)
    if found < least:
        raise CheckpointError(
            f"model.weights is {weights}, which needs compute capability {least[0]}.{least[1]}; "
            f"{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}. Choose "
            f"{'int4 or bf16' if found >= INT4_CAPABILITY else 'bf16'}."
        )


def stored_tensors(
    name: str,
    source: Tensor,
    scheme: Scheme | None,
    device: torch.device | str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return what a weight becomes on the device, by name; without a scheme it is dense."""
    if scheme is None:
        # The copy owns its memory: later changes of a mapped file cannot reach it.
        return {name: source.to(device=device, dtype=dtype, copy=True)}
    stored, layer = quantise(source, scheme, device), name.rpartition(".")[0]
    return {f"{layer}.values": stored.values, f"{layer}.scales": stored.scales}
