"""Processes that train together take the same steps, each on conversations of its own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from tests.training.conftest import Nano
from training.nano.listening import FILE, Plan, train
from training.nano.ranks import ALONE, Ranks, backend

COUNT = 2


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def joined(number: int, port: int) -> Ranks:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend(), init_method=address, rank=number, world_size=COUNT)
    return Ranks(number, COUNT)


def average(number: int, port: int, folder: Path) -> None:
    ranks = joined(number, port)
    both, one = torch.ones(3, 2), torch.ones(4)
    both.grad = torch.full((3, 2), number + 1.0)
    one.grad = torch.full((4,), 6.0) if number else None
    ranks.average_gradients([both, one])
    torch.save((both.grad, one.grad, ranks.now_s()), folder / f"{number}.pt")
    ranks.leave()


def learn(number: int, port: int, folder: Path, bank: Path, encoder: Path) -> None:
    ranks = joined(number, port)
    plan = Plan(steps=2, units=6, seed=3)
    brain = train([bank], encoder, folder / "out", plan, torch.device("cpu"), ranks)
    torch.save(brain.trained_state(), folder / f"{number}.pt")
    ranks.leave()


def test_gradients_are_averaged_and_a_missing_one_is_zero(tmp_path: Path) -> None:
    spawn(average, (free_port(), tmp_path), COUNT)
    told = [torch.load(tmp_path / f"{number}.pt") for number in range(COUNT)]
    for both, one, now_s in told:
        torch.testing.assert_close(both, torch.full((3, 2), 1.5))
        torch.testing.assert_close(one, torch.full((4,), 3.0))
        assert now_s == told[0][2]


def test_two_ranks_learn_the_same_from_more_than_one_hears(nano: Nano, tmp_path: Path) -> None:
    spawn(learn, (free_port(), tmp_path, nano.bank_folder, nano.encoder), COUNT)
    first, second = (torch.load(tmp_path / f"{number}.pt") for number in range(COUNT))
    alone = train(
        [nano.bank_folder],
        nano.encoder,
        tmp_path / "alone",
        Plan(steps=2, units=6, seed=3),
        torch.device("cpu"),
    ).trained_state()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], alone[name]) for name in first)
    written = torch.load(tmp_path / "out" / FILE)
    torch.testing.assert_close({n: t.half() for n, t in first.items()}, written)


def test_nobody_else_is_met_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert Ranks.join() == ALONE
    assert ALONE.device("cpu") == torch.device("cpu")
