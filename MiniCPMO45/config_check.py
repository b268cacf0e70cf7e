"""Compares a checkpoint's configuration with the published one and with its own tensors.

Reads parsed JSON and tensor shapes only. It never imports torch, never executes anything the
checkpoint names, and changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from MiniCPMO45 import published
from MiniCPMO45.checkpoint_error import CheckpointError
from MiniCPMO45.config_probes import Contradiction, Shapes, contradictions
from MiniCPMO45.configuration_minicpmo import (
    AudioConfig,
    MiniCPMOConfig,
    SliceConfig,
    TTSConfig,
    VisionConfig,
)
from MiniCPMO45.published import PublishedField

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
PREPROCESSOR_FILE = "preprocessor_config.json"

COMPONENT_PREFIXES = ("llm.", "vpm.", "resampler.", "apm.", "audio_projection_layer.", "tts.")
QUANTISED_SUFFIXES = (".qweight", ".qzeros", ".g_idx", ".absmax", ".quant_map", ".weight_scale")
"""Endings of tensors that only quantised checkpoints have (AWQ, GPTQ, bitsandbytes, FP8)."""

_ALIASES = {"torch_dtype": "dtype"}
"""Newer writers use the second name."""

_RECORDS: dict[str, type] = {
    "": MiniCPMOConfig,
    "slice_config": SliceConfig,
    "vision_config": VisionConfig,
    "audio_config": AudioConfig,
    "tts_config": TTSConfig,
}


@dataclass(frozen=True)
class Difference:
    """One way in which a configuration differs from the published one or from its tensors.

    Attributes:
        field: the field, `part.name` inside a nested object.
        value: what the file has, or the published value where the file leaves the field out.
        published: the published value.
        tensor: the tensor that contradicts the field; empty if none does.
        is_fatal: the model cannot be built, or not for these tensors.
        message: one sentence that names field, value and tensor.
    """

    field: str
    value: object
    published: object
    tensor: str
    is_fatal: bool
    message: str


def check_config(raw: Mapping[str, Any], shapes: Shapes) -> list[Difference]:
    """Compare a configuration field by field.

    A field that decides a shape must agree with the tensors. Other differences from the published
    values are reported only for a checkpoint that is not marked `model_variant`.

    Args:
        raw: the parsed `config.json`.
        shapes: shape of every stored tensor by its name, from the safetensors headers.

    Returns:
        The differences, fatal ones first.

    Source: docs/specification/model.md#1.2.
    """
    if not any(name.startswith(COMPONENT_PREFIXES) for name in shapes):
        return [_another_model(raw)]
    malformed = _malformed(raw)
    if malformed:
        return malformed
    effective = {field.path: _lookup(raw, field) for field in published.CONFIG}
    fatal = [_contradicted(c, effective) for c in contradictions(effective, shapes)]
    if raw.get("model_variant"):
        return fatal
    contradicted = {difference.field for difference in fatal}
    mild = [
        difference
        for difference in differences(raw, published.CONFIG, CONFIG_FILE)
        if difference.field not in contradicted
    ]
    return fatal + mild


def differences(
    raw: Mapping[str, Any], fields: Collection[PublishedField], file: str
) -> list[Difference]:
    """Compare values with published ones; none of what it finds is fatal.

    Args:
        raw: a parsed JSON object.
        fields: what was published for it.
        file: the file's name, for the messages.
    """
    found = []
    for field in fields:
        value = _lookup(raw, field)
        if not _equal(value, field.value):
            said = f"{file}: {field.path} is {_show(value)}; published is {_show(field.value)}"
            if field.changes_shape:
                said += " (the tensors agree with the file)"
            found.append(Difference(field.path, value, field.value, "", False, said))
        elif field.other_default and not _is_given(raw, field):
            said = (
                f"{file}: {field.path} is absent; {_show(field.value)}, the published value, "
                "is used, though the original code's own default is another"
            )
            found.append(Difference(field.path, value, field.value, "", False, said))
    return found


def require_full_precision(raw: Mapping[str, Any], names: Collection[str] = ()) -> None:
    """Refuse a quantised checkpoint.

    Args:
        raw: the parsed `config.json`.
        names: names of the stored tensors, where they are known already.

    Raises:
        CheckpointError: it is quantised; the message says what to use instead.
    """
    quantisation = raw.get("quantization_config")
    packed = next((name for name in names if name.endswith(QUANTISED_SUFFIXES)), None)
    if quantisation:
        method = _quantisation_method(quantisation)
        evidence = f"quantization_config in {CONFIG_FILE} says {method}"
    elif packed is not None:
        evidence = f"it holds packed tensors such as {packed}"
    else:
        return
    raise CheckpointError(
        f"This checkpoint is quantised ({evidence}), and quantised weights are not supported. "
        f"Use the bf16 checkpoint {published.HUGGINGFACE_ID} instead "
        f"(on ModelScope {published.MODELSCOPE_ID}; 18.7 GB, for a GPU with 28 GB or more)."
    )


def _quantisation_method(quantisation: object) -> str:
    if not isinstance(quantisation, Mapping):
        return repr(quantisation)
    method = quantisation.get("quant_method")
    if not method and any(quantisation.get(key) for key in ("load_in_4bit", "load_in_8bit")):
        method = "bitsandbytes"
    return f"quant_method {method or 'unknown'}"


def _another_model(raw: Mapping[str, Any]) -> Difference:
    value = raw.get("model_type")
    message = (
        f"{CONFIG_FILE}: model_type is {_show(value)}, and no tensor begins with "
        f"{', '.join(COMPONENT_PREFIXES)}: this is not a MiniCPM-o 4.5 checkpoint; "
        f"use {published.HUGGINGFACE_ID}"
    )
    return Difference("model_type", value, "minicpmo", "", True, message)


def _contradicted(found: Contradiction, effective: Mapping[str, object]) -> Difference:
    value = effective[found.field]
    message = f"{CONFIG_FILE}: {found.field} is {_show(value)}, but {found.reason}"
    expected = next(f.value for f in published.CONFIG if f.path == found.field)
    return Difference(found.field, value, expected, found.tensor, True, message)


def _malformed(raw: Mapping[str, Any]) -> list[Difference]:
    """Fields of a type that nothing can be built from."""
    found = []
    for part in published.PARTS:
        if not isinstance(raw.get(part) or {}, Mapping):
            message = f"{CONFIG_FILE}: {part} is not an object"
            found.append(Difference(part, raw[part], None, "", True, message))
    broken = {difference.field for difference in found}
    for field in published.CONFIG:
        if _split(field.path)[0] in broken:
            continue
        value = _lookup(raw, field)
        wanted = _wanted_kind(field, value)
        if wanted:
            message = f"{CONFIG_FILE}: {field.path} is {_show(value)}, which is not {wanted}"
            found.append(Difference(field.path, value, field.value, "", True, message))
    return found


def _wanted_kind(field: PublishedField, value: object) -> str:
    """What the value should have been; empty if it will do, or if nothing is made of it."""
    part, name = _split(field.path)
    is_read = name in {f.name for f in dataclasses.fields(_RECORDS[part])}
    if not is_read or name.endswith("token_id"):
        return ""
    match field.value:
        case bool():
            is_fit = isinstance(value, bool) or not field.changes_shape
            return "" if is_fit else "true or false"
        case int():
            is_fit = isinstance(value, int) and not isinstance(value, bool) and value > 0
            return "" if is_fit else "a positive whole number"
        case float():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_fit = is_number and math.isfinite(cast(float, value))
            return "" if is_fit else "a number"
        case str():
            return "" if isinstance(value, str) or not field.changes_shape else "a text"
        case _:
            return ""


def _split(path: str) -> tuple[str, str]:
    part, _, name = path.rpartition(".")
    return part, name


def _is_given(raw: Mapping[str, Any], field: PublishedField) -> bool:
    part, name = _split(field.path)
    return name in ((raw.get(part) or {}) if part else raw)


def _lookup(raw: Mapping[str, Any], field: PublishedField) -> object:
    """The file's value, or the published one where the file leaves the field out."""
    part, name = _split(field.path)
    values = (raw.get(part) or {}) if part else raw
    if name not in values:
        name = _ALIASES.get(name, name)
    value = values.get(name, field.value)
    return tuple(value) if isinstance(value, list) else value


def _equal(value: object, expected: object) -> bool:
    is_same_kind = isinstance(value, bool) == isinstance(expected, bool)
    return is_same_kind and value == expected


def _show(value: object) -> str:
    """The value as JSON shows it, shortened."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            shown = f'"{value}"'
        case _:
            shown = str(list(value) if isinstance(value, tuple) else value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
