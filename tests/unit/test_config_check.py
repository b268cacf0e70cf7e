"""The configuration of a checkpoint is held against its tensors and the published values."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from MiniCPMO45 import published
from MiniCPMO45.checkpoint_error import CheckpointError
from MiniCPMO45.config_check import (
    COMPONENT_PREFIXES,
    Difference,
    check_config,
    require_full_precision,
)
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from tests.source_tree import ROOT

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    """Names and shapes of the published tensors."""
    text = (ROOT / "tests" / "golden" / "state_dict.json").read_text(encoding="utf8")
    return {name: tuple(shape) for name, shape in json.loads(text).items()}


@pytest.fixture
def config() -> Config:
    """A configuration that states every published value."""
    values: Config = {part: {} for part in published.PARTS}
    for field in published.CONFIG:
        put(values, field.path, field.value)
    return json.loads(json.dumps(values))


def put(values: Config, path: str, value: object) -> None:
    """Set the field at `part.name` or `name`."""
    part, _, name = path.rpartition(".")
    (values[part] if part else values)[name] = value


def take_out(values: Config, path: str) -> None:
    """Remove the field at `part.name` or `name`."""
    part, _, name = path.rpartition(".")
    del (values[part] if part else values)[name]


def fatal(found: list[Difference]) -> list[Difference]:
    """Those that refuse to start."""
    return [difference for difference in found if difference.is_fatal]


SHAPE_FIELDS = [field.path for field in published.CONFIG if field.changes_shape]
SHAPE_NUMBERS = {
    field.path: field.value
    for field in published.CONFIG
    if field.changes_shape and type(field.value) is int
}
OTHER_FIELDS = [field for field in published.CONFIG if not field.changes_shape]


def another(value: object) -> object:
    """A different value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value * 2 or 1
        case None:
            return 1
        case _:
            return "another"


def test_published_configuration_has_no_difference(config: Config, shapes: Shapes) -> None:
    assert check_config(config, shapes) == []


def test_defaults_of_the_model_are_the_published_values() -> None:
    ours = dataclasses.asdict(MiniCPMOConfig())
    for field in published.CONFIG:
        part, _, name = field.path.rpartition(".")
        values = ours[part] if part else ours
        if name in values:
            assert values[name] == field.value, field.path


@pytest.mark.parametrize("path", SHAPE_FIELDS)
def test_shape_field_against_the_tensors_is_refused_by_name(
    path: str, config: Config, shapes: Shapes
) -> None:
    value = next(another(f.value) for f in published.CONFIG if f.path == path)
    put(config, path, value)
    refused = fatal(check_config(config, shapes))
    assert len(refused) == 1
    assert path in refused[0].message
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    assert shown in refused[0].message
    assert refused[0].tensor and refused[0].tensor in refused[0].message
    assert refused[0].tensor.startswith(COMPONENT_PREFIXES)


@pytest.mark.parametrize("path", SHAPE_NUMBERS)
def test_shape_number_one_too_small_is_refused_by_name(
    path: str, config: Config, shapes: Shapes
) -> None:
    # Smaller, since a picture one pixel larger has the same number of whole patches.
    put(config, path, SHAPE_NUMBERS[path] - 1)
    refused = fatal(check_config(config, shapes))
    assert any(path in difference.message for difference in refused)


@pytest.mark.parametrize("path", SHAPE_FIELDS)
def test_shape_field_changed_in_a_marked_checkpoint_is_refused_too(
    path: str, config: Config, shapes: Shapes
) -> None:
    config["model_variant"] = "tiny"
    put(config, path, next(another(f.value) for f in published.CONFIG if f.path == path))
    refused = check_config(config, shapes)
    assert [difference.is_fatal for difference in refused] == [True]
    assert path in refused[0].message


@pytest.mark.parametrize("field", OTHER_FIELDS, ids=lambda field: field.path)
def test_other_field_is_a_warning_only(
    field: published.PublishedField, config: Config, shapes: Shapes
) -> None:
    value = another(field.value)
    if field.path in ("vision_config.num_attention_heads", "audio_config.encoder_attention_heads"):
        value = 8  # must still divide the width
    put(config, field.path, value)
    found = check_config(config, shapes)
    assert [(difference.field, difference.is_fatal) for difference in found] == [
        (field.path, False)
    ]
    assert field.path in found[0].message


def test_marked_checkpoint_is_not_compared_with_the_published_values(
    config: Config, shapes: Shapes
) -> None:
    config["model_variant"] = "tiny"
    config["rope_theta"] = 5.0
    del config["stream_input"]
    assert check_config(config, shapes) == []


def test_shape_field_that_agrees_with_the_tensors_is_a_warning(
    config: Config, shapes: Shapes
) -> None:
    smaller = {name: shape for name, shape in shapes.items() if ".layers.35." not in name}
    config["num_hidden_layers"] = 35
    found = check_config(config, smaller)
    assert [(d.field, d.value, d.is_fatal) for d in found] == [("num_hidden_layers", 35, False)]
    assert "tensors agree" in found[0].message


def test_dropped_vision_layer_agrees_with_one_layer_less(config: Config, shapes: Shapes) -> None:
    config["drop_vision_last_layer"] = True
    assert "drop_vision_last_layer" in fatal(check_config(config, shapes))[0].message
    fewer = {n: s for n, s in shapes.items() if not n.startswith("vpm.encoder.layers.26.")}
    assert not fatal(check_config(config, fewer))


