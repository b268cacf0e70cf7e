"""Compares the picture input: slices, pixels, vision tower and resampler."""

from __future__ import annotations

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from MiniCPMO45.model.vision import (
    PatchSize,
    Resampler,
    SiglipVisionTransformer,
    SliceEncoder,
    patch_grid,
)
from MiniCPMO45.processing.pictures import (
    Patches,
    SlicedImage,
    render_slices,
    slice_image,
    to_patches,
    to_strip,
)
from tests.goldens.folder import GoldenFolder
from tests.goldens.report import Report
from tests.goldens.resizing import compare_in_either_order

PIXELS = "image_preprocess"
PIXELS_META = "image_preprocess_meta"
RGB = "image_slices_rgb"
VISION = "vision"
RESAMPLER = "resampler_standalone"
FILES: tuple[str, ...] = (PIXELS, RGB, VISION, RESAMPLER)

HIDDEN_RTOL_OF_MAX = 1e-4
SUM_RTOL = 1e-6  # sums of exact pixels, rounded to float32
PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
CHANNELS_PER_HEAD = 128  # of the resampler


def compare(folder: GoldenFolder, report: Report) -> None:
    """Compare the folder's recordings of picture input."""
    compare_in_either_order("pictures", report, lambda verdicts: _compare(folder, verdicts))


def _compare(folder: GoldenFolder, report: Report) -> None:
    pictures = Pictures(folder)
    with torch.inference_mode():
        if folder.has(PIXELS):
            _compare_plans(pictures, report)
            _compare_pixels(pictures, report)
        if folder.has(RGB):
            _compare_rgb(pictures, report)
        if folder.has(VISION):
            _compare_vision(pictures, report)
        if folder.has(RESAMPLER):
            _compare_resampler(folder, report)


class Pictures:
    """The pictures of a folder, sliced with the recorded limits."""

    def __init__(self, folder: GoldenFolder) -> None:
        self.folder = folder
        self.sliced = cache(self._slice)
        self.rendered = cache(self._render)
        self.patches = cache(self._patches)

    @cached_property
    def notes(self) -> dict[str, dict[str, Any]]:
        """By picture: its size, the limit it was sliced with, and what came out."""
        return self.folder.meta(PIXELS_META)

    def original(self, name: str) -> Image.Image:
        """The input picture that the recordings call `name`."""
        for path in sorted((self.folder.path / "inputs").iterdir()):
            if path.suffix.lower() in PICTURE_SUFFIXES and name in _aliases(path):
                return self.folder.image(path.name)
        raise FileNotFoundError(f"no input picture is called {name!r}")

    def _slice(self, name: str) -> SlicedImage:
        limit = self.notes[name]["max_slice_nums"]
        return slice_image(self.original(name), limit, self.folder.config.slice_config)

    def _render(self, name: str) -> list[Image.Image]:
        return list(render_slices(self.sliced(name).slices))

    def _patches(self, name: str) -> list[Patches]:
        return [to_patches(picture) for picture in self.rendered(name)]


def _aliases(path: Path) -> set[str]:
    """`image_small.png` is called "small", `frame_0.png` is called "frame0"."""
    return {path.stem, path.stem.removeprefix("image_"), path.stem.replace("_", "")}


def _compare_plans(pictures: Pictures, report: Report) -> None:
    for name, note in pictures.notes.items():
        sliced = pictures.sliced(name)
        actual = {
            "size": list(pictures.original(name).size),
            "grid": list(sliced.grid) if sliced.grid else None,
            "slice_sizes": [list(each.extent) for each in sliced.slices],
        }
        for key, expected in note.items():
            if key == "max_slice_nums":
                report.given(f"{PIXELS_META}/{name}.{key}")
            else:
                report.exact(f"{PIXELS_META}/{name}.{key}", actual[key], expected)


def _compare_pixels(pictures: Pictures, report: Report) -> None:
    for key, expected in sorted(pictures.folder.tensors(PIXELS).items()):
        title = f"{PIXELS}/{key}"
        if found := re.fullmatch(r"(.+)_tgt_sizes", key):
            sizes = [patches.size for patches in pictures.patches(found[1])]
            report.exact(title, np.array(sizes, dtype=expected.dtype), expected)
            continue
        found = re.fullmatch(r"(.+)_slice(\d+)_pixels_(?:sum|first\d+)", key)
        assert found, f"{key} follows no known pattern"
        strip = to_strip(pictures.patches(found[1])[int(found[2])])
        if key.endswith("_sum"):
            report.close(title, np.sum(strip, dtype=np.float64), expected, rtol=SUM_RTOL)
        else:
            report.exact(title, strip[:, :, : expected.shape[2]], expected)


