"""Builds the model of a benchmark: the published size with random weights, or a checkpoint.

The voice is synthetic, so no voice encoder is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from benchmarks.machine import synchronise, tensor_bytes
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig, SpeechTiming
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.loading.checkpoint import expected_shapes, fill_randomly, read_headers
from MiniCPMO45.loading.checkpoint_source import find_checkpoint
from MiniCPMO45.loading.quantisation import reserve_quantised, stored_tensors
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.pictures import Slice, slice_image
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import CacheKind, LoadOptions, Weights
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary
from MiniCPMO45.token2wav.config import UPSAMPLING, Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT, fold_weight_norm
from MiniCPMO45.token2wav.load import load_token2wav
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import VoiceBase, VoicePrompt
from MiniCPMO45.token2wav.voices import SPEAKER_SIZE, SpeakerEncoder, VoiceEncoder, VoiceLibrary

ASSETS = Path("assets") / "token2wav"
VOICE_S = 6.0  # length of the synthetic voice


@dataclass(frozen=True)
class RigOptions:
    device: torch.device
    dtype: torch.dtype  # of the model; the vocoder is float32
    weights: Weights = Weights.BF16  # quantisation of the language model
    slots: int = 64  # concurrent conversations to prepare for
    seed: int = 0
    flow_steps: int = 5  # ODE steps of the vocoder
    cache: CacheKind = CacheKind.BF16


@dataclass(frozen=True, eq=False)
class Rig:
    config: MiniCPMOConfig
    tokenizer: MiniCPMOTokenizerFast
    executor: Executor
    vocoder: Token2Wav
    voice: VoiceBase  # initial state of speech streams
    build: dict[str, float]  # seconds per part and in total, parameters, bytes

    def wait(self) -> None:
        synchronise(self.executor.device)

    def cut(self, pictures: Sequence[Image.Image]) -> list[tuple[Slice, ...]]:
        """Preprocess pictures as a session's thread does, one slice each."""
        slicing = self.config.slice_config
        cut = [slice_image(each, 1, slicing).slices for each in pictures]
        return [self.executor.prepare_slices(slices) for slices in cut]


def random_full_rig(options: RigOptions) -> Rig:
    """Build the published configuration with random weights, drawn on the device."""
    seconds = _Seconds(options.device)
    tokenizer = make_tokenizer(train_vocabulary())
    seconds.lap("tokenizer_seconds")
    config = MiniCPMOConfig()
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(config)
        sizes = Token2WavConfig()
        flow, hift = Flow(sizes.flow), HiFT(sizes.hift)
    seconds.lap("modules_seconds")
    n_model = random_weights(
        model,
        device=options.device,
        dtype=options.dtype,
        weights=options.weights,
        seed=options.seed,
    )
    model.drop_unused()
    seconds.lap("model_seconds")
    n_vocoder = sum(
        random_weights(module, device=options.device, dtype=torch.float32, seed=options.seed)
        for module in (flow, hift)
    )
    fold_weight_norm(hift)
    vocoder = Token2Wav(flow, hift, LoadOptions(flow_steps=options.flow_steps))
    seconds.lap("vocoder_seconds")
    voices = VoiceLibrary(_random_voice_encoder(options), vocoder)
    seconds.lap("voices_seconds")
    counts = {"model_parameters": n_model, "vocoder_parameters": n_vocoder}
    return _finish(options, tokenizer, model, vocoder, voices, seconds, counts)


