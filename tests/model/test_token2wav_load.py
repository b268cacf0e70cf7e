"""Weight files and sizes of the vocoder: names, shapes, formats, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import FlowConfig, Token2WavConfig, read_flow_yaml
from MiniCPMO45.token2wav.flow_encoder import Linear, TapConvolution
from MiniCPMO45.token2wav.load import build_token2wav, load_token2wav, read_config, read_state_dict
from MiniCPMO45.token2wav.vocoder import Token2Wav
from tests.fakes.toy_vocoder import toy_codes, toy_config, toy_voice, toy_weights


def old_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weight-norm pairs as older files name them, behind the trainer's prefix."""
    renamed = {}
    for name, value in tensors.items():
        name = name.replace(".parametrizations.weight.original0", ".weight_g")
        name = name.replace(".parametrizations.weight.original1", ".weight_v")
        renamed[f"generator.{name}"] = value
    return renamed


def first_words(model: Token2Wav) -> Tensor:
    return model.stream(model.new_state(model.set_up(toy_voice())), toy_codes(28))


def tensors_of(model: Token2Wav) -> dict[str, Tensor]:
    halves = {"flow": model.flow, "hift": model.hift}
    return {
        f"{half}.{name}": parameter
        for half, module in halves.items()
        for name, parameter in module.named_parameters()
    }


@pytest.mark.parametrize("is_zip", [True, False])
def test_pt_and_safetensors_give_the_same_vocoder(tmp_path: Path, is_zip: bool) -> None:
    flow, hift = toy_weights()
    options = LoadOptions(flow_steps=2)
    torch.save({**flow, "epoch": 3}, tmp_path / "flow.pt", _use_new_zipfile_serialization=is_zip)
    torch.save(old_names(hift), tmp_path / "hift.pt", _use_new_zipfile_serialization=is_zip)
    (tmp_path / "config.json").write_text(toy_config().model_dump_json())
    from_pt = load_token2wav(tmp_path, options)
    save_file(flow, tmp_path / "flow.safetensors")
    save_file(hift, tmp_path / "hift.safetensors")
    from_safetensors = load_token2wav(tmp_path, options)
    weights, others = tensors_of(from_pt), tensors_of(from_safetensors)
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    # A mapped tensor may lie at another alignment, which moves the last bits of a sum.
    torch.testing.assert_close(
        first_words(from_pt), first_words(from_safetensors), atol=1e-3, rtol=0
    )
    assert not any(tensor.requires_grad or tensor.is_meta for tensor in weights.values())
    assert not any("parametrizations" in name for name in weights)


def test_the_flow_alone_may_run_in_half_precision() -> None:
    options = LoadOptions(flow_steps=2, flow_dtype=torch.bfloat16)
    model = build_token2wav(toy_config(), *toy_weights(), options)
    assert model.flow.dtype == torch.bfloat16 and model.hift.dtype == torch.float32
    samples = first_words(model)
    assert samples.dtype == torch.float32 and samples.isfinite().all()
    # The converted weights are the only copy in memory.
    packed = [each for each in model.flow.modules() if isinstance(each, Linear | TapConvolution)]
    assert packed and all(each.weight.dtype == torch.bfloat16 for each in packed)
    convolutions = [each for each in packed if isinstance(each, TapConvolution)]
    assert all(each.weight.data_ptr() == each.matrix.data_ptr() for each in convolutions)


def test_one_message_lists_everything_that_does_not_fit() -> None:
    flow, hift = toy_weights()
    del flow["encoder_proj.bias"]
    flow["surprise"] = torch.zeros(2)
    flow["input_embedding.weight"] = torch.zeros(3, 16)
    with pytest.raises(CheckpointError) as caught:
        build_token2wav(toy_config(), flow, hift)
    text = str(caught.value)
    assert "1 missing: encoder_proj.bias" in text and "1 unexpected: surprise" in text
    assert "1 of another shape: input_embedding.weight [3, 16] instead of [6561, 16]" in text


class Trap:
    """Would make a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_code_in_a_pt_file_is_not_executed(tmp_path: Path) -> None:
    torch.save({"a": Trap(tmp_path / "made")}, tmp_path / "flow.pt")
    with pytest.raises(CheckpointError, match="plain tensors"):
        read_state_dict(tmp_path / "flow.pt")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["flow.pt", "flow.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=name):
        read_state_dict(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"flow\.safetensors"):
        load_token2wav(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", '{"flow": {"output_type": "wave"}}'),
        ("flow.yaml", ""),
        ("flow.yaml", "- 1\n- 2"),
        ("flow.yaml", "flow: 3"),
        ("flow.yaml", "a: [1"),
        ("flow.yaml", "flow:\n  encoder:\n    input_layer: conv2d"),
    ],
)
def test_unusable_sizes_are_refused_by_the_name_of_their_file(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=name):
        load_token2wav(tmp_path)


def test_sizes_come_from_the_folder(tmp_path: Path) -> None:
    assert read_config(tmp_path) == Token2WavConfig()
    (tmp_path / "flow.yaml").write_text("flow: !new:a.B\n  vocab_size: 77\n")
    assert read_config(tmp_path).flow.vocab_size == 77
    sizes = {"flow": {"vocab_size": 88}, "hift": {"istft_params": {"n_fft": 8, "hop_len": 2}}}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    config = read_config(tmp_path)
    assert config.flow.vocab_size == 88 and (config.hift.n_fft, config.hift.hop_len) == (8, 2)


GRAPH = """
flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec
    input_size: 512
    output_type: 'mel'
    vocab_size: 6561
    encoder: !new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2
        num_blocks: 6
        normalize_before: True
        input_layer: 'linear'
        dropout_rate: 0.1
    decoder: !new:cosyvoice2.flow.flow_matching.CausalConditionalCFM
        inference_cfg_rate: 0.7
        estimator: !new:cosyvoice2.flow.decoder_dit.DiT
            in_channels: 320
            mlp_ratio: 4.0
            depth: 16
"""


def read(folder: Path, text: str) -> FlowConfig:
    path = folder / "flow.yaml"
    path.write_text(text)
    return read_flow_yaml(path)


def test_published_sizes_equal_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, GRAPH) == FlowConfig()


def test_the_top_level_may_be_the_flow_itself(tmp_path: Path) -> None:
    assert read(tmp_path, "!new:a.b\nvocab_size: 12").vocab_size == 12


@pytest.mark.parametrize("tag", ["!new:", "!apply:", "!name:", "!!python/object/apply:"])
def test_no_tag_is_executed(tag: str, tmp_path: Path) -> None:
    victim = tmp_path / "made"
    text = f"flow:\n  x: {tag}os.mkdir\n    - {victim}\n  vocab_size: 9\n"
    assert read(tmp_path, text).vocab_size == 9
    assert not victim.exists()
