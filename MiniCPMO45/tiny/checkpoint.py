"""Writes a complete checkpoint at toy size with random weights, for tests and for a first start.

The speech tokenizer's graph carries weights under the published names but is a chain that only has
to be well formed, since nothing ever executes it; the speaker encoder's graph is executed.
"""

from __future__ import annotations

import json
import math
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor
from tqdm import tqdm

from MiniCPMO45.loading.checkpoint import TINY_VARIANT
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary, write_json
from MiniCPMO45.tiny.weights import draw, model_config, tiny_model, vocoder_config
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.speech_tokenizer import MLP_FACTOR, SpeechTokenizerConfig
from MiniCPMO45.token2wav.voice_features import FBANK_BINS, SPEAKER_SIZE


class TinyCheckpointError(ValueError):
    """The folder cannot take a checkpoint."""


def write_tiny_checkpoint(folder: Path, seed: int = 0, *, show_progress: bool = False) -> None:
    """Write a tiny checkpoint; the same seed gives the same bytes.

    The folder is new or empty, or holds an earlier tiny checkpoint, which is replaced.

    Raises:
        TinyCheckpointError: the folder holds something else.
    """
    _require_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = train_vocabulary()
    steps = {
        "processor": lambda: MiniCPMOProcessor.of(make_tokenizer(vocabulary)).save_pretrained(
            folder
        ),
        "model": lambda: tiny_model(model_config(vocabulary), vocabulary, seed).save_pretrained(
            folder
        ),
        "assets": lambda: write_assets(folder, seed),
    }
    bar = tqdm(steps.items(), unit="part", disable=not show_progress)
    for name, write in bar:
        bar.set_description(f"writing {name}")
        write()


def _require_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TinyCheckpointError(f"{folder} is a file, not a folder")
    config = folder / "config.json"
    if not any(folder.iterdir()):
        return
    if not config.is_file() or _variant(config) != TINY_VARIANT:
        raise TinyCheckpointError(
            f"{folder} is not empty and holds no tiny checkpoint; name another folder"
        )


def _variant(config: Path) -> str:
    try:
        return str(json.loads(config.read_text(encoding="utf8")).get("model_variant"))
    except (ValueError, AttributeError):
        return ""


OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8  # what opset 17 was released with
CONV_KERNEL = 3
PROJECTION_SPREAD = 4.0  # makes digits of all three values common
SPEAKER_HIDDEN_SIZE = 64
VARIANCE_FLOOR = 1e-6

TINY_TOKENIZER = SpeechTokenizerConfig(width=64, n_blocks=2)


def write_speech_tokenizer_onnx(
    path: Path, seed: int, config: SpeechTokenizerConfig = TINY_TOKENIZER
) -> None:
    """Write a speech-tokenizer graph with the published node and initializer names."""
    graph = _Graph(np.random.default_rng(seed))
    width = config.width
    kernel_1 = (width, config.n_mels, CONV_KERNEL)
    x = graph.conv("/conv1/Conv", "feats", kernel_1, ("onnx::Conv_2216", "onnx::Conv_2217"))
    kernel_2 = (width, width, CONV_KERNEL)
    x = graph.conv("/conv2/Conv", x, kernel_2, ("onnx::Conv_2218", "onnx::Conv_2219"))
    x = graph.node("Transpose", [x], "/Transpose", perm=[0, 2, 1])
    for index in range(config.n_blocks):
        x = _add_block(graph, x, f"/blocks.{index}", config)
    project = (width, config.code_digits)
    x = graph.matmul("/quantizer/project_in/MatMul", x, project, "onnx::MatMul_2536")
    graph.weights["onnx::MatMul_2536"] *= np.float32(PROJECTION_SPREAD)
    graph.add("/quantizer/project_in/Add", x, config.code_digits, "quantizer.project_in.bias")
    inputs = [helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, config.n_mels, "T"])]
    graph.write(path, inputs, [1, "codes", config.code_digits])


def write_campplus_onnx(path: Path, seed: int) -> None:
    """Write a speaker encoder: a projection, its mean and deviation over time, a projection.

    Its input is `input` [1, T, 80], its output `output` [1, 192].
    """
    graph = _Graph(np.random.default_rng(seed))
    hidden = graph.matmul("/head/MatMul", "input", (FBANK_BINS, SPEAKER_HIDDEN_SIZE), "head")
    hidden = graph.node("Tanh", [hidden], "/head/Tanh")
    mean = graph.node("ReduceMean", [hidden], "/stats/ReduceMean", axes=[1], keepdims=1)
    centred = graph.node("Sub", [hidden, mean], "/stats/Sub")
    squares = graph.node("Mul", [centred, centred], "/stats/Mul")
    variance = graph.node("ReduceMean", [squares], "/stats/ReduceMean_1", axes=[1], keepdims=1)
    floor = graph.constant("floor", np.full(1, VARIANCE_FLOOR, np.float32))
    deviation = graph.node(
        "Sqrt", [graph.node("Add", [variance, floor], "/stats/Add")], "/stats/Sqrt"
    )
    pooled = graph.node("Concat", [mean, deviation], "/stats/Concat", axis=2)  # [1, 1, 128]
    pooled = graph.node("Flatten", [pooled], "/stats/Flatten", axis=1)  # [1, 128]
    shape = (2 * SPEAKER_HIDDEN_SIZE, SPEAKER_SIZE)
    graph.matmul("/dense/MatMul", pooled, shape, "dense", output="output")
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, "T", FBANK_BINS])]
    graph.write(path, inputs, [1, SPEAKER_SIZE])


