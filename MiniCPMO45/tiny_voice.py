"""Writes small random ONNX graphs in the form of the two published voice models.

For tiny checkpoints only. The speech tokenizer's graph carries weights under the published names
but is a chain that only has to be well formed, since nothing ever executes it; the speaker
encoder's graph is executed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from MiniCPMO45.token2wav.campplus import SPEAKER_SIZE
from MiniCPMO45.token2wav.features import FBANK_BINS
from MiniCPMO45.token2wav.speech_tokenizer import MLP_FACTOR, SpeechTokenizerConfig

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
    """Write a speech-tokenizer graph with the published node and initializer names.

    Args:
        path: the file to write.
        seed: decides every weight.
        config: sizes.
    """
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
    graph.scale_weight("onnx::MatMul_2536", PROJECTION_SPREAD)
    graph.add("/quantizer/project_in/Add", x, config.code_digits, "quantizer.project_in.bias")
    inputs = [helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, config.n_mels, "T"])]
    graph.write(path, inputs, [1, "codes", config.code_digits])


def write_campplus_onnx(path: Path, seed: int) -> None:
    """Write a speaker encoder: a projection, its mean and deviation over time, a projection.

    Args:
        path: the file to write; input `input` [1, T, 80], output `output` [1, 192].
        seed: decides every weight.
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

    def scale_weight(self, name: str, factor: float) -> None:
        self.weights[name] = self.weights[name] * np.float32(factor)

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
        """Check and write the graph; its output is the last node's."""
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
