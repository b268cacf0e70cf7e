"""Checkpoints that are already quantised: AWQ and GPTQ are read, others are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModel

import MiniCPMO45.auto  # noqa: F401  # registers the classes
from MiniCPMO45.kernels.quantised import Scheme, quantise, unpacked
from MiniCPMO45.loading.checkpoint import INDEX_FILE, SINGLE_FILE, read_config
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.settings import LoadOptions, Weights
from tests.fakes.toy_checkpoint import write_config

GROUP = 16
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output at each place of a word, lowest bits first
FORMS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
}
each_form = pytest.mark.parametrize("form", FORMS)


def words(numbers: Tensor, order: Sequence[int]) -> Tensor:
    """Pack numbers [n, 8 * m] of four bits into int32 words [n, m]."""
    eights = numbers.long().unflatten(1, (-1, 8))[:, :, list(order)]
    whole = sum(eights[:, :, place] << 4 * place for place in range(8))
    assert isinstance(whole, Tensor)
    return torch.where(whole >= 2**31, whole - 2**32, whole).int().contiguous()


def pack(
    matrix: Tensor, form: str, groups: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Quantise [outputs, inputs]; return the parts, and the matrix that they stand for."""
    inputs = matrix.T.float()  # [inputs, outputs]
    in_order = torch.arange(len(inputs)) // GROUP
    of_input = in_order if groups is None else groups
    shape = (int(of_input.max()) + 1, inputs.shape[1])
    low, high = torch.zeros(shape), torch.zeros(shape)
    for group in range(shape[0]):
        low[group] = inputs[of_input == group].amin(0)
        high[group] = inputs[of_input == group].amax(0)
    scales = ((high - low) / 15).half().clamp(min=1e-4)
    zeros = (-low / scales.float()).round().clamp(1, 15)
    numbers = (inputs / scales.float()[of_input] + zeros[of_input]).round().clamp(0, 15)
    meant = (numbers - zeros[of_input]) * scales.float()[of_input]
    if form == "awq":
        parts = {"qweight": words(numbers, AWQ_ORDER), "qzeros": words(zeros, AWQ_ORDER)}
    else:
        stored = zeros - 1 if form == "gptq" else zeros
        parts = {
            "qweight": words(numbers.T, range(8)).T.contiguous(),
            "qzeros": words(stored, range(8)),
            "g_idx": of_input.int(),
        }
    return parts | {"scales": scales}, meant.T.contiguous()


def packed(
    weights: dict[str, Tensor], form: str, *, is_shuffled: bool = False
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a checkpoint's tensors with packed projections, and what these stand for."""
    stored, meant = {}, {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if not (name.startswith("llm.model.layers.") and layer.endswith("_proj")):
            stored[name] = meant[name] = weight
            continue
        groups = torch.arange(weight.shape[1]) // GROUP
        if is_shuffled:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))]
        parts, meant[name] = pack(weight, form, groups)
        stored |= {f"{layer}.{part}": value for part, value in parts.items()}
    return stored, meant


def write_packed(
    folder: Path, weights: dict[str, Tensor], form: str, *, is_shuffled: bool = False
) -> dict[str, Tensor]:
    """Write a packed checkpoint; return what its tensors stand for."""
    stored, meant = packed(weights, form, is_shuffled=is_shuffled)
    write_config(folder, quantization_config=FORMS[form])
    save_file(stored, folder / SINGLE_FILE)
    return meant


def load(folder: Path, weights: Weights = Weights.BF16) -> dict[str, Tensor]:
    options = LoadOptions(weights=weights, show_progress=False)
    return MiniCPMOForConditionalGeneration.from_folder(folder, options).state_dict()


def test_what_was_read_is_saved_as_the_plain_weights_that_it_is(
    weights: dict[str, Tensor], tmp_path: Path
) -> None:
    source, saved = tmp_path / "packed", tmp_path / "saved"
    source.mkdir()
    meant = write_packed(source, weights, "awq")
    model = AutoModel.from_pretrained(source, dtype=torch.float32)
    model.save_pretrained(saved)
    assert "quantization_config" not in json.loads((saved / "config.json").read_text())
    again = MiniCPMOForConditionalGeneration.from_pretrained(saved).state_dict()
    name = next(each for each in meant if each.endswith("_proj.weight"))
    assert torch.equal(again[name], model.state_dict()[name])


