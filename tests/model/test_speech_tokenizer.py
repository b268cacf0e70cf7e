"""The S3 tokenizer: windows of long audio, code arithmetic, and its weights in an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper

from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.tiny.checkpoint import (
    TINY_TOKENIZER,
    write_campplus_onnx,
    write_speech_tokenizer_onnx,
)
from MiniCPMO45.token2wav.speech_tokenizer import (
    Quantizer,
    SpeechTokenizer,
    SpeechTokenizerConfig,
    load_speech_tokenizer,
    read_speech_tokenizer,
    window_ranges,
)

TINY = SpeechTokenizerConfig(n_mels=128, width=64, n_blocks=1)


def _tokenizer(config: SpeechTokenizerConfig = TINY) -> SpeechTokenizer:
    torch.manual_seed(3)
    return SpeechTokenizer(config).eval()


def test_sizes_are_read_off_the_tensors() -> None:
    for config in (TINY, SpeechTokenizerConfig(80, 128, 3, 5, 4)):
        weights = _tokenizer(config).state_dict()
        assert SpeechTokenizerConfig.from_tensors(weights) == config


def test_other_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="not a speech tokenizer"):
        SpeechTokenizerConfig.from_tensors({"conv.weight": torch.zeros(1)})


@pytest.mark.parametrize("n_frames", [1, 2, 3, 4, 5, 50, 101])
@torch.no_grad()
def test_four_mel_frames_make_a_code(n_frames: int) -> None:
    codes = _tokenizer().encode(torch.randn(128, n_frames))
    assert codes.shape == (math.ceil(n_frames / 4),)
    assert codes.dtype == torch.int64
    assert 0 <= int(codes.min()) <= int(codes.max()) < 3**8


@torch.no_grad()
def test_codes_are_base_three_digits_lowest_first() -> None:
    quantizer = Quantizer(TINY)
    weights = quantizer.state_dict()
    weights["_codebook.project_down.weight"].zero_()
    # 0, 1, 2, 1, … as digits: far below, at and far above zero.
    weights["_codebook.project_down.bias"].copy_(torch.tensor([-9.0, 0, 9, 0.1, -0.1, 0, 0, 9]))
    digits = [0, 1, 2, 1, 1, 1, 1, 2]
    expected = sum(digit * 3**place for place, digit in enumerate(digits))
    assert quantizer(torch.randn(2, 5, TINY.width)).unique().tolist() == [expected]


@given(n_frames=st.integers(1, 20_000))
def test_windows_cover_everything_and_overlap_by_four_seconds(n_frames: int) -> None:
    windows = window_ranges(n_frames)
    assert windows[0][0] == 0
    assert windows[-1][1] == n_frames
    for (start, stop), (next_start, _) in zip(windows, windows[1:], strict=False):
        assert stop - start == 3_000
        assert stop - next_start == 400
    assert len(windows) == 1 or windows[-1][1] - windows[-1][0] > 400


@pytest.mark.parametrize("n_frames", [3_000, 3_001, 3_250, 5_600, 5_777])
@torch.no_grad()
def test_long_audio_gives_every_code_once(n_frames: int) -> None:
    tokenizer = _tokenizer()
    mel = torch.randn(128, n_frames, generator=torch.Generator().manual_seed(1))
    codes = tokenizer.encode(mel)
    assert codes.numel() == math.ceil(n_frames / 4)
    first = tokenizer.quantizer(tokenizer.encoder(mel[None, :, :3_000]))[0]
    n_own = 750 if n_frames == 3_000 else 700
    assert torch.equal(codes[:n_own], first[:n_own])
    last = tokenizer.quantizer(tokenizer.encoder(mel[None, :, window_ranges(n_frames)[-1][0] :]))
    assert torch.equal(codes[-10:], last[0, -10:])


def test_no_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="no speech tokens"):
        window_ranges(0)


MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voice") / "speech_tokenizer.onnx"
    write_speech_tokenizer_onnx(path, seed=7)
    return path


def _changed(source: Path, target: Path, change: Callable[[ModelProto], None]) -> Path:
    model = onnx.load(source)
    change(model)
    onnx.save(model, target)
    return target


def test_every_weight_arrives_turned_the_right_way(graph_path: Path) -> None:
    graph = onnx.load(graph_path).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = read_speech_tokenizer(graph_path)
    assert len(weights) == len(stored)
    np.testing.assert_array_equal(weights["encoder.conv1.weight"], stored["onnx::Conv_2216"])
    np.testing.assert_array_equal(weights["encoder.conv2.bias"], stored["onnx::Conv_2219"])
    project = weights["quantizer._codebook.project_down.weight"]
    np.testing.assert_array_equal(project, stored["onnx::MatMul_2536"].T)
    node = next(node for node in graph.node if node.name == "/blocks.1/mlp/mlp.0/MatMul")
    np.testing.assert_array_equal(weights["encoder.blocks.1.mlp.0.weight"], stored[node.input[1]].T)
    norm = "encoder.blocks.0.attn_ln"
    np.testing.assert_array_equal(weights[f"{norm}.weight"], stored["blocks.0.attn_ln.weight"])
    np.testing.assert_array_equal(weights[f"{norm}.bias"], stored["blocks.0.attn_ln.bias"])


def test_the_graph_loads_into_a_module_of_its_size(graph_path: Path) -> None:
    tokenizer = load_speech_tokenizer(graph_path, torch.device("cpu"))
    assert tokenizer.config == TINY_TOKENIZER
    assert not any(parameter.requires_grad for parameter in tokenizer.parameters())
    codes = tokenizer.encode(torch.randn(128, 200, generator=torch.Generator().manual_seed(0)))
    assert codes.unique().numel() > 5


def test_writing_is_repeatable_and_small(graph_path: Path, tmp_path: Path) -> None:
    again = tmp_path / graph_path.name
    write_speech_tokenizer_onnx(again, seed=7)
    assert again.read_bytes() == graph_path.read_bytes()
    assert again.stat().st_size < MAX_BYTES
    write_campplus_onnx(tmp_path / "speaker.onnx", seed=7)
    assert (tmp_path / "speaker.onnx").stat().st_size < MAX_BYTES


def test_integer_constants_and_single_numbers_are_no_weights(
    graph_path: Path, tmp_path: Path
) -> None:
    def add_constants(model: ModelProto) -> None:
        for name, value in (("shape", np.array([1, 2])), ("scale", np.float32(0.125))):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    changed = _changed(graph_path, tmp_path / "a.onnx", add_constants)
    assert read_speech_tokenizer(changed).keys() == read_speech_tokenizer(graph_path).keys()


def _add_stranger(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "stranger"))
    model.graph.node.append(helper.make_node("Add", ["feats", "stranger"], ["y"], name="/odd/Add"))


def _rename_node(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if node.name == "/blocks.0/attn/key/MatMul")
    node.name = "/blocks.0/attn/keys/MatMul"


def _drop_block_weight(model: ModelProto) -> None:
    name = "blocks.1.attn.out.bias"
    kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _widen(model: ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "blocks.0.attn.query.bias")
    tensor.CopyFrom(numpy_helper.from_array(np.ones(5, np.float32), tensor.name))


def _double(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if node.name == "/blocks.0/attn/key/MatMul")
    node.name = "/blocks.0/attn/value/MatMul"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_add_stranger, "no place for the initializers stranger"),
        (
            _rename_node,
            r"missing: encoder\.blocks\.0\.attn\.key\.weight\n.* unexpected: .*keys\.weight",
        ),
        (_drop_block_weight, r"1 missing: encoder\.blocks\.1\.attn\.out\.bias$"),
        (_widen, r"encoder\.blocks\.0\.attn\.query\.bias \[5\] instead of"),
        (_double, "two nodes give encoder.blocks.0.attn.value.weight"),
    ],
)
def test_what_does_not_fit_is_named(
    graph_path: Path, tmp_path: Path, change: Callable[[ModelProto], None], message: str
) -> None:
    changed = _changed(graph_path, tmp_path / "changed.onnx", change)
    with pytest.raises(CheckpointError, match=message):
        load_speech_tokenizer(changed, torch.device("cpu"))


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    with pytest.raises(CheckpointError, match="not a speech tokenizer"):
        load_speech_tokenizer(path, torch.device("cpu"))
    with pytest.raises(CheckpointError, match=r"absent\.onnx is missing"):
        read_speech_tokenizer(tmp_path / "absent.onnx")


def test_a_truncated_file_is_named(graph_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(graph_path.read_bytes()[:-1_000])
    with pytest.raises(CheckpointError, match=r"cut\.onnx is damaged"):
        load_speech_tokenizer(path, torch.device("cpu"))
