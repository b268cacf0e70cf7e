"""Sizes of the flow model and of the vocoder, and reading them from `flow.yaml`.

Defaults are the published checkpoint. Source: docs/specification/model.md#1.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import yaml

HISTORY_FRAMES = 100  # mel frames of speech cached in addition to the prompt; sections 7.2 and 7.3
UPSAMPLING = 2  # mel frames per speech code
OVERLAP_FRAMES = 8  # mel frames computed again with the next chunk and cross-faded
GUIDANCE_ROWS = 2  # of the estimator: conditional, unconditional
CONV_KERNEL = 3  # taps of the estimator's causal convolutions
LOOKAHEAD_TAIL = 2  # cached frames of the encoder's second look-ahead convolution
UPSAMPLE_TAIL = 2 * UPSAMPLING  # cached frames of its upsampling convolution

# The only variant implemented; other configurations are rejected.
_REQUIRED_FLOW: Mapping[str, Any] = {"output_type": "mel"}
_REQUIRED_ENCODER: Mapping[str, Any] = {
    "input_layer": "linear",
    "pos_enc_layer_type": "rel_pos_espnet",
    "selfattention_layer_type": "rel_selfattn",
    "key_bias": True,
    "normalize_before": True,
    "up_stride": 2,
    "up_scale_factor": 2,
}


@dataclass(frozen=True)
class FlowEncoderConfig:
    input_size: int = 512
    output_size: int = 512
    pre_lookahead_len: int = 3
    num_blocks: int = 6
    num_up_blocks: int = 4
    attention_heads: int = 8
    linear_units: int = 2048

    @cached_property
    def head_dim(self) -> int:
        return self.output_size // self.attention_heads


@dataclass(frozen=True)
class EstimatorConfig:
    """Diffusion transformer that estimates the velocity of the flow."""

    in_channels: int = 320
    out_channels: int = 80
    mlp_ratio: float = 4.0
    depth: int = 16
    num_heads: int = 8
    head_dim: int = 64
    hidden_size: int = 512


@dataclass(frozen=True)
class FlowConfig:
    input_size: int = 512
    output_size: int = 80
    spk_embed_dim: int = 192
    vocab_size: int = 6561
    cfg_rate: float = 0.7
    encoder: FlowEncoderConfig = field(default_factory=FlowEncoderConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FlowConfig:
        """Build from the nested names of the published `flow.yaml`; unknown keys are ignored.

        Raises:
            ValueError: a structural option selects a variant that is not implemented.
        """
        encoder = values.get("encoder") or {}
        decoder = values.get("decoder") or {}
        _require("flow", values, _REQUIRED_FLOW)
        _require("flow.encoder", encoder, _REQUIRED_ENCODER)
        plain = _known(cls, values, skip=("encoder", "estimator", "cfg_rate"))
        if "inference_cfg_rate" in decoder:
            plain["cfg_rate"] = float(decoder["inference_cfg_rate"])
        return cls(
            **plain,
            encoder=FlowEncoderConfig(**_known(FlowEncoderConfig, encoder)),
            estimator=EstimatorConfig(**_known(EstimatorConfig, decoder.get("estimator") or {})),
        )


@dataclass(frozen=True)
class F0Config:
    in_channels: int = 80
    cond_channels: int = 512
    num_class: int = 1


@dataclass(frozen=True)
class HiFTConfig:
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
    n_fft: int = 16
    hop_len: int = 4
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    f0_predictor: F0Config = field(default_factory=F0Config)

    @cached_property
    def samples_per_frame(self) -> int:
        """Waveform samples of one mel frame (480)."""
        return prod(self.upsample_rates) * self.hop_len

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HiFTConfig:
        """Build from a parsed configuration; lists become tuples, unknown keys are ignored."""
        plain = _known(cls, values, skip=("f0_predictor",))
        plain.update(_known(cls, values.get("istft_params") or {}))
        f0 = F0Config(**_known(F0Config, values.get("f0_predictor") or {}))
        return cls(**{name: _tuples(value) for name, value in plain.items()}, f0_predictor=f0)


@dataclass(frozen=True)
class Token2WavConfig:
    flow: FlowConfig = field(default_factory=FlowConfig)
    hift: HiFTConfig = field(default_factory=HiFTConfig)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Token2WavConfig:
        """Build from a mapping with `flow` and `hift`; missing parts have the published sizes."""
        return cls(
            flow=FlowConfig.from_dict(values.get("flow") or {}),
            hift=HiFTConfig.from_dict(values.get("hift") or {}),
        )


def _require(where: str, values: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    wrong = [
        f"{where}.{name}={values[name]!r} (supported: {wanted!r})"
        for name, wanted in required.items()
        if name in values and values[name] != wanted
    ]
    if wrong:
        raise ValueError("unsupported vocoder configuration: " + ", ".join(wrong))


def _known(kind: type, values: Mapping[str, Any], skip: tuple[str, ...] = ()) -> dict[str, Any]:
    names = {f.name for f in fields(kind)} - set(skip)
    return {name: value for name, value in values.items() if name in names}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "tag:yaml.org,2002:int": lambda text: int(text.replace("_", "")),
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": lambda text: text.lower() in ("true", "yes", "on"),
    "tag:yaml.org,2002:null": lambda _: None,
}


def read_flow_yaml(path: Path) -> FlowConfig:
    """Read `flow.yaml`, whose top level is the flow or has it under `flow`.

    Missing values are the published ones.

    Raises:
        ValueError: the file is not a YAML mapping, or names an unsupported variant.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf8"), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"flow.yaml is not valid YAML: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("flow.yaml holds no mapping")
    values = _plain(root)
    inner = values.get("flow", values)
    if not isinstance(inner, dict):
        raise ValueError("flow.yaml: `flow` is not a mapping")
    return FlowConfig.from_dict(inner)


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    convert = _SCALARS.get(node.tag)
    return convert(node.value) if convert else node.value
