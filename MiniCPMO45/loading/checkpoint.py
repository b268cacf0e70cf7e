"""Checks a checkpoint folder and loads its weights to the device, one tensor at a time.

The model is never in memory twice, and no code of a checkpoint is executed. The language model may
be quantised while it is loaded: its projections as requested, its output head and, with `int4`,
its embedding table to 8 bits. The other parts are a seventh of the bytes.
"""

from __future__ import annotations

import json
import logging
import math
import pickle
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm import tqdm

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.loading.checkpoint_source import (
    CONFIG_FILE,
    HUGGINGFACE_ID,
    CheckpointError,
    read_json_object,
    read_quantisation,
)
from MiniCPMO45.loading.quantisation import (
    PARTS,
    WORDS,
    matrix_shape,
    read_matrix,
    reserve_quantised,
    stored_tensors,
)
from MiniCPMO45.settings import LoadOptions

logger = logging.getLogger(__name__)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TINY_VARIANT = "tiny"
"""`model_variant` of the generated checkpoints with random weights."""

_LFS_POINTER = b"version https://git-lfs"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_LISTED_NAMES = 20  # most names of each kind in an error
_GAIN_NAME = "original0"  # norm of each row under torch's weight_norm parametrization


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, or in `parts` the tensors of a packed matrix."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    form: str | None = None
    parts: Mapping[str, StoredTensor] = field(default_factory=dict)


