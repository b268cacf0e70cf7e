"""What is quantised while a checkpoint is loaded, and the 4-bit matrices of AWQ and GPTQ.

Those have `qweight`, `qzeros` and `scales` in place of `weight`: the weight from an input to an
output is (q - z) * s, with the zero point and the scale that the output has for the input's group.
Source: version "gemm" of AutoAWQ, and the formats "gptq" and "gptq_v2" of GPTQModel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from MiniCPMO45.kernels.products import Quantisable
from MiniCPMO45.kernels.quantised import PLACES, Scheme, quantise
from MiniCPMO45.loading.checkpoint_source import AWQ, GPTQ, CheckpointError
from MiniCPMO45.settings import Weights

BITS = 4
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of consecutive outputs in a word
WORDS, ZEROS, SCALES, GROUPS = PARTS = ("qweight", "qzeros", "scales", "g_idx")


def matrix_shape(form: str, words: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape [outputs, inputs] of a matrix from that of its words."""
    first, last = words
    return (last * PLACES, first) if form == AWQ else (last, first * PLACES)


def read_matrix(form: str, layer: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Dequantise the matrix of a layer from its parts.

    Returns:
        The matrix, float32 [outputs, inputs], and the scales [outputs, groups] of consecutive
        inputs; None if the inputs of a group are not consecutive.

    Raises:
        CheckpointError: parts are missing or do not fit together.
    """
    try:
        words, zeros, scales = parts[WORDS], parts[ZEROS], parts[SCALES].float()
        if form == AWQ:
            numbers = _numbers(words, AWQ_PLACES)  # [inputs, outputs]
            zeros = _numbers(zeros, AWQ_PLACES)  # [groups, outputs]
        else:
            numbers = _numbers(words.T, range(PLACES)).T
            zeros = _numbers(zeros, range(PLACES)) + (1 if form == GPTQ else 0)
        places = torch.arange(len(numbers), device=words.device)
        in_order = places * len(scales) // len(numbers)
        groups = parts[GROUPS].long() if GROUPS in parts else in_order
        matrix = (numbers - zeros[groups]) * scales[groups]
    except (KeyError, IndexError, RuntimeError) as error:
        raise CheckpointError(
            f"The packed weights of {layer} cannot be read: {error}. Download the checkpoint again."
        ) from error
    is_in_order = torch.equal(groups, in_order)
    return matrix.T.contiguous(), scales.T.contiguous() if is_in_order else None


def _numbers(words: Tensor, places: Sequence[int]) -> Tensor:
    """Unpack int32 words [n, m] to numbers [n, 8 * m]."""
    shifts = BITS * torch.tensor(tuple(places), dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & (2**BITS - 1)).flatten(1)


LANGUAGE_MODEL = "llm."
HEAD, TABLE = "llm.lm_head", "llm.model.embed_tokens"
FP8_CAPABILITY = (8, 9)  # e4m3 conversion. Source: NVIDIA PTX ISA, cvt with .e4m3x2
INT4_CAPABILITY = (8, 0)  # bfloat16 tensor cores


def scheme_of(layer: str, weights: Weights) -> Scheme | None:
    """Return the quantisation scheme of a layer such as `llm.lm_head`; None if it stays dense."""
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
    """Prepare a model on the meta device for quantised weights.

    Returns:
        Schemes by the published names of the weights.

    Raises:
        CheckpointError: the GPU does not support such weights.
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
    scales: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the tensors that store a weight on the device, by name.

    `scales` are those that the values of the source are multiples of, if there are any.
    """
    if scheme is None:  # copied: a change of the memory-mapped file must not reach the model
        return {name: source.to(device=device, dtype=dtype, copy=True)}
    stored, layer = quantise(source, scheme, device, scales), name.rpartition(".")[0]
    return {f"{layer}.values": stored.values, f"{layer}.scales": stored.scales}
