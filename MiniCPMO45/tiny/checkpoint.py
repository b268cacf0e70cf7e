"""Writes a complete checkpoint of toy size with random weights, for tests and a first start."""

from __future__ import annotations

import math
import re
import wave
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor
from tqdm import tqdm

from MiniCPMO45.loading.checkpoint import TINY_VARIANT, expected_shapes
from MiniCPMO45.loading.checkpoint_source import CONFIG_FILE, CheckpointError, read_json_object
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary, write_json
from MiniCPMO45.tiny.weights import draw, model_config, tiny_model, vocoder_config
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.speech_tokenizer import (
    NAMED_WEIGHTS,
    SpeechTokenizer,
    SpeechTokenizerConfig,
)
from MiniCPMO45.token2wav.voices import FBANK_BINS, SPEAKER_SIZE


class TinyCheckpointError(ValueError):
    """The folder holds something else."""


def write_tiny_checkpoint(folder: Path, seed: int = 0, *, show_progress: bool = False) -> None:
    """Write a tiny checkpoint; the same seed gives the same bytes.

    Raises:
        TinyCheckpointError: the folder holds anything but an earlier tiny checkpoint.
    """
    _require_writable(folder)
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


def _require_writable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TinyCheckpointError(f"{folder} is a file, not a folder")
    try:
        is_tiny = read_json_object(folder / CONFIG_FILE).get("model_variant") == TINY_VARIANT
    except CheckpointError:
        is_tiny = False
    if any(folder.iterdir()) and not is_tiny:
        raise TinyCheckpointError(
            f"{folder} is not empty and holds no tiny checkpoint; name another folder"
        )


OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8  # released with opset 17
PROJECTION_SPREAD = 4.0  # makes code digits of all three values common
SPEAKER_HIDDEN_SIZE = 64
VARIANCE_FLOOR = 1e-6

Floats = NDArray[np.float32]
BLOCK = re.compile(r"^(blocks\.\d+)\.")

TINY_TOKENIZER = SpeechTokenizerConfig(width=64, n_blocks=2)


def write_speech_tokenizer_onnx(
    path: Path, seed: int, config: SpeechTokenizerConfig = TINY_TOKENIZER
) -> None:
    """Write weights under the published names of nodes and initializers.

    The graph is never executed, so its nodes are not connected.
    """
    with torch.device("meta"):
        shapes = expected_shapes(SpeechTokenizer(config))
    random = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    weights: dict[str, Floats] = {}
    published = {ours: theirs for theirs, ours in NAMED_WEIGHTS.items()}

    def add_node(kind: str, place: str, *inputs: str) -> None:
        name = f"{place}/{kind}"
        nodes.append(helper.make_node(kind, ["feats", *inputs], [f"{name}_output_0"], name=name))

    for name, shape in shapes.items():
        module, _, leaf = name.removeprefix("encoder.").rpartition(".")
        inner = module.replace(".mlp.", ".mlp/mlp.").replace(".attn.", ".attn/")
        place = "/" + BLOCK.sub(r"\1/", inner)
        if module.endswith("_ln"):
            if leaf == "weight":
                scale, shift = f"{module}.weight", f"{module}.bias"
                weights[scale] = np.ones(shape, np.float32)
                weights[shift] = _drawn(random, shape, shape[0])
                add_node("LayerNormalization", place, scale, shift)
            continue
        is_matrix = len(shape) == 2
        own_name = f"onnx::MatMul_{len(weights)}" if is_matrix else f"{module}.{leaf}"
        weight = published.get(name, own_name)
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
        weights[weight] = _drawn(random, shape[::-1] if is_matrix else shape, fan_in)
        add_node({1: "Add", 2: "MatMul", 3: "Conv"}[len(shape)], place, weight)
    weights["onnx::MatMul_2536"] *= np.float32(PROJECTION_SPREAD)
    last, described = nodes[-1].output[0], helper.make_tensor_value_info
    feats = described("feats", TensorProto.FLOAT, [1, config.n_mels, "T"])
    codes = described(last, TensorProto.FLOAT, [1, "codes", config.code_digits])
    graph = helper.make_graph(nodes, path.stem, [feats], [codes])
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    _write_onnx(path, model, weights)


