"""Opening and loading checkpoint folders, at toy size with the real modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.rig import random_weights
from MiniCPMO45.loading.checkpoint import (
    SINGLE_FILE,
    expected_shapes,
    load_weights,
    read_config,
    read_headers,
)
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.settings import LoadOptions
from tests.fakes.toy_checkpoint import empty_model, write_shards, write_single
from tests.goldens.places import recordings

Write = Callable[[Path, dict[str, Tensor]], None]
QUIET = LoadOptions(show_progress=False)


def load(
    folder: Path, *, dtype: torch.dtype = torch.bfloat16, show_progress: bool = False
) -> MiniCPMOForConditionalGeneration:
    model = empty_model()
    load_weights(model, folder, LoadOptions(dtype=dtype, show_progress=show_progress))
    return model


# Loading


@pytest.mark.parametrize("write", [write_single, write_shards])
def test_every_tensor_arrives_in_bf16(
    write: Write, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    write(tmp_path, weights)
    model = load(tmp_path)
    state = model.state_dict()
    assert state.keys() == weights.keys()
    for name, tensor in state.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, weights[name]), name


def test_loaded_weights_need_no_gradient_and_are_in_evaluation_mode(folder: Path) -> None:
    model = load(folder)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_stored_type_becomes_the_wanted_type(
    stored: torch.dtype, wanted: torch.dtype, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    write_single(tmp_path, {name: tensor.to(stored) for name, tensor in weights.items()})
    model = load(tmp_path, dtype=wanted)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name].to(stored).to(wanted)), name


def test_only_one_tensor_is_staged_at_a_time(
    folder: Path, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[tuple[torch.dtype, bool]] = []
    to = Tensor.to

    def watched(self: Tensor, *args: Any, **options: Any) -> Tensor:
        result = to(self, *args, **options)
        copies.append((result.dtype, result.data_ptr() == self.data_ptr()))
        return result

    monkeypatch.setattr(Tensor, "to", watched)
    load(folder)
    assert copies == [(torch.bfloat16, False)] * len(weights)


def test_loaded_weights_do_not_depend_on_the_file(folder: Path, weights: dict[str, Tensor]) -> None:
    model = load(folder)
    file = folder / SINGLE_FILE
    with file.open("r+b") as opened:
        opened.write(b"\0" * file.stat().st_size)
    assert all(torch.equal(t, weights[n]) for n, t in model.state_dict().items())


def test_progress_is_silent_when_asked_and_counts_bytes_otherwise(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(folder, show_progress=False)
    assert capsys.readouterr() == ("", "")
    load(folder, show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Loading weights" in err and "100%" in err and "B/s" in err


def test_unused_tensors_can_be_dropped(folder: Path, weights: dict[str, Tensor]) -> None:
    model = load(folder)
    model.drop_unused()
    assert len(weights) - len(model.state_dict()) == 5
    assert model.tts.projector_spk.linear1.weight is None
    with pytest.raises(CheckpointError, match="AutoModel"):
        model.save_pretrained(folder / "saved")
    assert not (folder / "saved").exists()


def test_progress_is_the_share_of_the_bytes(folder: Path) -> None:
    shares: list[float] = []

    def add(stage: str, share: float | None) -> None:
        assert stage == "loading weights" and share is not None
        shares.append(share)

    load_weights(empty_model(), folder, LoadOptions(show_progress=False, on_progress=add))
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] == 1.0


# One error lists everything


@pytest.mark.parametrize("write", [write_single, write_shards])
def test_missing_unexpected_and_misshapen_tensors_are_listed_in_one_error(
    write: Write, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    damaged = dict(weights)
    for gone in ("llm.model.norm.weight", "vpm.post_layernorm.bias"):
        del damaged[gone]
    damaged["llm.model.rotary.inv_freq"] = torch.ones(8)
    damaged["resampler.query"] = torch.ones(5, 32)
    damaged["apm.layer_norm.bias"] = torch.ones(16, dtype=torch.int8)
    write(tmp_path, damaged)
    with pytest.raises(CheckpointError) as refusal:
        load(tmp_path)
    text = str(refusal.value)
    assert f"{len(weights)} are expected, {len(damaged)} were found" in text
    assert "2 missing: " in text
    assert "llm.model.norm.weight" in text and "vpm.post_layernorm.bias" in text
    assert "1 unexpected: llm.model.rotary.inv_freq" in text
    assert "1 of another shape: resampler.query [5, 32] instead of [4, 32]" in text
    assert "1 of a type that weights cannot have: apm.layer_norm.bias I8" in text


def test_long_lists_are_truncated_with_totals(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    kept = {name: t for name, t in weights.items() if not name.startswith("vpm.")}
    n_gone = len(weights) - len(kept)
    write_single(tmp_path, kept)
    with pytest.raises(CheckpointError, match=f"{n_gone} missing: .* and {n_gone - 20} more"):
        load(tmp_path)


def test_failed_load_leaves_the_module_unchanged(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    write_single(tmp_path, dict(list(weights.items())[1:]))
    model = empty_model()
    with pytest.raises(CheckpointError):
        load_weights(model, tmp_path, QUIET)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert expected_shapes(model).keys() == weights.keys()


# Random weights


def test_random_weights_are_scaled_and_seeded() -> None:
    models = [empty_model() for _ in range(3)]
    counts = [
        random_weights(m, device="cpu", seed=s) for m, s in zip(models, (1, 1, 2), strict=True)
    ]
    first, again, other = (model.state_dict() for model in models)
    assert counts[0] == sum(tensor.numel() for tensor in first.values())
    for name, tensor in first.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, again[name])
    assert not torch.equal(first["llm.lm_head.weight"], other["llm.lm_head.weight"])
    assert torch.equal(first["llm.model.norm.weight"], torch.ones(32, dtype=torch.bfloat16))
    assert not first["vpm.post_layernorm.bias"].any()
    assert first["llm.lm_head.weight"].float().std() == pytest.approx(32**-0.5, rel=0.1)
    head = models[0].tts.folded_head().float()
    assert torch.allclose(head.norm(dim=1), torch.ones(30), atol=0.02)


def test_buffers_that_are_stored_are_loaded_too(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = nn.BatchNorm1d(3)
    save_file(
        {name: torch.full(shape, 2.0) for name, shape in expected_shapes(module).items()},
        tmp_path / SINGLE_FILE,
    )
    load_weights(module, tmp_path, QUIET)
    assert torch.equal(module.state_dict()["running_mean"], torch.full((3,), 2.0))


RECORDED = [
    folder / "tiny_checkpoint" for name, folder in recordings().items() if name != "compact"
]


@pytest.mark.skipif(not RECORDED, reason="no recordings beside the repository")
@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.parent.name)
def test_recorded_checkpoint_loads_completely(folder: Path) -> None:
    model = empty_model(read_config(folder))
    load_weights(model, folder, QUIET)
    assert read_headers(folder).keys() == model.state_dict().keys()
    stored = load_file(folder / SINGLE_FILE)
    assert all(torch.equal(t, stored[n].float()) for n, t in model.state_dict().items())
