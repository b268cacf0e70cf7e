"""The shared toy model, which tests must not change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from core.processors import UnifiedProcessor
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from tests.fakes.toy_checkpoint import toy_weights, write_config, write_single
from tests.model.scripted_duplex import Bench
from tests.model.toy import Toy, build_toy
from tests.model.views import clean, load

# Toy tensors gain nothing from threads, and waiting for each other's can cost a hundredfold.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The whole model at toy size, built once a process."""
    return build_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a checkpoint on disk."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> UnifiedProcessor:
    return load(checkpoint)


@pytest.fixture
def processor(loaded: UnifiedProcessor) -> Iterator[UnifiedProcessor]:
    """The checkpoint without any conversation."""
    yield loaded
    clean(loaded)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return toy_weights()


@pytest.fixture
def folder(tmp_path: Path, weights: dict[str, Tensor]) -> Path:
    """A complete checkpoint in one file, with random values of the real modules' names."""
    write_config(tmp_path)
    write_single(tmp_path, weights)
    return tmp_path


@pytest.fixture
def bench(toy: Toy) -> Bench:
    return Bench(toy)


@pytest.fixture
def tokens(toy: Toy) -> SpecialTokens:
    return toy.tokenizer.special
