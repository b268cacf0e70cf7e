"""The stages of the vision encoder in sequence."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.conftest import Nano
from training.nano.listening import FILE as LISTENING_FILE
from training.nano.listening import SIDE_FOLDER
from training.nano.vision import stages
from training.nano.vision.encoder import SERVED_RESOLUTION, served_size
from training.nano.vision.pictures import Painter
from training.nano.vision.places import EmbeddingReaders, targets_of, word_ids
from training.nano.vision.scenes import N_SHAPES
from training.nano.vision.stages import FILE, FILES, Setting, Teaching
from training.nano.vision.stencils import SIDE, Stencils
from training.nano.voice.stage_clock import StageClock, save

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stencils_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A square for every shape, and for every digit in a font of training and in a held-out one."""
    kinds = np.concatenate((np.arange(N_SHAPES + 10), np.arange(N_SHAPES, N_SHAPES + 10)))
    masks = np.full((len(kinds), SIDE, SIDE), 255, np.uint8)
    path = tmp_path_factory.mktemp("stencils") / "stencils.npz"
    np.savez(path, masks=masks, kinds=kinds, is_held_out=np.arange(len(kinds)) >= N_SHAPES + 10)
    return path


@pytest.fixture
def language_model(nano: Nano, tmp_path: Path) -> Path:
    """Output folder of stage "listen", with untrained weights."""
    folder = tmp_path / "listening"
    shutil.copytree(nano.checkpoint, folder / SIDE_FOLDER)
    save(nano.fresh_model().trained_state(), folder / LISTENING_FILE)
    return folder


def weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / FILE, weights_only=True)


@pytest.mark.learning
def test_each_stage_starts_from_the_previous_one(
    nano: Nano, stencils_file: Path, language_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "vision"
    setting = Setting(stencils_file, out, StageClock(2), CPU, batch=1, rate=1e-3)
    known = (language_model / LISTENING_FILE).read_bytes()

    stages.learn_attributes(setting)
    seen = weights(out)
    assert {path.name for path in out.iterdir()} == set(FILES.values())

    stages.learn_words(setting, language_model)
    worded = weights(out)

    stages.learn_questions(setting, language_model, [nano.bank_folder], nano.encoder, 0)
    asked = weights(out)

    for earlier, later in ((seen, worded), (worded, asked)):
        assert earlier.keys() == later.keys()
        name = "vpm.encoder.layers.0.mlp.fc1.weight"
        apart = (later[name] - earlier[name]).float().norm() / earlier[name].float().norm()
        assert 0 < float(apart) < 0.1
    assert all(bool(tensor.isfinite().all()) for tensor in asked.values())
    assert (language_model / LISTENING_FILE).read_bytes() == known


@pytest.mark.learning
@torch.no_grad()
def test_fit_reduces_the_distance_to_word_embeddings(
    nano: Nano, stencils_file: Path, language_model: Path, tmp_path: Path
) -> None:
    setting = Setting(stencils_file, tmp_path / "vision", StageClock(1), CPU, batch=2, rate=1e-9)
    embeddings = nano.fresh_model().llm.model.embed_tokens.weight
    words = EmbeddingReaders(embeddings, word_ids(nano.processor.tokenizer))
    painter = Painter(Stencils.load(stencils_file, CPU), torch.Generator().manual_seed(0))
    labels = painter.draw_labels(8)
    pictures = painter.paint(labels, *served_size((640, 480), SERVED_RESOLUTION))

    def apart() -> float:
        return float(words.apart(Teaching.load(setting).vision(pictures), targets_of(labels)))

    before = apart()
    with torch.enable_grad():
        stages.learn_words(setting, language_model)
    assert apart() < 0.5 * before
