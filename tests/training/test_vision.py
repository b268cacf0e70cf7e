"""Painted training pictures, and the vision encoder on them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from core.packages import AssetsError
from MiniCPMO45.model.vision import SliceEncoder
from MiniCPMO45.processing.pictures import slice_image
from MiniCPMO45.processing.pictures import to_patches as patches_of
from training.nano import shapes
from training.nano.domain.camera import DIGIT, MOST_THINGS, shown_words
from training.nano.domain.kinds import Scene
from training.nano.domain.spoken_numbers import cardinal
from training.nano.domain.words import SCENE_COLOURS, SCENE_SHAPES
from training.nano.optimizing import Optimizer, fast
from training.nano.vision.encoder import SERVED_RESOLUTION, VisionEncoder, served_size
from training.nano.vision.pictures import RANGES, Painter, draw_colours, through_jpeg, to_patches
from training.nano.vision.places import (
    PATCH_SIZES,
    SIZES,
    is_right,
    patch_labels,
    patch_loss,
    reading_loss,
    targets_of,
    word_ids,
)
from training.nano.vision.scenes import N_SHAPES, NOTHING, Labels, place
from training.nano.vision.stages import RECIPE, Drawn, Teaching
from training.nano.vision.stencils import Stencils, write_stencils
from training.nano.voice.stage_clock import StageClock

SIDE = 32


def stencils() -> Stencils:
    kinds = torch.arange(N_SHAPES + 10)
    return Stencils(torch.ones(len(kinds), SIDE, SIDE), kinds)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_picture(pixels: Tensor) -> Image.Image:
    """Return one painted picture as a PIL image."""
    return Image.fromarray((pixels.permute(1, 2, 0) * 255).round().byte().numpy())


@pytest.fixture(scope="module")
def painted() -> tuple[Labels, Tensor]:
    painter = Painter(stencils(), generator())
    labels = painter.draw_labels(6)
    return labels, painter.paint(labels, *served_size((640, 480), 112))


def test_patches_equal_serving(painted: tuple[Labels, Tensor]) -> None:
    _, pictures = painted
    mine = to_patches(pictures, 14)
    for pixels, patches in zip(pictures, mine, strict=True):
        served = patches_of(as_picture(pixels))
        assert np.allclose(served.values, patches.numpy(), atol=1e-6)


@torch.no_grad()
def test_encoder_output_equals_serving(painted: tuple[Labels, Tensor]) -> None:
    torch.manual_seed(0)
    _, pictures = painted
    vision = VisionEncoder(shapes.config()).eval()
    patches = [patches_of(as_picture(pixels)) for pixels in pictures]
    served = torch.stack(SliceEncoder(vision.vpm, vision.resampler).encode(patches))
    assert torch.allclose(vision(pictures), served, atol=1e-4)


def test_window_positions_are_those_in_the_whole_picture() -> None:
    vision = VisionEncoder(shapes.config())
    whole = vision.positions((21, 28), (21, 28)).view(21, 28)
    window = vision.positions((6, 8), (21, 28), (10, 20)).view(6, 8)
    assert torch.equal(window, whole[10:16, 20:28])


def test_initial_patch_embeddings_are_uncorrelated(painted: tuple[Labels, Tensor]) -> None:
    vision = VisionEncoder(shapes.config())
    vision.begin(painted[1])
    embedding = vision.vpm.embeddings.patch_embedding
    patches = to_patches(painted[1], 14).flatten(0, 1)
    embedded = torch.nn.functional.linear(patches, embedding.weight.flatten(1), embedding.bias)
    correlated = torch.corrcoef(embedded.detach().T)
    assert float(embedded.detach().mean(0).abs().max()) < 1e-3
    assert float((correlated - torch.eye(len(correlated))).abs().max()) < 0.02


def test_stencils_without_fonts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssetsError, match="fonts-liberation"):
        write_stencils(tmp_path / "stencils.npz", tmp_path)
    assert not (tmp_path / "stencils.npz").exists()


def test_served_size_is_that_of_the_only_slice() -> None:
    picture = Image.new("RGB", (1280, 720))
    [only] = slice_image(picture, 1, shapes.config().slice_config).slices
    assert served_size((1280, 720), SERVED_RESOLUTION) == only.extent


def test_differentiable_jpeg_approximates_jpeg_files(painted: tuple[Labels, Tensor]) -> None:
    _, pictures = painted
    file = io.BytesIO()
    as_picture(pictures[0]).save(file, "JPEG", quality=50, subsampling=0)
    wanted = np.asarray(Image.open(file)).astype(np.float32) / 255
    [mine] = through_jpeg(pictures[:1], 50)
    assert np.abs(mine.permute(1, 2, 0).numpy() - wanted).mean() < 2 / 255


def labels_of(scenes: Sequence[Scene | None]) -> Labels:
    digits = [cardinal(n) for n in range(10)]
    counts = [cardinal(n + 1) for n in range(MOST_THINGS)]
    rows = []
    for scene in scenes:
        if scene is None:
            rows.append([NOTHING] * 4)
            continue
        is_digit = scene.shape == DIGIT
        shape = N_SHAPES if is_digit else SCENE_SHAPES.index(scene.shape)
        digit = digits.index(scene.digit) if is_digit else NOTHING
        colour = SCENE_COLOURS.index(scene.colour)
        rows.append([colour, shape, digit, counts.index(scene.count)])
    return Labels(*torch.tensor(rows).unbind(1))


def test_labels_are_the_scenes_of_the_domain() -> None:
    labels = Labels.draw(200, generator())
    again = labels_of(labels.scenes())
    assert all(
        torch.equal(one, other)
        for one, other in zip(vars(labels).values(), vars(again).values(), strict=True)
    )
    assert None in labels.scenes()
    assert Scene("red", "star", "", "two") in Labels.draw(3000, generator(1)).scenes()


def test_objects_are_apart_and_inside_the_picture() -> None:
    labels = Labels.draw(300, generator(2))
    width, height = served_size((640, 480), 448)
    placing = place(labels, width, height, generator(3))
    assert torch.equal((placing.radii > 0).sum(1), labels.count + 1)
    for centres, radii in zip(placing.centres, placing.radii, strict=True):
        there = [(c, r) for c, r in zip(centres, radii, strict=True) if r > 0]
        for n, (centre, radius) in enumerate(there):
            assert bool((centre - radius >= -1).all())
            assert bool((centre + radius <= torch.tensor([width + 1, height + 1])).all())
            for other, other_radius in there[:n]:
                apart = (centre - other).abs().max()
                assert float(apart) >= 0.9 * float(radius + other_radius) - 1


def test_colours_have_distinct_hues() -> None:
    assert set(RANGES) == set(SCENE_COLOURS)
    names = torch.arange(len(SCENE_COLOURS)).repeat(50)
    drawn = draw_colours(names, generator())
    red = drawn[names == SCENE_COLOURS.index("red")]
    blue = drawn[names == SCENE_COLOURS.index("blue")]
    assert bool((red[:, 0] > red[:, 2] + 0.3).all())
    assert bool((blue[:, 2] > blue[:, 0] + 0.2).all())


def test_caption_words_are_single_tokens() -> None:
    tokenizer = shapes.tokenizer()
    ids = word_ids(tokenizer)
    assert [len(column) + 1 for column in ids] == list(SIZES)
    assert all(len(set(column)) == len(column) for column in ids)
    scene = Scene("pink", "digit", "seven", "one")
    [wanted] = targets_of(labels_of([scene])).tolist()
    spelled = [ids[place][entry] for place, entry in enumerate(wanted)]
    assert spelled == tokenizer.encode(shown_words(scene))


def test_objects_are_painted_at_their_positions() -> None:
    painter = Painter(stencils(), generator(4))
    labels = painter.draw_labels(12)
    width, height = served_size((640, 480), 224)
    placing = painter.place(labels, width, height, 8.5)
    pictures = painter.paint(labels, width, height, placing)
    is_blue = labels.colour == SCENE_COLOURS.index("blue")
    assert bool(is_blue.any())
    for number in is_blue.nonzero().flatten().tolist():
        there = placing.radii[number] > 0
        for x, y in placing.centres[number][there].int().tolist():
            red, _, blue = pictures[number, :, y, x].tolist()
            assert blue > red + 0.1


def test_patch_labels_are_those_of_the_object_below() -> None:
    labels = Labels.draw(60, generator(5))
    placing = place(labels, 28 * 14, 21 * 14, generator(6))
    told_of = patch_labels(labels, placing, (21, 28), 14).unflatten(1, (21, 28))
    is_on = told_of[..., 0] != PATCH_SIZES[0] - 1
    assert torch.equal(is_on.any(2).any(1), labels.count >= 0)
    first = int((labels.count >= 0).nonzero()[0])
    x, y = (placing.centres[first, 0] // 14).int().tolist()
    wanted = [int(labels.kinds[first]), int(labels.colour[first]), int(labels.count[first])]
    assert told_of[first, y, x].tolist() == wanted


def test_object_and_background_patches_have_equal_loss_weight() -> None:
    wanted = torch.tensor([[[0, 0, 0]] + [[size - 1 for size in PATCH_SIZES]] * 9])
    sure = [torch.zeros(1, 10, size) for size in PATCH_SIZES]
    for scores in sure:
        scores[..., -1] = 30.0
    assert float(patch_loss(tuple(sure), wanted)) == pytest.approx(15.0, abs=0.1)


def test_mixed_precision_error_is_bounded(painted: tuple[Labels, Tensor]) -> None:
    torch.manual_seed(0)
    vision = VisionEncoder(shapes.config()).eval()
    with torch.no_grad():
        wanted = vision(painted[1])
        with fast(torch.device("cpu")):
            found = vision(painted[1])
    assert float((found - wanted).square().mean() / wanted.square().mean()) < 1e-3


@pytest.mark.learning
def test_encoder_overfits_a_few_pictures() -> None:
    torch.manual_seed(0)
    painter = Painter(stencils(), generator())
    labels = painter.draw_labels(6)
    width, height = served_size((640, 480), 112)
    placing = painter.place(labels, width, height, 8.5)
    whole = served_size((640, 480), SERVED_RESOLUTION)
    drawn = Drawn(labels, placing, painter.paint(labels, width, height, placing), whole)
    teaching = Teaching(shapes.config())
    optimizer, random = Optimizer(teaching, 3e-3, RECIPE), Random(0)
    for tick in StageClock(40).ticks("by heart"):
        rows, by_patch = teaching(drawn, random)
        read = teaching.readers(rows)
        optimizer.step(reading_loss(read, targets_of(labels)) + by_patch, tick)
    assert bool(is_right(read, targets_of(labels)).all())
    assert len(SCENE_SHAPES) == N_SHAPES