@dataclass
class _Graph:
    """Nodes and weights of a graph under construction; every method returns an output's name."""

    random: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    weights: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def node(
        self,
        kind: str,
        inputs: list[str],
        name: str,
        output: str | None = None,
        **attributes: Any,  # each kind of node takes others
    ) -> str:
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        return output

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
        self.weights[name] = values
        return name

    def draw(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        values = self.random.standard_normal(shape) / np.sqrt(fan_in)
        return self.constant(name, values.astype(np.float32))

    def matmul(
        self, name: str, x: str, shape: tuple[int, int], weight: str, output: str | None = None
    ) -> str:
        return self.node("MatMul", [x, self.draw(weight, shape, shape[0])], name, output)

    def add(self, name: str, x: str, size: int, bias: str) -> str:
        return self.node("Add", [self.draw(bias, (size,), size), x], name)

    def linear(self, module: str, x: str, shape: tuple[int, int], *, has_bias: bool = True) -> str:
        """A linear layer as the exporter writes it: a renamed matrix, a bias with its own name."""
        x = self.matmul(f"{module}/MatMul", x, shape, f"onnx::MatMul_{len(self.weights)}")
        if not has_bias:
            return x
        return self.add(f"{module}/Add", x, shape[1], module[1:].replace("/", ".") + ".bias")

    def norm(self, module: str, x: str, size: int) -> str:
        prefix = module[1:].replace("/", ".")
        scale = self.constant(f"{prefix}.weight", np.ones(size, np.float32))
        shift = self.draw(f"{prefix}.bias", (size,), size)
        return self.node(
            "LayerNormalization", [x, scale, shift], f"{module}/LayerNormalization", axis=-1
        )

    def conv(self, name: str, x: str, shape: tuple[int, int, int], names: tuple[str, str]) -> str:
        fan_in = shape[1] * shape[2]
        weight = self.draw(names[0], shape, fan_in)
        bias = self.draw(names[1], shape[:1], fan_in)
        return self.node("Conv", [x, weight, bias], name, strides=[2], pads=[1, 1])

    def write(
        self, path: Path, inputs: list[onnx.ValueInfoProto], output_shape: list[int | str]
    ) -> None:
        last = self.nodes[-1].output[0]
        outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, output_shape)]
        tensors = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))


def _add_block(graph: _Graph, x: str, block: str, config: SpeechTokenizerConfig) -> str:
    """Add one transformer block's nodes; query, key and value are summed instead of attended."""
    square = (config.width, config.width)
    hidden = config.width * MLP_FACTOR
    normed = graph.norm(f"{block}/attn_ln", x, config.width)
    query = graph.linear(f"{block}/attn/query", normed, square)
    key = graph.linear(f"{block}/attn/key", normed, square, has_bias=False)
    value = graph.linear(f"{block}/attn/value", normed, square)
    taps = (config.width, 1, config.memory_kernel)
    weight = graph.draw(f"{block[1:]}.attn.fsmn_block.weight", taps, config.memory_kernel)
    turned = graph.node("Transpose", [value], f"{block}/attn/Transpose", perm=[0, 2, 1])
    reach = config.memory_kernel // 2
    memory = graph.node(
        "Conv",
        [turned, weight],
        f"{block}/attn/fsmn_block/Conv",
        group=config.width,
        pads=[reach, reach],
    )
    memory = graph.node("Transpose", [memory], f"{block}/attn/Transpose_1", perm=[0, 2, 1])
    mixed = graph.node("Sum", [query, key, memory], f"{block}/attn/Sum")
    x = graph.node("Add", [x, graph.linear(f"{block}/attn/out", mixed, square)], f"{block}/Add")
    normed = graph.norm(f"{block}/mlp_ln", x, config.width)
    wide = graph.linear(f"{block}/mlp/mlp.0", normed, (config.width, hidden))
    wide = graph.node("Relu", [wide], f"{block}/mlp/mlp.1/Relu")
    narrow = graph.linear(f"{block}/mlp/mlp.2", wide, (hidden, config.width))
    return graph.node("Add", [x, narrow], f"{block}/Add_1")


