"""Reads a `.pt` overlay: a dictionary of tensors that replace some of a checkpoint's.

The file is a pickle; it is opened so that only tensors and plain containers can come out of it.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from MiniCPMO45.checkpoint_error import CheckpointError


@dataclass(frozen=True)
class Overlay:
    """Tensors to put in place of a checkpoint's.

    Attributes:
        tensors: by name; each has the shape the model expects.
        ignored: names in the file that the model does not have.
    """

    tensors: Mapping[str, Tensor]
    ignored: tuple[str, ...]


def read_overlay(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Overlay:
    """Open an overlay; its tensors stay in the mapped file until they are copied.

    Args:
        path: a file written by `torch.save` with a dictionary of tensors by name.
        shapes: shape of every tensor of the model by name.

    Raises:
        CheckpointError: the file is missing, damaged, holds more than tensors, or a tensor has
            another shape than the model's.
    """
    values = _load(path)
    ignored = tuple(str(name) for name in values if name not in shapes)
    known = {name: value for name, value in values.items() if name in shapes}
    wrong = [
        f"{name} {_shape(value)} instead of {list(shapes[name])}"
        for name, value in known.items()
        if not (isinstance(value, Tensor) and value.is_floating_point())
        or tuple(value.shape) != shapes[name]
    ]
    if wrong:
        raise CheckpointError(
            f"The overlay {path} does not fit the model: {len(wrong)} of its {len(values)} tensors "
            f"have another shape: {', '.join(wrong[:20])}. Use the overlay made for this model."
        )
    return Overlay(known, ignored)


def _load(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise CheckpointError(f"There is no overlay {path}. Give an existing .pt file, or none.")
    try:
        # Only the newer of the two formats can be mapped; the older one is read into memory.
        values = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"The overlay {path} is damaged or holds more than tensors, and nothing in it is "
            "executed. Save it again as a dictionary of tensors with torch.save."
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"The overlay {path} cannot be read ({error}).") from error
    if not isinstance(values, dict):
        raise CheckpointError(
            f"The overlay {path} holds a {type(values).__name__}, not a dictionary of tensors."
        )
    return values


def _shape(value: object) -> str:
    if isinstance(value, Tensor):
        kind = "" if value.is_floating_point() else f" of {value.dtype}"
        return f"{list(value.shape)}{kind}"
    return type(value).__name__