@each_form
def test_the_matrices_are_those_that_were_packed(
    form: str, folder: Path, weights: dict[str, Tensor]
) -> None:
    meant = write_packed(folder, weights, form)
    found = load(folder)
    assert found.keys() == meant.keys()
    assert all(torch.equal(found[name], value.float()) for name, value in meant.items())
    assert not hasattr(read_config(folder), "quantization_config")


def test_inputs_of_a_group_may_be_anywhere(folder: Path, weights: dict[str, Tensor]) -> None:
    meant = write_packed(folder, weights, "gptq", is_shuffled=True)
    found = load(folder)
    assert all(torch.equal(found[name], value.float()) for name, value in meant.items())


def test_a_shard_may_end_inside_a_layer(folder: Path, weights: dict[str, Tensor]) -> None:
    stored, meant = packed(weights, "awq")
    write_config(folder, quantization_config=FORMS["awq"])
    shards: dict[str, dict[str, Tensor]] = {"a.safetensors": {}, "b.safetensors": {}}
    for name, value in stored.items():
        shards["a.safetensors" if name.endswith("qweight") else "b.safetensors"][name] = value
    for file, part in shards.items():
        save_file(part, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}), encoding="utf8")
    (folder / SINGLE_FILE).unlink()
    found = load(folder)
    assert all(torch.equal(found[name], value.float()) for name, value in meant.items())


@pytest.mark.parametrize("weights_setting", [Weights.FP8, Weights.INT4])
def test_they_are_quantised_as_any_other(
    weights_setting: Weights, folder: Path, weights: dict[str, Tensor]
) -> None:
    _, meant = packed(weights, "gptq")
    save_file({n: t.float().contiguous() for n, t in meant.items()}, folder / SINGLE_FILE)
    expected = load(folder, weights_setting)
    write_packed(folder, weights, "gptq")
    found = load(folder, weights_setting)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_symmetric_numbers_of_four_bits_keep_their_values() -> None:
    """With zero points of 8, int4 holds the same numbers, and their scales in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(-7, 8, (24, 2, 128), generator=generator)
    scales = torch.rand(24, 2, generator=generator).bfloat16().float() + 0.5
    matrix = (numbers * scales.bfloat16().float()[..., None]).flatten(1)
    kept = quantise(matrix, Scheme.INT4, "cpu", scales.bfloat16())
    assert torch.equal(unpacked(kept, torch.float32), matrix)
    alone = quantise(matrix, Scheme.INT4, "cpu")
    assert not torch.equal(unpacked(alone, torch.float32), matrix)


@pytest.mark.parametrize(
    ("quantisation", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv"),
        ({"quant_method": "gptq", "bits": 8}, "bits 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ("int4", "unknown"),
    ],
)
def test_others_are_refused(folder: Path, quantisation: object, named: str) -> None:
    write_config(folder, quantization_config=quantisation)
    with pytest.raises(CheckpointError, match=f"quantised.*{named}.*or the bf16 checkpoint"):
        read_config(folder)


@each_form
def test_missing_parts_are_named(form: str, folder: Path, weights: dict[str, Tensor]) -> None:
    stored, _ = packed(weights, form)
    del stored["llm.model.layers.1.mlp.up_proj.qzeros"]
    write_config(folder, quantization_config=FORMS[form])
    save_file(stored, folder / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj cannot be read: 'qzeros'"):
        load(folder)


def test_packed_weights_that_the_configuration_does_not_mention_do_not_fit(
    folder: Path, weights: dict[str, Tensor]
) -> None:
    save_file(packed(weights, "awq")[0], folder / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=r"missing: llm\.model.*weight(.|\n)*unexpected.*q"):
        load(folder)
