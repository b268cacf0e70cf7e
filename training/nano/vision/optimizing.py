"""How the eyes take a step: Muon for the matrices inside, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from training.nano.voice.stage_clock import Tick, set_rate

BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.05
LARGEST_GRADIENT = 1.0
WARM_UP_STEPS = 40
MATRICES = ("vpm.encoder.", "resampler.attn.", "resampler.kv_proj")


class Optimizer:
    """Steps of one module."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        """Sort the parameters that are trained.

        Args:
            model: has eyes.
            rate: of learning, at its peak.
        """
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._rate = rate
        matrices: list[Tensor] = []
        tables: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            is_inside = parameter.ndim == 2 and any(part in name for part in MATRICES)
            group = matrices if is_inside else tables if parameter.ndim > 1 else others
            group.append(parameter)
        # Source: torch.optim.Muon; its rate is then on AdamW's scale.
        muon = torch.optim.Muon(
            matrices, lr=rate, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
        )
        groups = [
            {"params": tables, "weight_decay": WEIGHT_DECAY},
            {"params": others, "weight_decay": 0.0},
        ]
        is_fused = all(each.is_cuda for each in tables)
        self._parts = (muon, torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=is_fused))

    def step(self, loss: Tensor, tick: Tick) -> None:
        """Follow a loss's gradient."""
        for part in self._parts:
            set_rate(part, tick, self._rate, WARM_UP_STEPS)
            part.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained, LARGEST_GRADIENT)
        for part in self._parts:
            part.step()


def fast(device: torch.device) -> ExitStack:
    """Return a context in which a device multiplies fastest: bfloat16, and on a CPU plain products
    for attention."""
    contexts = ExitStack()
    contexts.enter_context(torch.autocast(device.type, torch.bfloat16))
    if device.type == "cpu":
        contexts.enter_context(_PlainAttention())
    return contexts


class _PlainAttention(TorchFunctionMode):
    """Attention as two products around a softmax, three times as fast with its gradient.

    For a CPU and a few hundred positions, where the fused kernel is bound by its exponentials.
    """

    # Any: as torch calls it.
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        is_plain = func is F.scaled_dot_product_attention and not given.keys() - {"attn_mask"}
        if not is_plain or given.get("attn_mask") is not None:
            return func(*args, **given)
        query, key, value = args
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # [B, heads, Q, L]
        return scores.softmax(-1, dtype=scores.dtype) @ value
