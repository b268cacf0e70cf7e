"""The published object graph is read as numbers; nothing in it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from MiniCPMO45.token2wav.config import FlowConfig, read_flow_yaml

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


@pytest.mark.parametrize(
    "text", ["", "- 1\n- 2", "flow: 3", "a: [1", "flow:\n  encoder:\n    input_layer: conv2d"]
)
def test_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):
        read(tmp_path, text)
