"""Trains the vocoder's predictor of the fundamental, alone: a small net that sees mels only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.token2wav.hift import HiFT

PEAK_RATE = 2e-3
OUTPUT_RATE_SCALE = 30.0  # the last layer speaks in Hz
WARM_UP_STEPS = 20
UNIT_HZ = 100.0


def train_fundamental(hift: HiFT, draw: Callable[[], tuple[Tensor, Tensor]], n_steps: int) -> float:
    """Train the predictor.

    Args:
        hift: its `f0_predictor` is changed, nothing else.
        draw: gives mels [B, 80, F] with their fundamentals in Hz [B, F], 0 where unvoiced.
        n_steps: steps to take.

    Returns:
        Mean distance in Hz over the last tenth of the steps.
    """
    predictor = hift.f0_predictor
    optimizer = torch.optim.AdamW(
        [
            {"params": list(predictor.condnet.parameters()), "scale": 1.0},
            {"params": list(predictor.classifier.parameters()), "scale": OUTPUT_RATE_SCALE},
        ],
        weight_decay=0.0,
    )
    distances: list[Tensor] = []
    for step in range(n_steps):
        share = min((step + 1) / WARM_UP_STEPS, 1 - step / n_steps)
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * share * group["scale"]
        mel, f0_hz = draw()
        loss = F.l1_loss(predictor(mel.transpose(1, 2)), f0_hz) / UNIT_HZ
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        distances.append(loss.detach())
    return float(torch.stack(distances[-max(1, n_steps // 10) :]).mean()) * UNIT_HZ