# With statistics pooling.
CAMPPLUS = f"""
<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]>
campplus (float[1, T, {FBANK_BINS}] input) => (float[1, {SPEAKER_SIZE}] output) {{
    projected = MatMul(input, head)
    hidden = Tanh(projected)
    mean = ReduceMean<axes = [1], keepdims = 1>(hidden)
    centred = Sub(hidden, mean)
    squares = Mul(centred, centred)
    variance = ReduceMean<axes = [1], keepdims = 1>(squares)
    raised = Add(variance, floor)
    deviation = Sqrt(raised)
    pooled = Concat<axis = 2>(mean, deviation)
    flat = Flatten<axis = 1>(pooled)
    output = MatMul(flat, dense)
}}
"""


def write_campplus_onnx(path: Path, seed: int) -> None:
    """Write a speaker encoder, `input` [1, T, 80] to `output` [1, 192]."""
    random, hidden = np.random.default_rng(seed), SPEAKER_HIDDEN_SIZE
    weights = {
        "head": _drawn(random, (FBANK_BINS, hidden), FBANK_BINS),
        "floor": np.full(1, VARIANCE_FLOOR, np.float32),
        "dense": _drawn(random, (2 * hidden, SPEAKER_SIZE), 2 * hidden),
    }
    _write_onnx(path, onnx.parser.parse_model(CAMPPLUS), weights)


def _drawn(random: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Floats:
    return (random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def _write_onnx(path: Path, model: ModelProto, weights: dict[str, Floats]) -> None:
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


VOICE_FILE = Path("assets", "system_ref_audio.wav")
SAMPLE_S = 3.0
INT16_MAX = 32_767

BIAS_SPREAD = 0.02
GATE_SPREAD = 0.3  # of the estimator's modulation, so that activations keep their scale
PITCH_HZ = 150.0  # bias of the pitch predictor
LOG_MAGNITUDE = -0.9  # of the vocoder's spectrum: audible without clipping
SPECTRUM_BINS = 9
LOG_MAGNITUDE_SPREAD = 0.2


def write_assets(folder: Path, seed: int, *, has_published_size: bool = False) -> None:
    target = folder / "assets" / "token2wav"
    target.mkdir(parents=True, exist_ok=True)
    config = SpeechTokenizerConfig() if has_published_size else TINY_TOKENIZER
    write_speech_tokenizer_onnx(target / "speech_tokenizer_v2_25hz.onnx", seed, config)
    write_campplus_onnx(target / "campplus.onnx", seed)
    samples = np.round(voice_sample() * INT16_MAX).astype(np.int16)
    write_voice_sample(folder / VOICE_FILE, samples)
    write_vocoder(target, seed, has_published_size=has_published_size)


def write_vocoder(folder: Path, seed: int, *, has_published_size: bool = False) -> None:
    """Write the weights and, unless they have the published size, a `config.json`."""
    sizes = {} if has_published_size else vocoder_config()
    config = Token2WavConfig.model_validate(sizes)
    with torch.device("meta"):
        flow, hift = Flow(config.flow).state_dict(), HiFT(config.hift).state_dict()
    for name, like, draw_like in (("flow", flow, _flow_tensor), ("hift", hift, _hift_tensor)):
        drawn = {key: draw_like(key, tensor, seed).cpu() for key, tensor in like.items()}
        torch.save(drawn, folder / f"{name}.pt")
    if sizes:
        write_json(folder / "config.json", sizes)


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


def write_voice_sample(path: Path, samples: NDArray[np.int16]) -> None:
    """Write the voice of a checkpoint, int16 [n] at 16 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(samples.astype("<i2").tobytes())


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
        return torch.full(shape, float(name.endswith("weight")))  # layer norms by other names
    return tensor


def _hift_tensor(name: str, like: Tensor, seed: int) -> Tensor:
    shape = tuple(like.shape)
    if name.endswith("alpha"):
        return torch.ones(shape)
    if name.endswith("original0"):  # norms of the rows: keep the scale of activations
        spread = LOG_MAGNITUDE_SPREAD if name.startswith("conv_post.") else 1.0
        return torch.full(shape, spread)
    if name.startswith("f0_predictor.classifier."):
        return torch.full(shape, PITCH_HZ) if name.endswith("bias") else draw(name, shape, seed)
    if name == "conv_post.bias":
        bias = draw(name, shape, seed, BIAS_SPREAD)
        bias[:SPECTRUM_BINS] += LOG_MAGNITUDE
        return bias
    return _plain(name, shape, seed)
