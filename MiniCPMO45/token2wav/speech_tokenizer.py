"""The speech tokenizer of reference recordings, with weights read from the published ONNX graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import NodeProto, TensorProto, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.loading.checkpoint import adopt_weights, shorten
from MiniCPMO45.loading.checkpoint_source import CheckpointError

HEAD_SIZE = 64  # fixed by the rotary table, for any width
ROPE_BASE = 10_000.0
MLP_FACTOR = 4  # ratio of the MLP's hidden width to the model's width
ATTENTION_NORM_EPS = 1e-6
MLP_NORM_EPS = 1e-5
CODE_LEVELS = 3  # values of a digit of a speech token
TANH_LIMIT = 1.0 - 1e-6
MEL_FRAMES_PER_CODE = 4
# Source: docs/specification/model.md#1.8 and #7.1.
WINDOW_MEL_FRAMES = 3_000  # 30 s
OVERLAP_MEL_FRAMES = 400  # 4 s


@dataclass(frozen=True)
class SpeechTokenizerConfig:
    """Sizes of the tokenizer; the defaults are the published ones.

    The width is a multiple of 64, and the taps of the memory convolution are odd.
    """

    n_mels: int = 128
    width: int = 1_280
    n_blocks: int = 6
    memory_kernel: int = 31
    code_digits: int = 8

    def __post_init__(self) -> None:
        if self.width <= 0 or self.width % HEAD_SIZE or self.memory_kernel % 2 == 0:
            raise ValueError(
                f"the speech tokenizer's width must be a multiple of {HEAD_SIZE} and its memory "
                f"kernel odd; found {self.width} and {self.memory_kernel}"
            )

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> SpeechTokenizerConfig:
        """Derive the sizes from a state dict.

        Raises:
            ValueError: a tensor that determines a size is missing, or the sizes are inconsistent.
        """
        try:
            width, n_mels = tensors["encoder.conv1.weight"].shape[:2]
            memory_kernel = tensors["encoder.blocks.0.attn.fsmn_block.weight"].shape[-1]
            code_digits = tensors["quantizer._codebook.project_down.weight"].shape[0]
        except KeyError as error:
            raise ValueError(f"not a speech tokenizer: tensor {error} is missing") from error
        blocks = {name.split(".")[2] for name in tensors if name.startswith("encoder.blocks.")}
        return cls(n_mels, width, len(blocks), memory_kernel, code_digits)


class MemoryAttention(nn.Module):
    """Self-attention plus a depthwise convolution of the values (the FSMN memory)."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width, kernel = config.width, config.memory_kernel
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(
            width, width, kernel, padding=kernel // 2, groups=width, bias=False
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend over a sequence [B, T, width]; the rotary tables are [T, 64]."""
        value = self.value(x)
        memory = self.fsmn_block(value.transpose(1, 2)).transpose(1, 2) + value
        query, key, heads = (
            part.unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)  # [B, heads, T, 64]
            for part in (self.query(x), self.key(x), value)
        )
        attended = F.scaled_dot_product_attention(
            _rotate(query, cos, sin), _rotate(key, cos, sin), heads
        )
        return self.out(attended.transpose(1, 2).flatten(-2)) + memory  # [B, T, width]


class TokenizerBlock(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width = config.width
        self.attn = MemoryAttention(config)
        self.attn_ln = nn.LayerNorm(width, eps=ATTENTION_NORM_EPS)
        self.mlp = nn.Sequential(
            nn.Linear(width, MLP_FACTOR * width), nn.GELU(), nn.Linear(MLP_FACTOR * width, width)
        )
        self.mlp_ln = nn.LayerNorm(width, eps=MLP_NORM_EPS)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), cos, sin)
        return x + self.mlp(self.mlp_ln(x))


class TokenizerEncoder(nn.Module):
    """Two convolutions, each halving the frame rate, followed by the blocks."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.n_mels, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(TokenizerBlock(config) for _ in range(config.n_blocks))

    def forward(self, mel: Tensor) -> Tensor:
        """Encode a spectrogram [B, n_mels, T]: [B, ceil(ceil(T / 2) / 2), width]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)  # [B, T / 4, width]
        cos, sin = rotary_table(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, cos.to(x.dtype), sin.to(x.dtype))
        return x


class Quantizer(nn.Module):
    """Rounds projected hidden states to digits in base 3, which form the speech token."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        down = nn.Linear(config.width, config.code_digits)
        self._codebook = nn.ModuleDict({"project_down": down})

    def project(self, hidden: Tensor) -> Tensor:
        return self._codebook["project_down"](hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Convert hidden states [..., width] to speech tokens, int64 [...]."""
        bounded = self.project(hidden).float().tanh().clamp(-TANH_LIMIT, TANH_LIMIT)
        digits = (bounded + 1.0).round().to(torch.int64)  # 0, 1 or 2
        places = CODE_LEVELS ** torch.arange(digits.shape[-1], device=digits.device)
        return (digits * places).sum(dim=-1)


class SpeechTokenizer(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TokenizerEncoder(config)
        self.quantizer = Quantizer(config)

    def encode(self, mel: Tensor) -> Tensor:
        """Return the speech tokens of a recording of any length.

        Recordings over 30 s are processed in windows that overlap by 4 s, of which each window
        contributes its half.

        Returns:
            int64 [ceil(ceil(T / 2) / 2)].
        """
        margin = OVERLAP_MEL_FRAMES // MEL_FRAMES_PER_CODE // 2
        parts = []
        for start, stop in window_ranges(mel.shape[1]):
            codes = self.quantizer(self.encoder(mel[None, :, start:stop]))[0]
            first = margin if start > 0 else 0
            parts.append(codes[first : -margin if stop < mel.shape[1] else None])
        return torch.cat(parts)


def window_ranges(n_frames: int) -> list[tuple[int, int]]:
    """Return the windows [start, stop) of `encode` for `n_frames` mel frames.

    Every window but the last lasts 30 s; the last is longer than the overlap, so that it is not
    empty without half an overlap.
    """
    if n_frames <= 0:
        raise ValueError("a recording without mel frames has no speech tokens")
    starts = range(0, max(1, n_frames - OVERLAP_MEL_FRAMES), WINDOW_MEL_FRAMES - OVERLAP_MEL_FRAMES)
    return [(start, min(start + WINDOW_MEL_FRAMES, n_frames)) for start in starts]


def rotary_table(n_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary angles, float32 [n_positions, 64] each."""
    exponents = torch.arange(0, HEAD_SIZE, 2, device=device).float() / HEAD_SIZE
    angles = torch.outer(torch.arange(n_positions, device=device).float(), ROPE_BASE**-exponents)
    angles = torch.cat((angles, angles), dim=-1)  # [n_positions, 64]
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


# Initializers whose nodes have no module path, by their names in the published file.
NAMED_WEIGHTS = {
    "onnx::Conv_2216": "encoder.conv1.weight",
    "onnx::Conv_2217": "encoder.conv1.bias",
    "onnx::Conv_2218": "encoder.conv2.weight",
    "onnx::Conv_2219": "encoder.conv2.bias",
    "onnx::MatMul_2536": "quantizer._codebook.project_down.weight",
    "quantizer.project_in.bias": "quantizer._codebook.project_down.bias",
}
# Parameter of a node's initializer, by the last part of the node's path.
PARAMETER_OF_NODE = {"MatMul": "weight", "Conv": "weight", "Add": "bias"}
BLOCK_PATH = re.compile(r"/(?P<module>blocks\.\d+/.+)/(?P<operation>[A-Za-z]+)")
FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def read_speech_tokenizer(path: Path) -> dict[str, Tensor]:
    """Return a graph's weights under the module's names; raises as `load_speech_tokenizer`."""
    if not path.is_file():
        raise CheckpointError(f"the speech tokenizer {path} is missing")
    try:
        graph = onnx.load(path).graph
    except DecodeError as error:
        raise CheckpointError(f"the speech tokenizer {path} is damaged: {error}") from error
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    weights: dict[str, Tensor] = {}
    placed: set[str] = set()
    for node in graph.node:
        for name, initializer in _weights_of(node, initializers):
            if name in weights:
                raise CheckpointError(f"{path}: two nodes give {name}")
            array = torch.tensor(numpy_helper.to_array(initializer), dtype=torch.float32)
            # Matrices are stored as [in, out].
            weights[name] = array.T.contiguous() if array.ndim == 2 else array
            placed.add(initializer.name)
    left = sorted(
        name for name, tensor in initializers.items() if name not in placed and _is_weight(tensor)
    )
    if left:
        raise CheckpointError(f"{path}: no place for the initializers {shorten(left)}")
    return weights


def load_speech_tokenizer(path: Path, device: torch.device) -> SpeechTokenizer:
    """Load the published graph's weights.

    Raises:
        CheckpointError: the file is missing or damaged, or a weight is unknown, given twice,
            missing or of the wrong shape.
    """
    weights = read_speech_tokenizer(path)
    try:
        config = SpeechTokenizerConfig.from_tensors(weights)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    with torch.device("meta"):
        tokenizer = SpeechTokenizer(config)
    adopt_weights(tokenizer, {name: each.to(device) for name, each in weights.items()}, str(path))
    return tokenizer.eval().requires_grad_(False)


def _weights_of(
    node: NodeProto, initializers: dict[str, TensorProto]
) -> Iterator[tuple[str, TensorProto]]:
    """Yield (parameter, initializer) for each known weight of a node."""
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
    """Whether an initializer is a weight; constants are integers or scalars."""
    return tensor.data_type in FLOAT_TYPES and math.prod(tensor.dims) > 1
