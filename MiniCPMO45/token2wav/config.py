"""Sizes of the flow model and of the vocoder, and reading them from `flow.yaml`.

Defaults are the published checkpoint. Source: docs/specification/model.md#1.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import AliasPath, BaseModel, ConfigDict, Field, model_validator

HISTORY_FRAMES = 100  # mel frames of speech cached in addition to the prompt; sections 7.2 and 7.3
UPSAMPLING = 2  # mel frames per speech code
OVERLAP_FRAMES = 8  # mel frames computed again with the next chunk and cross-faded
GUIDANCE_ROWS = 2  # of the estimator: conditional, unconditional
CONV_KERNEL = 3  # taps of the estimator's causal convolutions
LOOKAHEAD_TAIL = 2  # cached frames of the encoder's second look-ahead convolution
UPSAMPLE_TAIL = 2 * UPSAMPLING  # cached frames of its upsampling convolution


class _Sizes(BaseModel):
    """Sizes by their published names; unknown names are ignored."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if value is not None}


class FlowEncoderConfig(_Sizes):
    """Conformer; options with one value are those of the only variant implemented."""

    input_size: int = 512
    output_size: int = 512
    pre_lookahead_len: int = 3
    num_blocks: int = 6
    num_up_blocks: int = 4
    attention_heads: int = 8
    linear_units: int = 2048
    input_layer: Literal["linear"] = "linear"
    pos_enc_layer_type: Literal["rel_pos_espnet"] = "rel_pos_espnet"
    selfattention_layer_type: Literal["rel_selfattn"] = "rel_selfattn"
    key_bias: Literal[True] = True
    normalize_before: Literal[True] = True
    up_stride: Literal[2] = 2
    up_scale_factor: Literal[2] = 2

    @cached_property
    def head_dim(self) -> int:
        return self.output_size // self.attention_heads


class EstimatorConfig(_Sizes):
    """Diffusion transformer that estimates the velocity of the flow."""

    in_channels: int = 320
    out_channels: int = 80
    mlp_ratio: float = 4.0
    depth: int = 16
    num_heads: int = 8
    head_dim: int = 64
    hidden_size: int = 512


class FlowConfig(_Sizes):
    input_size: int = 512
    output_size: int = 80
    spk_embed_dim: int = 192
    vocab_size: int = 6561
    output_type: Literal["mel"] = "mel"
    encoder: FlowEncoderConfig = FlowEncoderConfig()
    cfg_rate: float = Field(0.7, validation_alias=AliasPath("decoder", "inference_cfg_rate"))
    estimator: EstimatorConfig = Field(
        EstimatorConfig(), validation_alias=AliasPath("decoder", "estimator")
    )


class F0Config(_Sizes):
    in_channels: int = 80
    cond_channels: int = 512
    num_class: int = 1


class HiFTConfig(_Sizes):
    """Mel to waveform: neural source-filter generator with an inverse STFT at the end."""

    in_channels: int = 80
    base_channels: int = 512
    nb_harmonics: int = 8
    sampling_rate: int = 24_000
    nsf_alpha: float = 0.1  # amplitude of the sines
    nsf_sigma: float = 0.003  # noise on voiced samples
    nsf_voiced_threshold: float = 10.0  # Hz
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[int, ...] = (16, 11, 7)
    n_fft: int = Field(16, validation_alias=AliasPath("istft_params", "n_fft"))
    hop_len: int = Field(4, validation_alias=AliasPath("istft_params", "hop_len"))
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    f0_predictor: F0Config = F0Config()

    @cached_property
    def samples_per_frame(self) -> int:
        """Waveform samples of one mel frame (480)."""
        return prod(self.upsample_rates) * self.hop_len


class Token2WavConfig(_Sizes):
    flow: FlowConfig = FlowConfig()
    hift: HiFTConfig = HiFTConfig()


class _PlainLoader(yaml.SafeLoader):
    """Reads what is tagged as an object (`!new:`) as the plain values that it holds."""


def _plain(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_PlainLoader.add_multi_constructor("", _plain)


def read_flow_yaml(path: Path) -> FlowConfig:
    """Read `flow.yaml`, whose top level is the flow or has it under `flow`.

    Missing values are the published ones.

    Raises:
        ValueError: the file is not a YAML mapping, or names an unsupported variant.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf8"), Loader=_PlainLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"flow.yaml is not valid YAML: {error}") from error
    flow = values.get("flow", values) if isinstance(values, dict) else values
    if not isinstance(flow, dict):
        raise ValueError("flow.yaml holds no mapping of sizes")
    return FlowConfig.model_validate(flow)
