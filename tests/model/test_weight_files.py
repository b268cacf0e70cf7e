"""Damaged checkpoint folders are refused with one sentence that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor

from MiniCPMO45.loading.checkpoint import INDEX_FILE, SINGLE_FILE, read_config, read_headers
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from tests.fakes.toy_checkpoint import write_config, write_shards


def test_missing_shard_is_named(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write_shards(tmp_path, weights)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="1 of 3 weight files.*00002-of-00003"):
        read_headers(tmp_path)


def test_index_of_another_download_is_refused(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write_shards(tmp_path, weights)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    index["weight_map"]["llm.lm_head.weight"] = "model-00002-of-00003.safetensors"
    index["weight_map"]["llm.lm_foot.weight"] = "model-00002-of-00003.safetensors"
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"places [12] tensors.*llm\.lm_foot\.weight"):
        read_headers(tmp_path)


def test_index_that_leaves_the_folder_is_refused(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    write_shards(tmp_path, weights)
    index = {"weight_map": {"x": "../outside.safetensors"}}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="1 of 1 weight files are missing"):
        read_headers(tmp_path)


def test_truncated_file_is_refused_as_a_broken_download(folder: Path) -> None:
    file = folder / SINGLE_FILE
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        read_headers(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"\xff" * 64,
        b"\x02" + b"\0" * 7 + b"{}"[:1] + b" ",
        b"\x04" + b"\0" * 7 + b"null",
    ],
)
def test_file_that_is_no_safetensors_is_refused(content: bytes, folder: Path) -> None:
    (folder / SINGLE_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        read_headers(folder)


def test_lfs_pointer_is_recognised(folder: Path) -> None:
    (folder / SINGLE_FILE).write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read_headers(folder)


def test_file_that_another_user_owns_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read anything
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: .*denied"):
        read_headers(folder)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00004.safetensors").touch()
    with pytest.raises(CheckpointError, match="there are no weights"):
        read_headers(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_unreadable_configuration_is_refused(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(folder)


def test_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    write_config(folder, model_type="qwen3")
    with pytest.raises(CheckpointError, match='model_type is "qwen3".*openbmb/MiniCPM-o-4_5'):
        read_config(folder)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": "wide"}, {"vision_config": 3}, {"tts_config": {"hidden_size": 5.5}}]
)
def test_configuration_of_unusable_values_is_refused(
    changes: dict[str, object], folder: Path
) -> None:
    write_config(folder, **changes)
    with pytest.raises(
        CheckpointError, match=r"config\.json cannot be used: .*(hidden_size|Config)"
    ):
        read_config(folder)