def test_absent_fields_take_the_published_value(config: Config, shapes: Shapes) -> None:
    for field in published.CONFIG:
        if not field.other_default:
            take_out(config, field.path)
    config["slice_config"] = None
    assert check_config(config, shapes) == []


def test_absent_field_with_another_default_in_the_original_is_a_warning(
    config: Config, shapes: Shapes
) -> None:
    for field in published.CONFIG:
        if field.other_default:
            take_out(config, field.path)
    found = check_config(config, shapes)
    assert not fatal(found)
    assert {d.field for d in found} == {f.path for f in published.CONFIG if f.other_default}


def test_absent_shape_field_is_held_against_the_tensors(config: Config, shapes: Shapes) -> None:
    del config["head_dim"]
    for kind in "qk":
        for layer in range(36):
            shapes = shapes | {f"llm.model.layers.{layer}.self_attn.{kind}_norm.weight": (64,)}
    assert fatal(check_config(config, shapes))[0].field == "head_dim"


@pytest.mark.parametrize(
    "path, value",
    [
        ("hidden_size", "4096"),
        ("hidden_size", None),
        ("hidden_size", 4096.0),
        ("num_hidden_layers", True),
        ("num_attention_heads", 0),
        ("vision_config.patch_size", -14),
        ("rms_norm_eps", "1e-6"),
        ("rope_theta", float("nan")),
        ("rope_theta", None),
        ("init_tts", "yes"),
        ("tts_config.projector_type", None),
        ("tts_config.num_attention_heads", [12]),
    ],
)
def test_value_of_a_useless_type_is_refused_by_name(
    path: str, value: object, config: Config, shapes: Shapes
) -> None:
    put(config, path, value)
    refused = fatal(check_config(config, shapes))
    assert [difference.field for difference in refused] == [path]


@pytest.mark.parametrize("part", published.PARTS)
def test_part_that_is_no_object_is_refused_by_name(
    part: str, config: Config, shapes: Shapes
) -> None:
    config[part] = [1]
    assert [difference.field for difference in check_config(config, shapes)] == [part]


def test_heads_that_do_not_divide_the_width_are_refused(config: Config, shapes: Shapes) -> None:
    config["vision_config"]["num_attention_heads"] = 7
    refused = fatal(check_config(config, shapes))
    assert refused[0].field == "vision_config.num_attention_heads"
    assert "1152" in refused[0].message


def test_missing_tensor_is_not_blamed_on_a_field(config: Config, shapes: Shapes) -> None:
    for name in shapes:
        if not name.startswith("llm.model.layers.35."):
            rest = {n: s for n, s in shapes.items() if n != name}
            assert not fatal(check_config(config, rest)), name


@pytest.mark.parametrize("part", ["vpm.", "apm.", "tts."])
def test_missing_part_names_its_switch(part: str, config: Config, shapes: Shapes) -> None:
    rest = {name: shape for name, shape in shapes.items() if not name.startswith(part)}
    switch = {"vpm.": "init_vision", "apm.": "init_audio", "tts.": "init_tts"}[part]
    assert [difference.field for difference in fatal(check_config(config, rest))] == [switch]


def test_another_model_is_named(shapes: Shapes) -> None:
    plain = {name.removeprefix("llm."): s for name, s in shapes.items() if name.startswith("llm.")}
    refused = check_config({"model_type": "qwen3"}, plain)
    assert [difference.is_fatal for difference in refused] == [True]
    assert "qwen3" in refused[0].message and published.HUGGINGFACE_ID in refused[0].message


def test_newer_name_of_the_dtype_is_understood(config: Config, shapes: Shapes) -> None:
    config["dtype"] = config.pop("torch_dtype")
    assert check_config(config, shapes) == []
    config["dtype"] = "float16"
    assert [difference.field for difference in check_config(config, shapes)] == ["torch_dtype"]


def test_check_changes_nothing(config: Config, shapes: Shapes) -> None:
    before = copy.deepcopy(config)
    check_config(config, shapes)
    assert config == before


@pytest.mark.parametrize(
    "quantisation, method",
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"bits": 4}, "unknown"),
    ],
)
def test_quantised_configuration_is_refused_with_what_to_do(
    quantisation: Config, method: str, config: Config
) -> None:
    with pytest.raises(CheckpointError, match="quantised") as refusal:
        require_full_precision(config | {"quantization_config": quantisation})
    assert method in str(refusal.value)
    assert f"Use the bf16 checkpoint {published.HUGGINGFACE_ID}" in str(refusal.value)


def test_packed_tensors_are_refused_even_if_the_configuration_is_silent(config: Config) -> None:
    with pytest.raises(CheckpointError, match=r"down_proj\.qweight"):
        require_full_precision(config, ["llm.model.layers.0.mlp.down_proj.qweight"])


@pytest.mark.parametrize("quantisation", [None, {}])
def test_empty_quantisation_is_none(quantisation: object, config: Config, shapes: Shapes) -> None:
    require_full_precision(config | {"quantization_config": quantisation}, shapes)


def test_check_does_not_load_torch() -> None:
    program = "import sys, MiniCPMO45.config_check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
