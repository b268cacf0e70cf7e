"""A `.pt` overlay replaces tensors and can do nothing else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from MiniCPMO45.loading.checkpoint import CheckpointError, load_weights
from MiniCPMO45.settings import LoadOptions
from tests.fakes.toy_checkpoint import empty_model


def load(folder: Path, overlay: Path) -> dict[str, Tensor]:
    model = empty_model()
    options = LoadOptions(dtype=torch.bfloat16, overlay=overlay, show_progress=False)
    load_weights(model, folder, options)
    return model.state_dict()


def test_overlay_replaces_tensors_and_unknown_names_are_logged(
    folder: Path, weights: dict[str, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    name = "llm.model.norm.weight"
    patch = {name: torch.full((32,), 2.5, dtype=torch.float32), "lora.a": torch.ones(2), "step": 7}
    torch.save(patch, folder / "patch.pt")
    with caplog.at_level(logging.WARNING):
        state = load(folder, overlay=folder / "patch.pt")
    assert torch.equal(state[name], torch.full((32,), 2.5, dtype=torch.bfloat16))
    assert all(torch.equal(t, weights[n]) for n, t in state.items() if n != name)
    assert "2 of its tensors" in caplog.text and "lora.a" in caplog.text


def test_overlay_in_the_older_format_is_read(folder: Path) -> None:
    patch = {"llm.model.norm.weight": torch.zeros(32)}
    torch.save(patch, folder / "patch.pt", _use_new_zipfile_serialization=False)
    assert not load(folder, overlay=folder / "patch.pt")["llm.model.norm.weight"].any()


@pytest.mark.parametrize("value", [torch.ones(31), torch.ones(32, 1), torch.ones(32).int(), 3])
def test_overlay_of_another_shape_is_refused(value: object, folder: Path) -> None:
    torch.save({"llm.model.norm.weight": value}, folder / "patch.pt")
    with pytest.raises(CheckpointError, match=r"does not fit.*llm\.model\.norm\.weight"):
        load(folder, overlay=folder / "patch.pt")


class Trap:
    """Its pickle calls a function when it is opened."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (exec, ("import sys; sys.was_executed = True",))


def test_overlay_never_executes_code(folder: Path) -> None:
    torch.save({"llm.model.norm.weight": Trap()}, folder / "patch.pt")
    with pytest.raises(CheckpointError, match="nothing in it is executed"):
        load(folder, overlay=folder / "patch.pt")
    assert "was_executed" not in vars(sys)


def test_useless_overlays_are_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no overlay"):
        load(folder, overlay=folder / "none.pt")
    (folder / "patch.pt").write_bytes(b"not a pickle")
    with pytest.raises(CheckpointError, match="overlay"):
        load(folder, overlay=folder / "patch.pt")
    torch.save([torch.ones(1)], folder / "patch.pt")
    with pytest.raises(CheckpointError, match="a list, not a dictionary"):
        load(folder, overlay=folder / "patch.pt")


@pytest.mark.parametrize("prefix", ["module.", "state_dict"])
def test_overlay_with_no_tensor_of_the_model_is_refused(
    prefix: str, folder: Path, weights: dict[str, Tensor]
) -> None:
    """Otherwise fine-tuned weights saved under a prefix would seem to change nothing."""
    prefixed = {prefix + name: tensor for name, tensor in weights.items()}
    patch = {prefix: weights} if prefix == "state_dict" else prefixed
    torch.save(patch, folder / "patch.pt")
    with pytest.raises(CheckpointError, match=f"none of the model's tensors.*{prefix}"):
        load(folder, overlay=folder / "patch.pt")
