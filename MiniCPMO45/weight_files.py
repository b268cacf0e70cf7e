"""The weight files of a checkpoint folder: which there are and what each holds, from headers only.

No tensor is read here, and torch is not imported.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from MiniCPMO45.checkpoint_error import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Element types that weights may be stored in. Source: the safetensors format."""

_LENGTH_BYTES = 8  # little-endian length of the JSON header. Source: the safetensors format
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LFS_POINTER = b"version https://git-lfs"
_LISTED_NAMES = 10


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and what it is.

    Attributes:
        file: the safetensors file.
        dtype: the format's code of the element type, such as "BF16".
        shape: its shape.
        offset: position of its first byte among the file's tensors.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint folder.

    Args:
        folder: holds `model.safetensors`, or `model.safetensors.index.json` and its shards.

    Returns:
        The tensors by name, in the order of the files and of the bytes inside them.

    Raises:
        CheckpointError: there are no weights, a shard is missing or damaged, a tensor is stored
            twice, or the index names a tensor that its shard does not hold.
    """
    index = folder / INDEX_FILE
    if not index.is_file():
        single = folder / SINGLE_FILE
        if not single.is_file():
            raise CheckpointError(_no_weights(folder))
        return _read_header(single)
    weight_map = _weight_map(index)
    found: dict[str, StoredTensor] = {}
    for file in _shards(folder, weight_map):
        for name, stored in _read_header(file).items():
            if name in found:
                raise CheckpointError(
                    f"{name} is stored twice, in {found[name].file.name} and {file.name} "
                    f"of {folder}. Download the checkpoint again."
                )
            found[name] = stored
    _require_indexed(weight_map, found, folder)
    return found


def _no_weights(folder: Path) -> str:
    sentence = f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}, so there are no weights."
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        sentence += f" There are {_listed(others)}, but their index is missing."
    return f"{sentence} Download the checkpoint completely."


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    is_map = isinstance(weight_map, dict) and all(isinstance(v, str) for v in weight_map.values())
    if not is_map or not weight_map:
        raise CheckpointError(f"{index} has no usable weight_map. Download it again.")
    outside = [name for name in set(weight_map.values()) if Path(name).name != name]
    if outside:
        raise CheckpointError(f"{index} names a file outside its folder: {outside[0]}.")
    return dict(weight_map)


def _shards(folder: Path, weight_map: dict[str, str]) -> list[Path]:
    files = [folder / name for name in sorted(set(weight_map.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight files are missing from {folder}: "
            f"{_listed(missing)}. Download the checkpoint completely."
        )
    return files


def _require_indexed(
    weight_map: dict[str, str], found: dict[str, StoredTensor], folder: Path
) -> None:
    astray = [
        name
        for name, file in weight_map.items()
        if name not in found or found[name].file.name != file
    ]
    if astray:
        raise CheckpointError(
            f"{INDEX_FILE} of {folder} places {len(astray)} tensors in files that do not hold "
            f"them: {_listed(astray)}. Index and shards belong to different downloads; download "
            "both again."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED_NAMES]) + (" …" if len(names) > _LISTED_NAMES else "")


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds one object.

    Raises:
        CheckpointError: it is missing, unreadable, not JSON, or not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.")
    return values


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """Tensors of one safetensors file, in the order of their bytes."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            start = opened.read(len(_LFS_POINTER))
            if start == _LFS_POINTER:
                raise CheckpointError(
                    f"{file} is a Git LFS pointer, not the weights. Run `git lfs pull` there."
                )
            (length,) = struct.unpack_from("<Q", start.ljust(_LENGTH_BYTES, b"\0"))
            if not 0 < length <= min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
                raise ValueError("it has no valid header")
            opened.seek(_LENGTH_BYTES)
            entries = json.loads(opened.read(length))
        tensors = _parse_entries(file, entries, size - _LENGTH_BYTES - length)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is not a complete safetensors file ({error}). Download it again."
        ) from error
    return dict(sorted(tensors.items(), key=lambda item: item[1].offset))


def _parse_entries(file: Path, entries: Any, body_bytes: int) -> dict[str, StoredTensor]:
    tensors, end = {}, 0
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        end = max(end, int(stop))
        shape = tuple(int(size) for size in entry["shape"])
        tensors[name] = StoredTensor(file, str(entry["dtype"]), shape, int(start))
    if end > body_bytes:
        raise ValueError(f"its last {end - body_bytes} bytes are missing")
    return tensors
