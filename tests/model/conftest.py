"""The toy model every test of this folder shares; nothing may change it."""

from __future__ import annotations

import pytest

from tests.model.toy import Toy, build_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The whole model at toy size, built once a process."""
    return build_toy(tmp_path_factory.mktemp("toy"))
