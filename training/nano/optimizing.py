"""Optimizer of the stages: Muon for inner matrices, AdamW for the other parameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.nano.ranks import ALONE, Ranks
from training.nano.voice.stage_clock import WARM_UP_STEPS, Tick, set_rate

BETAS = (0.9, 0.98)
LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Recipe:
    """Parameter groups, by parts of names."""

    inside: Sequence[str]  # matrices for Muon
    weight_decay: float
    undecayed: Sequence[str] = ()  # parameters without weight decay, besides those of one dimension
    warm_up_steps: int = WARM_UP_STEPS


class Optimizer:
    def __init__(self, model: nn.Module, rate: float, recipe: Recipe, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._trained = [parameter for _, parameter in named]
        self._rate = rate
        self._warm_up_steps = recipe.warm_up_steps
        matrices: list[Tensor] = []
        tables: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in named:
            is_inside = parameter.ndim == 2 and any(part in name for part in recipe.inside)
            decays = parameter.ndim > 1 and not any(part in name for part in recipe.undecayed)
            (matrices if is_inside else tables if decays else others).append(parameter)
        # "match_rms_adamw" puts Muon's learning rate on AdamW's scale. Source: torch.optim.Muon.
        muon = torch.optim.Muon(
            matrices, lr=rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        groups = [
            {"params": tables, "weight_decay": recipe.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        is_fused = all(each.is_cuda for each in self._trained)
        self._parts = (muon, torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=is_fused))

    def step(self, loss: Tensor, tick: Tick) -> None:
        for part in self._parts:
            set_rate(part, tick, self._rate, self._warm_up_steps)
            part.zero_grad(set_to_none=True)
        loss.backward()
        self._ranks.average_gradients(self._trained)
        torch.nn.utils.clip_grad_norm_(self._trained, LARGEST_GRADIENT)
        for part in self._parts:
            part.step()

    def state(self) -> list[dict[str, Any]]:
        """Return the states of both optimizers."""
        return [part.state_dict() for part in self._parts]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        for part, its_state in zip(self._parts, state, strict=True):
            part.load_state_dict(its_state)


def allow_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def fast(device: torch.device) -> ExitStack:
    """Return a context of bfloat16 autocast and, on a CPU, attention without the fused kernel.

    There, for a few hundred positions, two products and a softmax are up to three times as fast.
    """
    contexts = ExitStack()
    contexts.enter_context(torch.autocast(device.type, torch.bfloat16))
    if device.type == "cpu":
        # Without it these products are in float32.
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        contexts.enter_context(sdpa_kernel(SDPBackend.MATH))
    return contexts
