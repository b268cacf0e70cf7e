"""Reads the weights of the published speech-tokenizer graph; the graph is never executed.

A weight's place is told by the node that uses it, because the exporter renamed most initializers.
Source: docs/specification/model.md#2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
from onnx import NodeProto, TensorProto, numpy_helper
from torch import Tensor

from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig

# Initializers whose nodes carry no module path, by the name they have in the published file.
NAMED_WEIGHTS = {
    "onnx::Conv_2216": "encoder.conv1.weight",
    "onnx::Conv_2217": "encoder.conv1.bias",
    "onnx::Conv_2218": "encoder.conv2.weight",
    "onnx::Conv_2219": "encoder.conv2.bias",
    "onnx::MatMul_2536": "quantizer._codebook.project_down.weight",
    "quantizer.project_in.bias": "quantizer._codebook.project_down.bias",
}
# The parameter a node's second kind of input is, by the last part of the node's path.
PARAMETER_OF_NODE = {"MatMul": "weight", "Conv": "weight", "Add": "bias"}
BLOCK_PATH = re.compile(r"/(?P<module>blocks\.\d+/.+)/(?P<operation>[A-Za-z]+)")
FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


class SpeechTokenizerFileError(ValueError):
    """The file is no speech tokenizer of the published form; the text says what is wrong."""


def read_speech_tokenizer(path: Path) -> dict[str, Tensor]:
    """Return the weights of a speech-tokenizer graph under the module's names.

    Args:
        path: the `.onnx` file.

    Returns:
        float32 tensors that fit `SpeechTokenizer` of exactly the sizes they tell.

    Raises:
        FileNotFoundError: there is no such file.
        SpeechTokenizerFileError: a weight cannot be placed, is missing or has the wrong shape.
    """
    if not path.is_file():
        raise FileNotFoundError(f"the speech tokenizer {path} is missing")
    graph = onnx.load(path).graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    weights: dict[str, Tensor] = {}
    placed: set[str] = set()
    for node in graph.node:
        for name, initializer in _weights_of(node, initializers):
            if name in weights:
                raise SpeechTokenizerFileError(f"{path}: two nodes give {name}")
            weights[name] = _as_tensor(initializer)
            placed.add(initializer.name)
    left = sorted(
        name for name, tensor in initializers.items() if name not in placed and _is_weight(tensor)
    )
    if left:
        raise SpeechTokenizerFileError(f"{path}: no place for the initializers {_shorten(left)}")
    _check(path, weights)
    return weights


def load_speech_tokenizer(path: Path, device: torch.device) -> SpeechTokenizer:
    """Build the tokenizer a graph describes, with its weights, in float32.

    Args:
        path: the `.onnx` file.
        device: where the weights go.

    Raises:
        FileNotFoundError: there is no such file.
        SpeechTokenizerFileError: see `read_speech_tokenizer`.
    """
    weights = read_speech_tokenizer(path)
    with torch.device("meta"):
        tokenizer = SpeechTokenizer(SpeechTokenizerConfig.from_tensors(weights))
    moved = {name: tensor.to(device) for name, tensor in weights.items()}
    tokenizer.load_state_dict(moved, assign=True)
    return tokenizer.eval().requires_grad_(False)


def _weights_of(
    node: NodeProto, initializers: dict[str, TensorProto]
) -> Iterator[tuple[str, TensorProto]]:
    """Yield (our name, initializer) for each weight a node uses and whose place is known."""
    path = BLOCK_PATH.fullmatch(node.name)
    for position, input_name in enumerate(node.input):
        initializer = initializers.get(input_name)
        if initializer is None or not _is_weight(initializer):
            continue
        if input_name in NAMED_WEIGHTS:
            yield NAMED_WEIGHTS[input_name], initializer
        elif path is not None:
            # The exporter writes the sequential MLP's path twice: mlp/mlp.0.
            module = path["module"].replace("/", ".").replace("mlp.mlp.", "mlp.")
            if node.op_type == "LayerNormalization":
                yield f"encoder.{module}.{'weight' if position == 1 else 'bias'}", initializer
            elif path["operation"] in PARAMETER_OF_NODE:
                yield f"encoder.{module}.{PARAMETER_OF_NODE[path['operation']]}", initializer


def _is_weight(tensor: TensorProto) -> bool:
    """Whether an initializer is learned: graph constants are integers or single numbers."""
    n_values = 1
    for size in tensor.dims:
        n_values *= size
    return tensor.data_type in FLOAT_TYPES and n_values > 1


def _as_tensor(initializer: TensorProto) -> Tensor:
    """Copy an initializer out; matrices are stored as [in, out] and turned to [out, in]."""
    array = torch.tensor(numpy_helper.to_array(initializer), dtype=torch.float32)
    return array.T.contiguous() if array.ndim == 2 else array


def _check(path: Path, weights: dict[str, Tensor]) -> None:
    """Compare names and shapes with the module of the sizes the weights tell.

    Raises:
        SpeechTokenizerFileError: they differ.
    """
    try:
        config = SpeechTokenizerConfig.from_tensors(weights)
    except ValueError as error:
        raise SpeechTokenizerFileError(f"{path}: {error}") from error
    with torch.device("meta"):
        expected = SpeechTokenizer(config).state_dict()
    missing = sorted(expected.keys() - weights.keys())
    unknown = sorted(weights.keys() - expected.keys())
    if missing or unknown:
        raise SpeechTokenizerFileError(
            f"{path}: missing {_shorten(missing)}; not part of the model {_shorten(unknown)}"
        )
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise SpeechTokenizerFileError(
                f"{path}: {name} has shape {list(tensor.shape)}, "
                f"its neighbours say {list(expected[name].shape)}"
            )


def _shorten(names: list[str]) -> str:
    """List names without flooding a message."""
    shown = 5
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return (", ".join(names[:shown]) or "nothing") + more
