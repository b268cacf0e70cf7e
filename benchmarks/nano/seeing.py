"""Gate "sees": typed questions about rendered scenes with camera artefacts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image

from benchmarks.nano import gates
from benchmarks.nano.gates import Figure, share
from benchmarks.nano.runs import Stage, is_exact
from MiniCPMO45.engine.policies import GenerationSettings
from MiniCPMO45.modes.prompt_input import PrefillOptions
from training.nano.domain.camera import DIGIT, INTENTS
from training.nano.domain.catalogue import answer, words_of
from training.nano.domain.kinds import Context, Scene
from training.nano.vision.pictures import Painter
from training.nano.vision.stencils import Stencils, write_stencils

FONTS = Path("/usr/share/fonts/truetype")
CAMERAS = ((640, 480), (1280, 720), (480, 640), (448, 448))
JPEG_QUALITY = 80
QUESTIONS = {
    "see_colour": "What color is it?",
    "see_shape": "What shape is it?",
    "see_digit": "What number is it?",
    "see_count": "How many do you see?",
}


def scenes(count: int, seed: int, folder: Path) -> Iterator[tuple[Scene, Image.Image]]:
    """Yield pictures with digits in held-out fonts, cached in `folder`; AssetsError without any."""
    stencils = folder / "stencils.npz"
    if not stencils.is_file():
        write_stencils(stencils, FONTS)
    generator = torch.Generator().manual_seed(seed)
    painter = Painter(Stencils.load(stencils, torch.device("cpu"), held_out=True), generator)
    made, random = 0, Random(seed)
    while made < count:
        labels = painter.draw_labels(1)
        [scene] = labels.scenes()
        if scene is None:
            continue
        [pixels] = painter.paint(labels, *random.choice(CAMERAS))
        array = (pixels.permute(1, 2, 0) * 255).round().byte().numpy()
        made += 1
        yield scene, _through_jpeg(Image.fromarray(np.ascontiguousarray(array)))


def sees(stage: Stage, count: int, seed: int, folder: Path) -> Figure:
    settings = GenerationSettings(do_sample=False, max_new_tokens=40, generate_audio=False)
    options = PrefillOptions(max_slice_nums=1)
    asked = [
        (picture, QUESTIONS[name], _right(name, scene))
        for scene, picture in scenes(count, seed, folder)
        for name in _asked_of(scene)
    ]
    replies = stage.answer(([picture, text] for picture, text, _ in asked), settings, options)
    wrong = [
        f"{wanted!r} → {reply.text!r}"
        for (_, _, wanted), reply in zip(asked, replies, strict=True)
        if not is_exact(reply.text, {tuple(words_of(wanted))})
    ]
    return share(gates.SEES, len(asked) - len(wrong), len(asked), "; ".join(wrong[:6]))


def _asked_of(scene: Scene) -> list[str]:
    return (
        ["see_colour", "see_digit"]
        if scene.shape == DIGIT
        else ["see_colour", "see_shape", "see_count"]
    )


def _right(name: str, scene: Scene) -> str:
    intent = next(each for each in INTENTS if each.name == name)
    return answer(intent.questions[0], Context(scene=scene), Random(0))


def _through_jpeg(picture: Image.Image) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=JPEG_QUALITY)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")
