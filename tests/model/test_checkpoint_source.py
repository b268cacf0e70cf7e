"""Finding a checkpoint: a folder, or a model hub that a fake stands in for."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from MiniCPMO45.loading import checkpoint_source
from MiniCPMO45.loading.checkpoint import INDEX_FILE
from MiniCPMO45.loading.checkpoint_source import (
    HUGGINGFACE_ID,
    MODELSCOPE_ID,
    CheckpointError,
    find_checkpoint,
)
from tests.fakes.toy_checkpoint import write_config


def test_folder_is_taken_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkpoint(str(folder)) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_checkpoint(f"~/{folder.name}") == folder


@pytest.mark.parametrize("source", ["/no/such/folder", "nowhere", "./a/b", "a/b/c", Path("a/b")])
def test_error_for_a_missing_folder_names_a_remedy(source: str | Path) -> None:
    with pytest.raises(CheckpointError, match="There is no folder.*openbmb/MiniCPM-o-4_5"):
        find_checkpoint(source)


def test_folder_without_configuration_and_plain_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        find_checkpoint(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="is a file"):
        find_checkpoint(tmp_path / "model.gguf")


class FakeHub:
    """Stands at the hub library's boundary; answers every call with a folder or an error."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.calls.append({"repo": repo} | options)
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def install(monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> FakeHub:
    hub = FakeHub(answer)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)  # root may read anything
    with pytest.raises(CheckpointError, match="cannot be read: .*denied"):
        find_checkpoint(tmp_path)


def test_hub_id_is_fetched_without_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = install(monkeypatch, folder)
    cache = folder / "cache"
    found = find_checkpoint(HUGGINGFACE_ID, revision="abc", cache_dir=cache)
    assert found == folder
    assert [call["allow_patterns"] for call in hub.calls] == [
        ["config.json"],
        list(checkpoint_source.NEEDED_FILES),
    ]
    for call in hub.calls:
        assert (call["repo"], call["revision"]) == (HUGGINGFACE_ID, "abc")
        assert call["cache_dir"] == cache
        assert "*.py" in call["ignore_patterns"]


def test_patterns_fetch_what_is_needed() -> None:
    needed = [
        "config.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "model-00001-of-00004.safetensors",
        INDEX_FILE,
        "assets/token2wav/speech_tokenizer_v2_25hz.onnx",
        "assets/token2wav/flow.yaml",
        "assets/token2wav/hift.pt",
        "assets/system_ref_audio.wav",
    ]
    others = ["modeling_minicpmo.py", "assets/token2wav/x.py", "README.md", "assets/demo.mp4"]
    chosen = [
        name
        for name in [*needed, *others]
        if any(fnmatch(name, pattern) for pattern in checkpoint_source.NEEDED_FILES)
        and not any(fnmatch(name, pattern) for pattern in checkpoint_source.EXCLUDED_FILES)
    ]
    assert chosen == needed


def test_quantised_hub_checkpoint_is_refused_before_its_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, quantization_config={"quant_method": "gptq"})
    hub = install(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match="gptq"):
        find_checkpoint("openbmb/MiniCPM-o-4_5-gptq")
    assert len(hub.calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        hub_errors.LocalEntryNotFoundError("no connection\nmore"),
        ConnectionError("no route to host"),
        OSError("no space left on device"),
        vars(hub_errors)["HTTPError"]("timed out"),
        hub_errors.HFValidationError("bad id"),
    ],
)
def test_unreachable_hub_is_one_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, error)
    monkeypatch.setattr(checkpoint_source.hub_constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(CheckpointError) as refusal:
        find_checkpoint("owner/name")
    text = str(refusal.value)
    assert "There is no folder owner/name here" in text
    assert str(error).splitlines()[0] in text
    assert "HF_ENDPOINT" in text and "hf download owner/name --local-dir" in text
    assert "\n" not in text
    assert MODELSCOPE_ID not in text and f"the public checkpoint is {HUGGINGFACE_ID}" in text
    with pytest.raises(CheckpointError, match=rf"Check the network.* ModelScope \({MODELSCOPE_ID}"):
        find_checkpoint(HUGGINGFACE_ID)


def test_offline_error_names_the_missing_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, hub_errors.LocalEntryNotFoundError("not cached"))
    monkeypatch.setattr(checkpoint_source.hub_constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE forbids.*Unset HF_HUB_OFFLINE"):
        find_checkpoint(HUGGINGFACE_ID)


def test_offline_mode_makes_no_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_source.hub_constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        find_checkpoint(HUGGINGFACE_ID, cache_dir=tmp_path)
