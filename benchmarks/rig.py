"""Builds the model of a benchmark: the published size with random weights, or a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from benchmarks.inputs import Inputs
from benchmarks.machine import synchronise, tensor_bytes
from MiniCPMO45.configuration_minicpmo import DecoderConfig, MiniCPMOConfig
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.loading.checkpoint import expected_shapes, fill_randomly, read_headers
from MiniCPMO45.loading.checkpoint_source import CheckpointError, find_checkpoint
from MiniCPMO45.loading.quantisation import reserve_quantised, stored_tensors
from MiniCPMO45.model.transformer import CausalLM
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.pictures import Slice, slice_image
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import LoadOptions, Weights
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary
from MiniCPMO45.token2wav.config import Token2WavConfig
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT, fold_weight_norm
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.voices import SPEAKER_SIZE, SpeakerEncoder, VoiceEncoder, VoiceLibrary

VOICE_S = 6.0  # length of the voice's sample


@dataclass(frozen=True, eq=False)
class Rig:
    unified: UnifiedModel
    vocoder: Token2Wav
    voice: np.ndarray  # sample of every conversation's voice: noise, float32 [n] at 16 kHz
    build: dict[str, float]  # seconds in total and by stage, parameters, bytes

    @property
    def executor(self) -> Executor:
        return self.unified.executor

    @property
    def config(self) -> MiniCPMOConfig:
        return self.unified.model.config

    @property
    def tokenizer(self) -> MiniCPMOTokenizerFast:
        return self.unified.processor.tokenizer

    def wait(self) -> None:
        synchronise(self.executor.device)

    def cut(self, pictures: Sequence[Image.Image]) -> list[tuple[Slice, ...]]:
        """Preprocess pictures as a session's thread does, one slice each."""
        slicing = self.config.slice_config
        cut = [slice_image(each, 1, slicing).slices for each in pictures]
        return [self.executor.prepare_slices(slices) for slices in cut]


def random_full_rig(options: LoadOptions, seed: int) -> Rig:
    """Build the published configuration with random weights, drawn on the device."""
    seconds = _Seconds(options.device)
    processor = MiniCPMOProcessor.of(make_tokenizer(train_vocabulary()))
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(MiniCPMOConfig())
        sizes = Token2WavConfig()
        flow, hift = Flow(sizes.flow), HiFT(sizes.hift)
        listener = SpeechTokenizer(SpeechTokenizerConfig())
    draw = partial(random_weights, device=options.device, seed=seed)
    seconds.begin("drawing weights")
    n_model = draw(model, dtype=options.dtype, weights=options.weights)
    model.drop_unused()
    seconds.begin("drawing the voice")
    n_vocoder = sum(draw(module, dtype=torch.float32) for module in (flow, hift))
    fold_weight_norm(hift)
    vocoder = Token2Wav(flow, hift, options)
    draw(listener, dtype=torch.float32)
    voices = VoiceLibrary(VoiceEncoder(listener, _AnySpeaker()), vocoder)
    seconds.begin("preparing the engine")
    executor = Executor(model, vocoder, voices, options=options)
    return _finish(UnifiedModel(model, processor, executor), (n_model, n_vocoder), seed, seconds)


def checkpoint_rig(source: str, options: LoadOptions, seed: int) -> Rig:
    """Load a checkpoint folder or hub id; CheckpointError if it is not found or does not fit."""
    seconds = _Seconds(options.device)
    folder = find_checkpoint(source)
    timed = replace(options, show_progress=False, on_progress=seconds.begin)
    unified = UnifiedModel.from_checkpoint(folder, timed)
    if (vocoder := unified.executor.vocoder) is None:
        raise CheckpointError(f"{folder} has no vocoder")
    n_model = sum(math.prod(stored.shape) for stored in read_headers(folder).values())
    modules = (vocoder.flow, vocoder.hift)
    n_vocoder = sum(each.numel() for module in modules for each in module.state_dict().values())
    return _finish(unified, (n_model, n_vocoder), seed, seconds)


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


def random_llm(
    shape: DecoderConfig, *, device: torch.device, weights: Weights = Weights.BF16
) -> CausalLM:
    """Return a language model with random bfloat16 weights, reproducible in every setting."""
    with torch.device("meta"):
        whole = nn.ModuleDict({"llm": CausalLM(shape)})  # names decide on the scheme
    random_weights(whole, device=device, weights=weights, seed=0)
    llm = whole["llm"]
    assert isinstance(llm, CausalLM)
    return llm


class _AnySpeaker(SpeakerEncoder):
    def __init__(self) -> None:
        pass

    def embed(self, filter_bank: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a constant speaker embedding, float32 [1, 192]."""
        return np.ones((1, SPEAKER_SIZE), np.float32)


class _Seconds:
    """Seconds of each stage; `begin` is a function for `LoadOptions.on_progress`."""

    def __init__(self, device: torch.device) -> None:
        self.parts: dict[str, float] = {}
        self._device = device
        self._stage, self._began_s = "preparing", time.perf_counter()

    def begin(self, stage: str, share: float | None = None) -> None:
        """Begin a stage, unless it is the present one, of which another share is done."""
        if stage != self._stage:
            synchronise(self._device)
            now_s = time.perf_counter()
            self.parts[f"{self._stage}, s"] = now_s - self._began_s
            self._stage, self._began_s = stage, now_s


def _finish(
    unified: UnifiedModel, parameters: tuple[int, int], seed: int, seconds: _Seconds
) -> Rig:
    executor = unified.executor
    vocoder, voices = executor.vocoder, executor.voices
    assert vocoder is not None and voices is not None
    seconds.begin("preparing the voice")
    voice = Inputs(None, seed).sound(round(VOICE_S * SAMPLE_RATE_HZ))
    with torch.inference_mode():
        base = voices.base_of(voice)
    seconds.begin("done")
    build = {
        "seconds": sum(seconds.parts.values()),
        **seconds.parts,
        **dict(zip(("model_parameters", "vocoder_parameters"), parameters, strict=True)),
        "text_cache_tokens": executor.llm_store.free_pages * PAGE_TOKENS,
        "model_bytes": module_bytes(unified.model),
        "vocoder_bytes": module_bytes(vocoder.flow, vocoder.hift),
        "voice_bytes": tensor_bytes(base),
    }
    return Rig(unified, vocoder, voice, build)


def module_bytes(*modules: nn.Module) -> int:
    return sum(each.nbytes for module in modules for each in module.state_dict().values())
