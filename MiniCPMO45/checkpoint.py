"""Opens a checkpoint folder and puts its weights into modules built on the meta device.

A tensor goes from the mapped file to the device in its final dtype, one at a time; there is never
a second copy of the model. Every tensor is accounted for. Nothing a checkpoint names is executed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm import tqdm

from MiniCPMO45 import published
from MiniCPMO45.checkpoint_error import CheckpointError
from MiniCPMO45.checkpoint_source import find_checkpoint
from MiniCPMO45.config_check import (
    CONFIG_FILE,
    GENERATION_FILE,
    PREPROCESSOR_FILE,
    check_config,
    differences,
    require_full_precision,
)
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.overlay import Overlay, read_overlay
from MiniCPMO45.weight_files import ITEM_BYTES, StoredTensor, read_headers, read_json_object

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "LoadReport",
    "check_file_sizes",
    "drop_unused_tensors",
    "expected_shapes",
    "find_checkpoint",
    "load_weights",
    "open_checkpoint",
    "random_weights",
]

logger = logging.getLogger(__name__)

TINY_VARIANT = "tiny"
"""`model_variant` of the checkpoints that this program makes itself, with random weights."""

_RANDOM_NOTE = "; its weights are random, for tests and for starting the system"
_LISTED_NAMES = 20  # of each kind in an error; the totals are always given
_GAIN_NAME = "original0"  # weight norm's length of each row. Source: torch parametrizations


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose configuration fits its tensors.

    Attributes:
        folder: the folder.
        config: its configuration.
        tensors: what the weight files hold, by name.
        warnings: sentences about differences from the published checkpoint; logged already.
    """

    folder: Path
    config: MiniCPMOConfig
    tensors: Mapping[str, StoredTensor]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class LoadReport:
    """What loading did; every tensor of the model is in exactly one of the first three.

    Attributes:
        stored: names that came from the safetensors.
        overlaid: names that came from the overlay instead.
        dropped: names of unused tensors that were left out on request.
        ignored_overlay: names in the overlay that the model does not have.
        loaded_bytes: size of the loaded tensors on the device.
        seconds: wall time.
    """

    stored: tuple[str, ...]
    overlaid: tuple[str, ...]
    dropped: tuple[str, ...]
    ignored_overlay: tuple[str, ...]
    loaded_bytes: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{len(self.stored) + len(self.overlaid)} tensors"
        if self.overlaid:
            counts += f" ({len(self.overlaid)} from the overlay)"
        if self.dropped:
            counts += f", {len(self.dropped)} unused ones left out"
        return f"{counts}, {self.loaded_bytes / 1e9:.2f} GB in {self.seconds:.1f} s"


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read and check everything but the weights themselves.

    Args:
        folder: a checkpoint folder, see `find_checkpoint`.

    Raises:
        CheckpointError: it is damaged or quantised, or a field of its configuration contradicts
            its tensors; every such field is named with its value and a tensor.
    """
    raw = read_json_object(folder / CONFIG_FILE)
    require_full_precision(raw)
    tensors = read_headers(folder)
    require_full_precision(raw, tensors)
    found = check_config(raw, {name: stored.shape for name, stored in tensors.items()})
    fatal = [difference.message for difference in found if difference.is_fatal]
    if fatal:
        raise CheckpointError(
            f"The configuration of {folder} does not fit its tensors:\n  "
            + "\n  ".join(fatal)
            + f"\nRestore {CONFIG_FILE} as it came with these weights."
        )
    variant = raw.get("model_variant")
    warnings = tuple(difference.message for difference in found)
    if variant:
        note = _RANDOM_NOTE if variant == TINY_VARIANT else ""
        logger.warning("%s is not the published model: it is marked %r%s", folder, variant, note)
    else:
        warnings += tuple(_side_differences(folder)) + tuple(check_file_sizes(folder))
    if warnings:
        logger.warning(
            "%s differs from the published checkpoint:\n  %s", folder, "\n  ".join(warnings)
        )
    return Checkpoint(folder, MiniCPMOConfig.from_dict(raw), tensors, warnings)


def _side_differences(folder: Path) -> list[str]:
    """Differences in the two small configuration files; an absent file has none."""
    sides = ((GENERATION_FILE, published.GENERATION), (PREPROCESSOR_FILE, published.PREPROCESSOR))
    return [
        difference.message
        for file, fields in sides
        if (folder / file).is_file()
        for difference in differences(read_json_object(folder / file), fields, file)
    ]


def check_file_sizes(folder: Path) -> list[str]:
    """Compare the files beside the weights with the published sizes.

    Args:
        folder: a checkpoint folder.

    Returns:
        A sentence for each file that is absent or of another size; empty if all is well.

    Source: docs/specification/model.md#1.9.
    """
    found = []
    for name, size_bytes in published.FILE_SIZES_BYTES:
        file = folder / name
        if not file.is_file():
            found.append(f"{name} is absent")
        elif file.stat().st_size != size_bytes:
            found.append(f"{name} has {file.stat().st_size} bytes; published are {size_bytes}")
    return found


def expected_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a module (also one on the meta device) stores, by name."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def load_weights(
    module: nn.Module,
    folder: Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.bfloat16,
    overlay: Path | None = None,
    drop_unused: bool = False,
    show_progress: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> LoadReport:
    """Fill a module built on the meta device.

    Args:
        module: its tensors are replaced; they need no gradient afterwards.
        folder: the checkpoint folder.
        device: where the weights go.
        dtype: what they are stored as there.
        overlay: a `.pt` file whose tensors take precedence; names the model lacks are logged.
        drop_unused: leave out the tensors that no path reads (`UNUSED_PREFIXES`); the parameters
            become None.
        show_progress: show a bar that counts bytes.
        on_progress: told the share of the bytes that is there, 0 to 1, after each tensor.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape or of an unusable type
            (one error lists them all), or a file is damaged.
    """
    start = time.perf_counter()
    stored = read_headers(folder)
    shapes = expected_shapes(module)
    patch = read_overlay(overlay, shapes) if overlay is not None else Overlay({}, ())
    _require_match(shapes, stored, folder)
    dropped = drop_unused_tensors(module) if drop_unused else ()
    wanted = {name: stored[name] for name in stored if name not in dropped}
    if patch.ignored:
        logger.warning(
            "%s: %d of its tensors are not the model's and were ignored: %s",
            overlay,
            len(patch.ignored),
            _names(patch.ignored),
        )
    with _progress(wanted.values(), dtype, show_progress) as bar:
        tell = _Share(bar, on_progress)
        tensors = _read(wanted, patch.tensors, torch.device(device), dtype, tell)
    module.load_state_dict(tensors, strict=True, assign=True)
    _settle(module)
    report = LoadReport(
        stored=tuple(name for name in wanted if name not in patch.tensors),
        overlaid=tuple(name for name in wanted if name in patch.tensors),
        dropped=dropped,
        ignored_overlay=patch.ignored,
        loaded_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        seconds=time.perf_counter() - start,
    )
    logger.info("loaded %s from %s", report, folder)
    return report


def drop_unused_tensors(module: nn.Module) -> tuple[str, ...]:
    """Set the parameters that no path reads to None; returns their names."""
    names = tuple(
        name for name, _ in module.named_parameters() if name.startswith(published.UNUSED_PREFIXES)
    )
    for name in names:
        parent, _, leaf = name.rpartition(".")
        module.get_submodule(parent).register_parameter(leaf, None)
    return names


def random_weights(
    module: nn.Module, *, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, seed: int
) -> int:
    """Fill a module built on the meta device with random values, drawn on the device itself.

    Matrices keep the size of what passes through them (deviation 1/sqrt(inputs)); gains are 1 and
    biases 0.

    Args:
        module: its tensors are replaced; they need no gradient afterwards.
        device: where the weights are made.
        dtype: what they are.
        seed: of the generator; the same seed, device and dtype give the same weights.

    Returns:
        The number of elements.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(module).items():
        tensor = torch.empty(shape, device=device, dtype=dtype)
        leaf = name.rpartition(".")[2]
        if leaf.endswith("bias"):
            tensor.zero_()
        elif len(shape) < 2 or leaf == _GAIN_NAME:
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, math.prod(shape[1:]) ** -0.5, generator=generator)
        tensors[name] = tensor
    module.load_state_dict(tensors, strict=True, assign=True)
    _settle(module)
    return sum(tensor.numel() for tensor in tensors.values())


