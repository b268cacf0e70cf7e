"""Export, restoration and interpolation of checkpoints, and the model card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from core.nano_assets import verify
from core.processors.backend import read_card
from core.schemas.worker import ModelKind
from MiniCPMO45.loading.whisper_shard import SHARD_FILE, write_shard
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import Token2WavConfig
from tests.source_tree import ROOT
from tests.training.conftest import Nano
from training.nano.domain.catalogue import intents, words_of
from training.nano.export import (
    VOICE_FOLDER,
    export,
    mix,
    restore,
    speech_decoder_tensors,
    write_card,
)
from training.nano.listening import FILE
from training.nano.shapes import vocoder_config
from training.nano.vision.stages import FILE as VISION_FILE

SHIPPED = ROOT / "assets" / "nano"
LARGEST_FILE_BYTES = 16_000_000


def test_exported_checkpoint_loads_and_committed_files_are_small(
    nano: Nano, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nano_model, weights, out = nano.fresh_model(), tmp_path / "weights", tmp_path / "out"
    weights.mkdir()
    torch.save(nano_model.trained_state(), weights / FILE)

    export(out, weights=weights, voice=None, recordings=None)
    assert (
        capsys.readouterr().out == f"{weights / VISION_FILE} is missing: what it holds is random\n"
    )
    files = [path for path in out.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) < LARGEST_FILE_BYTES
    assert SHARD_FILE not in {path.name for path in files}

    write_shard(out, nano_model.apm.state_dict())
    options = LoadOptions()
    model = UnifiedModel.from_checkpoint(out, options).model
    assert model.config.model_variant == "nano"
    expected = nano_model.llm.lm_head.weight.half().float()
    torch.testing.assert_close(model.llm.lm_head.weight, expected)
    torch.testing.assert_close(model.apm.conv1.weight, nano_model.apm.conv1.weight.half().float())


def test_shipped_weights_survive_restore_and_export(tmp_path: Path) -> None:
    restore(tmp_path, SHIPPED)
    shipped = {n: t for path in SHIPPED.glob("*.safetensors") for n, t in load_file(path).items()}
    apart = {
        name: tensor
        for file in (FILE, VISION_FILE)
        for name, tensor in torch.load(tmp_path / file, weights_only=True).items()
    }
    apart |= speech_decoder_tensors(tmp_path)
    assert apart.keys() == shipped.keys()
    half_step = 2**-11
    for name, tensor in apart.items():
        torch.testing.assert_close(tensor, shipped[name], rtol=2 * half_step, atol=0)
    flow = SHIPPED / VOICE_FOLDER / "flow.pt"
    assert (tmp_path / "flow.pt").read_bytes() == flow.read_bytes()


def test_shipped_vocoder_has_the_sizes_of_the_recipe() -> None:
    stored = (SHIPPED / VOICE_FOLDER / "config.json").read_text(encoding="utf8")
    assert Token2WavConfig.model_validate_json(stored) == vocoder_config()


def test_mix_interpolates_weights(tmp_path: Path) -> None:
    for name, value in (("before.pt", 1.0), ("after.pt", 2.0)):
        torch.save({"a": torch.full((2,), value).half()}, tmp_path / name)
    mix(tmp_path / "before.pt", tmp_path / "after.pt", tmp_path / "mixed.pt", 0.75)
    mixed = torch.load(tmp_path / "mixed.pt", weights_only=True)
    assert mixed["a"].dtype == torch.float16
    assert mixed["a"].tolist() == [1.75, 1.75]


def test_card_is_readable_and_suggests_known_questions(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf8")
    write_card(tmp_path)
    verify(tmp_path)
    card = read_card(tmp_path)
    assert card.kind is ModelKind.NANO
    assert "demonstration" in card.name
    asked = {tuple(words_of(q.text)) for each in intents().values() for q in each.questions}
    assert [text for text in card.try_saying if tuple(words_of(text)) not in asked] == []
    assert "MIT" in (tmp_path / "NOTICE").read_text(encoding="utf8")