def read_config(folder: Path) -> MiniCPMOConfig:
    """Read and check `config.json`.

    Raises:
        CheckpointError: it is damaged, of another model, or its weights cannot be read.
    """
    file = folder / CONFIG_FILE
    values = read_json_object(file)
    read_quantisation(values)
    values.pop("quantization_config", None)  # the model in memory is not of that form
    if values.get("model_type") != MiniCPMOConfig.model_type:
        raise CheckpointError(
            f"{file}: model_type is {json.dumps(values.get('model_type'))}, so "
            f"this is not a MiniCPM-o 4.5 checkpoint. Use {HUGGINGFACE_ID}."
        )
    try:
        config = MiniCPMOConfig.from_dict(values)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be used: {' '.join(str(error).split())}") from error
    assert isinstance(config, MiniCPMOConfig)
    if config.model_variant:
        note = "; its weights are random" if config.model_variant == TINY_VARIANT else ""
        logger.warning(
            "%s is not the published model: it is marked %r%s", folder, config.model_variant, note
        )
    return config


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint folder by name, in file order, without reading values.

    Raises:
        CheckpointError: there are no weights, a file is missing or damaged, or the index names the
            wrong file for a tensor.
    """
    index = folder / INDEX_FILE
    if not index.is_file():
        single = folder / SINGLE_FILE
        if single.is_file():
            return _read_header(single)
        raise CheckpointError(
            f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}, so there are no weights. "
            "Download the checkpoint completely."
        )
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no usable weight_map. Download it again.")
    files = sorted({folder / Path(str(name)).name for name in weight_map.values()})
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight files are missing from {folder}: "
            f"{shorten(missing)}. Download the checkpoint completely."
        )
    found = {name: stored for file in files for name, stored in _read_header(file).items()}
    misplaced = [n for n, f in weight_map.items() if n not in found or found[n].file.name != f]
    if misplaced:
        raise CheckpointError(
            f"{INDEX_FILE} of {folder} places {len(misplaced)} tensors in files that do not hold "
            f"them: {shorten(misplaced)}. Download the index and the weight files again."
        )
    return found


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        with file.open("rb") as opened:
            begin = opened.read(len(_LFS_POINTER))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if begin == _LFS_POINTER:
        raise CheckpointError(
            f"{file} is a Git LFS pointer, not the weights. Run `git lfs pull` there."
        )
    with _open_safetensors(file) as weights:
        slices = {name: weights.get_slice(name) for name in weights.offset_keys()}
        return {
            name: StoredTensor(file, part.get_dtype(), tuple(part.get_shape()))
            for name, part in slices.items()
        }


@contextmanager
def _open_safetensors(file: Path) -> Iterator[Any]:  # Any: safetensors declares no type
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} is not a complete safetensors file ({error}). Download it again."
        ) from error


def expected_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's state dict; the module may be on the meta device."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def load_weights(
    module: nn.Module, folder: Path, options: LoadOptions, omitted: tuple[str, ...] = ()
) -> None:
    """Load weights into a module built on the meta device, without gradients.

    Tensors whose names begin with one of `omitted` are not read. Tensors of `options.overlay`, a
    `.pt` file, take precedence; those unknown to the model are logged and ignored.

    Raises:
        CheckpointError: tensors are missing, unexpected or of another shape or type (one error
            lists them all), or a file is damaged.
    """
    start, device, dtype = time.perf_counter(), options.device, options.dtype
    stored, shapes, config = read_headers(folder), expected_shapes(module), folder / CONFIG_FILE
    form = read_quantisation(read_json_object(config)) if config.is_file() else None
    if form is not None:
        stored = _with_packed(stored, form)
    stored = {name: each for name, each in stored.items() if not name.startswith(omitted)}
    _require_match(shapes, stored, folder)
    schemes = reserve_quantised(module, options.weights, dtype, device)
    replaced = {} if options.overlay is None else _read_overlay(options.overlay, shapes)
    total, loaded = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize, 0
    tensors: dict[str, Tensor] = {}
    is_hidden = not options.show_progress
    with tqdm(
        total=total, desc="Loading weights", unit="B", unit_scale=True, disable=is_hidden
    ) as bar:
        for name, source, scales in _read_tensors(stored, replaced, device):
            tensors |= stored_tensors(name, source, schemes.get(name), device, dtype, scales)
            n_bytes = source.numel() * dtype.itemsize
            bar.update(n_bytes)
            loaded += n_bytes
            options.report("loading weights", loaded / total)
    module.load_state_dict(tensors, strict=True, assign=True)
    module.requires_grad_(False).eval()
    logger.info(
        "loaded %d tensors (%d from the overlay), %.2f GB in %.1f s from %s",
        len(tensors),
        len(replaced),
        total / 1e9,
        time.perf_counter() - start,
        folder,
    )


def _with_packed(stored: Mapping[str, StoredTensor], form: str) -> dict[str, StoredTensor]:
    """Replace the parts of each packed matrix by the matrix."""
    found = {}
    for name, each in stored.items():
        layer, _, part = name.rpartition(".")
        words = stored.get(f"{layer}.{WORDS}")
        if words is None or part not in PARTS:
            found[name] = each
        elif part == WORDS:
            named = {key: f"{layer}.{key}" for key in PARTS}
            parts = {key: stored[full] for key, full in named.items() if full in stored}
            shape = matrix_shape(form, each.shape)
            found[f"{layer}.weight"] = StoredTensor(each.file, "F16", shape, form, parts)
    return found


def _read_tensors(
    stored: Mapping[str, StoredTensor], replaced: Mapping[str, Tensor], device: torch.device
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield tensors in file order, with the scales of packed ones.

    Those of the overlay replace the stored ones.
    """
    for file in dict.fromkeys(each.file for each in stored.values()):
        with _open_safetensors(file) as weights:
            for name, each in stored.items():
                if each.file != file:
                    continue
                if name in replaced:
                    yield name, replaced[name], None
                elif each.form is None:
                    yield name, weights.get_tensor(name), None
                else:
                    layer = name.rpartition(".")[0]
                    yield name, *_read_packed(layer, each, device)


