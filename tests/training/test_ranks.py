"""Data-parallel training in several processes."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.training.conftest import Nano
from training.nano.listening import FILE, Plan, train
from training.nano.ranks import ALONE, Ranks, backend
from training.nano.voice.stage_clock import StageClock

COUNT = 2
PLAN = Plan(StageClock(2), units=6, seed=3)


def joined(number: int, folder: Path) -> Ranks:
    place = f"file://{folder / 'rendezvous'}"
    dist.init_process_group(backend(), init_method=place, rank=number, world_size=COUNT)
    return Ranks(number, COUNT)


@dataclass(frozen=True)
class RankResult:
    both: torch.Tensor
    one: torch.Tensor
    now_s: float
    trained: dict[str, torch.Tensor]


def work(number: int, folder: Path, bank: Path, encoder: Path) -> None:
    ranks = joined(number, folder)
    both, one = torch.ones(3, 2), torch.ones(4)
    both.grad = torch.full((3, 2), number + 1.0)
    one.grad = torch.full((4,), 6.0) if number else None
    ranks.average_gradients([both, one])
    nano_model = train([bank], encoder, folder / "out", PLAN, torch.device("cpu"), ranks)
    assert one.grad is not None
    result = RankResult(both.grad, one.grad, ranks.now_s(), nano_model.trained_state())
    torch.save(vars(result), folder / f"{number}.pt")
    ranks.leave()


@pytest.fixture(scope="module")
def folder(nano: Nano, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output folder of two processes: this one and a spawned one."""
    folder = tmp_path_factory.mktemp("ranks")
    arguments = (folder, nano.bank_folder, nano.encoder)
    other = get_context("spawn").Process(target=work, args=(1, *arguments))
    other.start()
    work(0, *arguments)
    other.join()
    assert other.exitcode == 0
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[RankResult]:
    return [RankResult(**torch.load(folder / f"{number}.pt")) for number in range(COUNT)]


@pytest.mark.learning
def test_gradients_are_averaged_and_a_missing_one_is_zero(results: list[RankResult]) -> None:
    for each in results:
        torch.testing.assert_close(each.both, torch.full((3, 2), 1.5))
        torch.testing.assert_close(each.one, torch.full((4,), 3.0))


@pytest.mark.learning
def test_all_ranks_read_the_same_clock(results: list[RankResult]) -> None:
    assert results[0].now_s == results[1].now_s


@pytest.mark.learning
def test_ranks_train_equal_weights_on_different_batches(
    nano: Nano, folder: Path, results: list[RankResult], tmp_path: Path
) -> None:
    first, second = (each.trained for each in results)
    cpu = torch.device("cpu")
    alone = train([nano.bank_folder], nano.encoder, tmp_path, PLAN, cpu).trained_state()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], alone[name]) for name in first)
    written = torch.load(folder / "out" / FILE)
    torch.testing.assert_close({n: t.half() for n, t in first.items()}, written)


def test_one_process_joins_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert Ranks.join() == ALONE
    assert ALONE.device("cpu") == torch.device("cpu")