def _settle(module: nn.Module) -> None:
    """Weights are read only from here on, and none may have been forgotten on the meta device."""
    module.requires_grad_(False).eval()
    left = [n for n, t in (*module.named_parameters(), *module.named_buffers()) if t.is_meta]
    assert not left, f"still without values: {left}"


def _read(
    wanted: Mapping[str, StoredTensor],
    patch: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
    tell: _Share,
) -> dict[str, Tensor]:
    """Read in the order of the bytes; an overlay's tensor takes the place of the stored one."""
    tensors = {}
    for file in dict.fromkeys(stored.file for stored in wanted.values()):
        tell.file(file.name)
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in (n for n, stored in wanted.items() if stored.file == file):
                    source = patch[name] if name in patch else opened.get_tensor(name)
                    # The copy owns its memory: later changes of the mapped file cannot reach it.
                    tensors[name] = source.to(device=device, dtype=dtype, copy=True)
                    tell.add(tensors[name].nbytes)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}). Download it again.") from error
    return tensors


class _Share:
    """Counts bytes for a bar, and for whoever wants to know the share that is there."""

    def __init__(self, bar: tqdm, on_progress: Callable[[float], None] | None) -> None:
        self._bar = bar
        self._on_progress = on_progress
        self._bytes = 0

    def file(self, name: str) -> None:
        self._bar.set_postfix_str(name)

    def add(self, n_bytes: int) -> None:
        self._bytes += n_bytes
        self._bar.update(n_bytes)
        if self._on_progress is not None:
            self._on_progress(min(1.0, self._bytes / (self._bar.total or 1)))


def _progress(tensors: Iterable[StoredTensor], dtype: torch.dtype, is_shown: bool) -> tqdm:
    n_bytes = sum(stored.n_elements for stored in tensors) * dtype.itemsize
    return tqdm(
        total=n_bytes, desc="Loading weights", unit="B", unit_scale=True, disable=not is_shown
    )


def _require_match(
    shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor], folder: Path
) -> None:
    missing = [name for name in shapes if name not in stored]
    unexpected = [name for name in stored if name not in shapes]
    misshaped = [
        f"{name} {list(stored[name].shape)} instead of {list(shape)}"
        for name, shape in shapes.items()
        if name in stored and stored[name].shape != shape
    ]
    unusable = [
        f"{name} {stored[name].dtype}"
        for name in shapes
        if name in stored and stored[name].dtype not in ITEM_BYTES
    ]
    kinds: dict[str, list[Any]] = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": misshaped,
        "of a type that weights cannot have": unusable,
    }
    if any(kinds.values()):
        listed = "\n".join(
            f"  {len(names)} {kind}: {_names(names)}" for kind, names in kinds.items() if names
        )
        raise CheckpointError(
            f"The tensors of {folder} are not the model's: {len(shapes)} are expected, "
            f"{len(stored)} were found.\n{listed}\nDownload the checkpoint again, or use the "
            "configuration that belongs to it."
        )


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _LISTED_NAMES
    return ", ".join(listed[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")