def _compare_rgb(pictures: Pictures, report: Report) -> None:
    recorded = pictures.folder.tensors(RGB)
    counts: dict[str, int] = {}
    for key, expected in sorted(recorded.items()):
        found = re.fullmatch(r"(.+)_slice(\d+)_rgb", key)
        assert found, f"{key} follows no known pattern"
        name, index = found[1], int(found[2])
        counts[name] = counts.get(name, 0) + 1
        report.exact(f"{RGB}/{key}", np.asarray(pictures.rendered(name)[index]), expected)
    for name, count in counts.items():
        report.exact(f"{RGB}/(slices of {name})", len(pictures.sliced(name).slices), count)


def load_seeing(folder: GoldenFolder) -> tuple[SiglipVisionTransformer, Resampler]:
    """Build vision tower and resampler with a folder's tiny checkpoint, float32."""
    config = folder.config
    with torch.device("meta"):
        vision = SiglipVisionTransformer(
            config.vision_config, drop_last_layer=config.drop_vision_last_layer
        )
        resampler = Resampler(
            config.query_num,
            config.hidden_size,
            config.vision_config.hidden_size,
            config.resampler_heads,
        )
    vision.load_state_dict(folder.weights("vpm."), assign=True)
    resampler.load_state_dict(folder.weights("resampler."), assign=True)
    return vision, resampler


def _compare_vision(pictures: Pictures, report: Report) -> None:
    recorded = pictures.folder.tensors(VISION)
    encoder = SliceEncoder(*load_seeing(pictures.folder))
    features = cache(lambda name: _features(encoder, pictures.patches(name)))
    for key, expected in sorted(recorded.items()):
        if found := re.fullmatch(r"(.+)_resampled", key):
            encoded = encoder.encode(pictures.patches(found[1]))
            _close(report, f"{VISION}/{key}", torch.stack(encoded), expected)
            continue
        found = re.fullmatch(r"(.+)_vit_out_(\d+)(?:_first(\d+))?", key)
        assert found, f"{key} follows no known pattern"
        actual = features(found[1])[int(found[2])]
        if found[3]:
            actual = actual[: int(found[3])]
        _close(report, f"{VISION}/{key}", actual, expected)


def _features(encoder: SliceEncoder, patches: list[Patches]) -> list[torch.Tensor]:
    """The vision tower's rows of every slice of one picture."""
    features: list[torch.Tensor] = []
    for each in patches:
        grid = encoder.grid([each.size], len(each.values))
        features.append(encoder.vision(torch.from_numpy(each.values)[None], grid.ids)[0])
    return features


def _compare_resampler(folder: GoldenFolder, report: Report) -> None:
    recorded = folder.tensors(RESAMPLER)
    weights = {k.removeprefix("w."): v for k, v in recorded.items() if k.startswith("w.")}
    queries, width = weights["query"].shape
    kv_dim = weights["kv_proj.weight"].shape[1]
    resampler = Resampler(queries, width, kv_dim, max(1, width // CHANNELS_PER_HEAD))
    resampler.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    report.given(*(f"{RESAMPLER}/w.{name}" for name in weights))
    for key, expected in sorted(recorded.items()):
        if key != "y" and not key.startswith("y_"):
            continue
        ending = key.removeprefix("y")
        sizes: list[PatchSize] = [(int(r), int(c)) for r, c in recorded[f"tgt_sizes{ending}"]]
        x = torch.from_numpy(recorded[f"x{ending}"])
        grid = patch_grid(sizes, x.shape[1], buckets=1, width=width, like=x)
        actual = resampler(x, grid)
        report.given(f"{RESAMPLER}/x{ending}", f"{RESAMPLER}/tgt_sizes{ending}")
        _close(report, f"{RESAMPLER}/{key}", actual, expected)


def _close(report: Report, name: str, actual: torch.Tensor, expected: np.ndarray) -> None:
    report.close(name, actual.numpy(), expected, rtol_of_max=HIDDEN_RTOL_OF_MAX)