def checkpoint_rig(source: str, options: RigOptions) -> Rig:
    """Load a checkpoint folder or hub id; CheckpointError if it is not found or does not fit."""
    seconds = _Seconds(options.device)
    folder = find_checkpoint(source)
    tokenizer = MiniCPMOTokenizerFast.from_pretrained(folder)
    seconds.lap("tokenizer_seconds")
    loading = LoadOptions(options.device, options.dtype, options.weights, show_progress=False)
    model = MiniCPMOForConditionalGeneration.from_folder(folder, loading)
    n_model = sum(math.prod(stored.shape) for stored in read_headers(folder).values())
    model.drop_unused()
    seconds.lap("model_seconds")
    speaking = LoadOptions(options.device, flow_steps=options.flow_steps)
    vocoder = load_token2wav(folder / ASSETS, speaking)
    n_vocoder = sum(
        tensor.numel()
        for module in (vocoder.flow, vocoder.hift)
        for tensor in module.state_dict().values()
    )
    seconds.lap("vocoder_seconds")
    encoder = VoiceEncoder.from_folder(folder / ASSETS, options.device)
    seconds.lap("voices_seconds")
    counts = {"model_parameters": n_model, "vocoder_parameters": n_vocoder}
    voices = VoiceLibrary(encoder, vocoder)
    return _finish(options, tokenizer, model, vocoder, voices, seconds, counts)


def random_weights(
    module: nn.Module,
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.bfloat16,
    weights: Weights = Weights.BF16,
    seed: int,
) -> int:
    """Fill a module on the meta device, reproducibly by seed; return the number of elements."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shapes = expected_shapes(module)
    schemes = reserve_quantised(module, weights, dtype, torch.device(device))
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape, device=device, dtype=dtype)
        fill_randomly(name, drawn, generator)
        tensors |= stored_tensors(name, drawn, schemes.get(name), device, dtype)
    module.load_state_dict(tensors, strict=True, assign=True)
    module.requires_grad_(False).eval()
    return sum(math.prod(shape) for shape in shapes.values())


def synthetic_voice(vocoder: Token2Wav, n_codes: int, seed: int) -> VoicePrompt:
    flow, generator = vocoder.config.flow, torch.Generator().manual_seed(seed)
    frames = UPSAMPLING * n_codes
    return VoicePrompt(
        torch.randint(0, flow.vocab_size, (1, n_codes), generator=generator),
        torch.randn(1, flow.spk_embed_dim, generator=generator),
        torch.randn(1, frames, flow.output_size, generator=generator),
    )


class _AnySpeaker(SpeakerEncoder):
    def __init__(self) -> None:
        pass

    def embed(self, filter_bank: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a constant speaker embedding, float32 [1, 192]."""
        return np.ones((1, SPEAKER_SIZE), np.float32)


def _random_voice_encoder(options: RigOptions) -> VoiceEncoder:
    with torch.device("meta"):
        tokenizer = SpeechTokenizer(SpeechTokenizerConfig())
    random_weights(tokenizer, device=options.device, dtype=torch.float32, seed=options.seed)
    return VoiceEncoder(tokenizer.eval(), _AnySpeaker())


class _Seconds:
    def __init__(self, device: torch.device) -> None:
        self.parts: dict[str, float] = {}
        self._device = device
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        synchronise(self._device)
        now = time.perf_counter()
        self.parts[name], self._last = now - self._last, now


def _finish(
    options: RigOptions,
    tokenizer: MiniCPMOTokenizerFast,
    model: MiniCPMOForConditionalGeneration,
    vocoder: Token2Wav,
    voices: VoiceLibrary,
    seconds: _Seconds,
    counts: dict[str, int],
) -> Rig:
    load_options = LoadOptions(slots=options.slots, text_cache=options.cache)
    executor = Executor(model, vocoder, voices, options=load_options)
    seconds.lap("engine_seconds")
    n_codes = round(VOICE_S * SpeechTiming().codes_per_second)
    with torch.inference_mode():
        voice = vocoder.set_up(synthetic_voice(vocoder, n_codes, options.seed))
    seconds.lap("voice_seconds")
    build = {
        "seconds": sum(seconds.parts.values()),
        **seconds.parts,
        **counts,
        "text_cache_tokens": executor.llm_store.free_pages * PAGE_TOKENS,
        "model_bytes": module_bytes(model),
        "vocoder_bytes": module_bytes(vocoder.flow, vocoder.hift),
        "voice_bytes": tensor_bytes(voice),
    }
    return Rig(model.config, tokenizer, executor, vocoder, voice, build)


def module_bytes(*modules: nn.Module) -> int:
    return sum(each.nbytes for module in modules for each in module.state_dict().values())
