"""Training goes on after a stop as if there had been none."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.training.conftest import Nano
from training.nano.listening import FILE, Plan, train

CPU = torch.device("cpu")
STEPS = 3


def test_resumed_training_equals_uninterrupted_training(nano: Nano, tmp_path: Path) -> None:
    def weights(folder: str, *stops: int) -> dict[str, torch.Tensor]:
        for stop in stops:
            plan = Plan(steps=STEPS, units=6, seed=3, stop_at=stop)
            train([nano.bank_folder], nano.encoder, tmp_path / folder, plan, CPU)
        return torch.load(tmp_path / folder / FILE, weights_only=True)

    whole, parted = weights("whole", STEPS), weights("parted", 1, STEPS)

    assert whole.keys() == parted.keys()
    assert all(torch.equal(whole[name], parted[name]) for name in whole)
    assert any(not torch.equal(whole[n], weights("fresh", 1)[n]) for n in whole)
