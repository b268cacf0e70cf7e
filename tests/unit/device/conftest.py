"""Without a card the kernels run in Triton's interpreter, which is slow."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """The bounds on rounding hold for the inputs they were measured with."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the interpreted cases of each test `interpreted`, all but the first."""
    seen: set[str] = set()
    for item in items:
        if isinstance(item, pytest.Function) and item.path.name.endswith("kernels.py"):
            is_on_cpu = "callspec" in vars(item) and item.callspec.params.get("device") == "cpu"
            test = item.nodeid.partition("[")[0]
            if is_on_cpu and test in seen:
                item.add_marker(pytest.mark.interpreted)
            seen.add(test)
