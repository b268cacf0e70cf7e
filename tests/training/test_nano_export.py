"""The exported folder is a checkpoint like any other."""

from __future__ import annotations

from pathlib import Path

import torch

from MiniCPMO45.modeling_minicpmo_unified import LoadOptions, UnifiedModel
from MiniCPMO45.whisper_encoder import SHARD_FILE, write_shard
from tests.training.conftest import Nano
from training.nano.export import export
from training.nano.listening import FILE

LARGEST_FILE_BYTES = 16_000_000


def test_the_exported_nano_loads_and_every_committed_file_is_small(
    nano: Nano, tmp_path: Path
) -> None:
    brain, weights, out = nano.fresh_brain(), tmp_path / "weights", tmp_path / "out"
    weights.mkdir()
    torch.save(brain.trained_state(), weights / FILE)

    export(out, weights=weights, voice=None, recordings=None)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) < LARGEST_FILE_BYTES
    assert SHARD_FILE not in {path.name for path in files}

    write_shard(out, brain.apm.state_dict())
    options = LoadOptions.for_device("cpu")
    model = UnifiedModel.from_checkpoint(out, options).model
    assert model.config.model_variant == "nano"
    expected = brain.llm.lm_head.weight.half().float()
    torch.testing.assert_close(model.llm.lm_head.weight, expected)
    torch.testing.assert_close(model.apm.conv1.weight, brain.apm.conv1.weight.half().float())