def _read_packed(
    layer: str, matrix: StoredTensor, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    parts = {}
    for part, stored in matrix.parts.items():  # a shard may end between them
        with _open_safetensors(stored.file) as weights:
            parts[part] = weights.get_tensor(f"{layer}.{part}").to(device)
    assert matrix.form is not None
    return read_matrix(matrix.form, layer, parts)


def _read_overlay(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Open a file of `torch.save`, memory-mapped if possible."""
    if not path.is_file():
        raise CheckpointError(f"There is no overlay {path}. Give an existing .pt file, or none.")
    try:
        # Only the zip format can be memory-mapped.
        values = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (pickle.UnpicklingError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"The overlay {path} is damaged or holds more than tensors, and nothing in it is "
            "executed. Save it again as a dictionary of tensors with torch.save."
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(
            f"The overlay {path} holds a {type(values).__name__}, not a dictionary of tensors."
        )
    known = {name: value for name, value in values.items() if name in shapes}
    wrong = [
        name
        for name, value in known.items()
        if not (isinstance(value, Tensor) and value.is_floating_point())
        or tuple(value.shape) != shapes[name]
    ]
    if wrong:
        raise CheckpointError(
            f"The overlay {path} does not fit the model: {len(wrong)} of its {len(values)} tensors "
            f"have another shape: {shorten(wrong)}. Use the overlay made for this model."
        )
    ignored = [str(name) for name in values if name not in shapes]
    if not known:
        raise CheckpointError(
            f"The overlay {path} holds none of the model's tensors, but "
            f"{shorten(ignored) or 'nothing'}. Save the model's state_dict() itself, without a "
            "prefix before its names."
        )
    if ignored:
        logger.warning(
            "%s: %d of its tensors are not the model's and are ignored: %s",
            path,
            len(ignored),
            shorten(ignored),
        )
    return known


def fill_randomly(name: str, tensor: Tensor, generator: torch.Generator | None = None) -> None:
    """Initialise a weight in place: gains 1, biases 0, matrices normal with variance 1 / fan-in."""
    leaf = name.rpartition(".")[2]
    if leaf.endswith("bias"):
        tensor.zero_()
    elif tensor.ndim < 2 or leaf == _GAIN_NAME:
        tensor.fill_(1.0)
    else:
        tensor.normal_(0.0, math.prod(tensor.shape[1:]) ** -0.5, generator=generator)


def _require_match(
    shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor], folder: Path
) -> None:
    unusable = [
        f"{name} {stored[name].dtype}"
        for name in shapes
        if name in stored and stored[name].dtype not in _FLOATS
    ]
    found = {name: tensor.shape for name, tensor in stored.items()}
    misfits = list_misfits(shapes, found, {"of a type that weights cannot have": unusable})
    if misfits:
        raise CheckpointError(
            f"The tensors of {folder} are not the model's: {len(shapes)} are expected, "
            f"{len(stored)} were found.\n{misfits}\nDownload the checkpoint again, or use the "
            "configuration that belongs to it."
        )


def list_misfits(
    wanted: Mapping[str, tuple[int, ...]],
    given: Mapping[str, tuple[int, ...]],
    more: Mapping[str, list[str]] | None = None,
) -> str:
    """Return a line for each kind of mismatch, empty if there is none.

    `more` has the tensors of further kinds; long lists are truncated.
    """
    kinds = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": [
            f"{name} {list(given[name])} instead of {list(shape)}"
            for name, shape in wanted.items()
            if name in given and given[name] != shape
        ],
        **(more or {}),
    }
    return "\n".join(f"  {len(v)} {kind}: {shorten(v)}" for kind, v in kinds.items() if v)


def adopt_weights(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Assign tensors to a module built on the meta device.

    Raises:
        CheckpointError: some are missing, unexpected or of another shape; one error lists them.
    """
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    misfits = list_misfits(expected_shapes(module), given)
    if misfits:
        raise CheckpointError(f"The tensors of {source} do not fit.\n{misfits}")
    module.load_state_dict(dict(tensors), strict=True, assign=True)


def shorten(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _LISTED_NAMES
    return ", ".join(listed[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")
