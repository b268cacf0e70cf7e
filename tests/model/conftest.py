"""The toy model every test of this folder shares; nothing may change it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from tests.model.toy import Toy, build_toy

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