SAMPLE_S = 3.0
INT16_MAX = 32_767

BIAS_SPREAD = 0.02
GATE_SPREAD = 0.3  # of the estimator's modulation, so that blocks neither vanish nor explode
PITCH_HZ = 150.0  # what the pitch predictor says whatever it hears, give or take
LOG_MAGNITUDE = -0.9  # of the vocoder's spectrum: audible, far from the limit
SPECTRUM_BINS = 9
LOG_MAGNITUDE_SPREAD = 0.2


def write_assets(folder: Path, seed: int) -> None:
    target = folder / "assets" / "token2wav"
    target.mkdir(parents=True, exist_ok=True)
    write_speech_tokenizer_onnx(target / "speech_tokenizer_v2_25hz.onnx", seed)
    write_campplus_onnx(target / "campplus.onnx", seed)
    write_vocoder(target, seed)
    write_voice_sample(folder / "assets" / "system_ref_audio.wav")


def write_vocoder(folder: Path, seed: int) -> None:
    sizes = vocoder_config()
    write_vocoder_weights(folder, seed, Token2WavConfig.from_dict(sizes))
    write_json(folder / "config.json", sizes)


def write_vocoder_weights(folder: Path, seed: int, config: Token2WavConfig) -> None:
    with torch.device("meta"):
        flow, hift = Flow(config.flow), HiFT(config.hift)
    _save(folder / "flow.pt", {n: _flow_tensor(n, t, seed) for n, t in flow.state_dict().items()})
    _save(folder / "hift.pt", {n: _hift_tensor(n, t, seed) for n, t in hift.state_dict().items()})


def voice_sample() -> np.ndarray:
    time_s = np.arange(int(SAMPLE_S * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    pitch_hz = (
        130.0 + 25.0 * np.sin(2 * np.pi * 0.7 * time_s) + 6.0 * np.sin(2 * np.pi * 5 * time_s)
    )
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE_HZ
    first_hz = 500.0 + 220.0 * np.sin(2 * np.pi * 1.1 * time_s)
    second_hz = 1500.0 + 500.0 * np.cos(2 * np.pi * 0.9 * time_s)
    tone = np.zeros_like(time_s)
    for harmonic in range(1, 31):
        at_hz = harmonic * pitch_hz
        weight = np.exp(-(((at_hz - first_hz) / 180.0) ** 2))
        weight += 0.5 * np.exp(-(((at_hz - second_hz) / 260.0) ** 2)) + 0.15 / harmonic
        tone += weight * np.sin(harmonic * phase)
    syllables = 0.25 + 0.75 * np.sin(np.pi * 3.5 * time_s) ** 2
    tone *= syllables * np.minimum(1.0, 20.0 * np.minimum(time_s, SAMPLE_S - time_s))
    return (0.7 * tone / np.abs(tone).max()).astype(np.float32)


def write_voice_sample(path: Path) -> None:
    samples = np.round(voice_sample() * INT16_MAX).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(samples.tobytes())


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, path)


def _plain(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    if "norm" in name and name.endswith("weight"):
        return torch.ones(shape)
    if len(shape) == 1 or name.endswith(("pos_bias_u", "pos_bias_v")):
        return draw(name, shape, seed, BIAS_SPREAD)
    return draw(name, shape, seed, 1.0 / math.sqrt(math.prod(shape[1:])))


def _flow_tensor(name: str, like: Tensor, seed: int) -> Tensor:
    shape = tuple(like.shape)
    if name == "input_embedding.weight":
        return draw(name, shape, seed)
    tensor = _plain(name, shape, seed)
    if "adaLN_modulation" in name and name.endswith("weight"):
        return tensor * GATE_SPREAD
    if name.startswith("encoder.after_norm") or "conv.block.3." in name or "embed.out.1." in name:
        return torch.full(shape, float(name.endswith("weight")))  # layer norms without the name
    return tensor


def _hift_tensor(name: str, like: Tensor, seed: int) -> Tensor:
    shape = tuple(like.shape)
    if name.endswith("alpha"):
        return torch.ones(shape)
    if name.endswith("original0"):  # length of the rows: keeps what passes through at one size
        spread = LOG_MAGNITUDE_SPREAD if name.startswith("conv_post.") else 1.0
        return torch.full(shape, spread)
    if name.startswith("f0_predictor.classifier."):
        return torch.full(shape, PITCH_HZ) if name.endswith("bias") else draw(name, shape, seed)
    if name == "conv_post.bias":
        bias = draw(name, shape, seed, BIAS_SPREAD)
        bias[:SPECTRUM_BINS] += LOG_MAGNITUDE
        return bias
    return _plain(name, shape, seed)
