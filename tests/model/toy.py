"""The whole model at toy size in float32: tiny random weights, a vocoder and a voice.

It is built in memory like the tiny checkpoint, so it listens, speaks and ends turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.policies import UnitPolicy
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import EncodeClips, LlmForward, Steps
from MiniCPMO45.loading.quantisation import reserve_quantised, stored_tensors
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.modes.duplex import DuplexCapability, UnitResult
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import CacheKind, DuplexSettings, LoadOptions, Weights
from MiniCPMO45.tiny.checkpoint import write_vocoder
from MiniCPMO45.tiny.tokenizer import make_tokenizer, train_vocabulary
from MiniCPMO45.tiny.weights import model_config, tiny_tensors
from MiniCPMO45.token2wav.load import load_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream, VoiceBase, VoicePrompt
from tests.fakes.textbook_mel import textbook_log_mel

VOICE_CODES = 25  # one second
FLOW_STEPS = 2  # of the ODE; nobody listens
INPUT_RATE_HZ = 16_000

assert_close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
"""The same up to the order of float32 sums."""


@dataclass(frozen=True, eq=False)
class Toy:
    """Everything a conversation needs, weights shared by all tests."""

    config: MiniCPMOConfig
    tokenizer: MiniCPMOTokenizerFast
    model: MiniCPMOForConditionalGeneration
    vocoder: Token2Wav
    voice: VoiceBase

    @property
    def device(self) -> torch.device:
        return self.model.llm.model.norm.weight.device

    def executor(self, cache: CacheKind = CacheKind.BF16) -> Executor:
        """A fresh executor with stores of its own."""
        return Executor(self.model, self.vocoder, options=LoadOptions(text_cache=cache))

    def small_executor(self) -> Executor:
        """The same with small passes; more than four conversations, or 32 rows, need two."""
        options = LoadOptions(slots=4, most_rows=32)
        return Executor(self.model, self.vocoder, options=options)

    def duplex(self, defaults: DuplexSettings | None = None) -> DuplexCapability:
        policy = UnitPolicy(self.tokenizer.special, self.device)
        return DuplexCapability(self.config, self.tokenizer, policy, defaults or DuplexSettings())

    def open_voice(self, generator: torch.Generator | None = None) -> SpeechStream:
        with torch.inference_mode():
            return self.vocoder.new_state(self.voice, generator)


def build_toy(
    folder: Path, seed: int = 0, device: str = "cpu", weights: Weights = Weights.BF16
) -> Toy:
    """Make the toy model; about a second, most of it the first import of torch's meta device.

    Args:
        folder: an empty folder for the vocoder's files.
        seed: of every random weight.
        device: where the weights are.
        weights: how the language model's are kept.
    """
    vocabulary = train_vocabulary()
    write_vocoder(folder, seed)
    config = model_config(vocabulary)
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(config)
    schemes = reserve_quantised(model, weights, torch.float32, torch.device(device))
    tensors: dict[str, torch.Tensor] = {}
    for name, drawn in tiny_tensors(config, vocabulary, seed):
        tensors |= stored_tensors(name, drawn, schemes.get(name), device, torch.float32)
    model.load_state_dict(tensors, assign=True)
    vocoder = load_token2wav(
        folder, LoadOptions(torch.device(device), flow_steps=FLOW_STEPS, flow_dtype=torch.float32)
    )
    generator = torch.Generator().manual_seed(seed)
    voice = VoicePrompt(
        torch.randint(0, config.tts_config.speech_eos_id, (1, VOICE_CODES), generator=generator),
        torch.randn(1, 192, generator=generator),
        torch.randn(1, 2 * VOICE_CODES, 80, generator=generator),
    )
    return Toy(
        config=config,
        tokenizer=make_tokenizer(vocabulary),
        model=model.requires_grad_(False).eval(),
        vocoder=vocoder,
        voice=vocoder.set_up(voice),
    )


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise that is loud and quiet in turns of a second, float32 at 16 kHz."""
    n_samples = round(seconds * INPUT_RATE_HZ)
    random = np.random.default_rng(seed)
    loudness = 10.0 ** random.uniform(-3.5, -0.5, n_samples // INPUT_RATE_HZ + 1)
    noise = random.standard_normal(n_samples) * np.repeat(loudness, INPUT_RATE_HZ)[:n_samples]
    return noise.astype(np.float32)


def picture(seed: int, width: int = 120, height: int = 80) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


@dataclass(frozen=True)
class UnitInput:
    """Input of one unit."""

    audio: np.ndarray | None
    frames: tuple[Image.Image, ...] = ()
    force_listen: bool = False


def prepare(
    duplex: DuplexCapability,
    session: Session,
    settings: DuplexSettings | None = None,
    vocoder: SpeechStream | None = None,
    voice_sample: np.ndarray | None = None,
) -> Steps[None]:
    return duplex.feed_prompt(
        session,
        duplex_prefix(),
        duplex_suffix(),
        settings=settings,
        voice_sample=voice_sample,
        vocoder=vocoder,
    )


def run_unit(duplex: DuplexCapability, session: Session, unit: UnitInput) -> Steps[UnitResult]:
    yield from duplex.streaming_prefill(session, unit.audio, unit.frames)
    result = yield from duplex.streaming_generate(session, unit.force_listen)
    yield from duplex.close_unit(session)
    return result


def seconds_of(audio: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(audio) - INPUT_RATE_HZ + 1, INPUT_RATE_HZ):
        yield audio[start : start + INPUT_RATE_HZ]


@torch.inference_mode()
def decisions(executor: Executor, tokenizer: MiniCPMOTokenizerFast) -> list[int]:
    """Return the most likely decision after a second of silence, and after one of noise."""
    noise = np.random.default_rng(0).standard_normal(INPUT_RATE_HZ).astype(np.float32) * 0.2
    decided = []
    for sound in (np.zeros(INPUT_RATE_HZ, np.float32), noise):
        mel = textbook_log_mel(torch.from_numpy(sound), has_fixed_floor=True)
        [rows] = executor.submit([EncodeClips((mel,), block_frames=50)])()
        prompt = duplex_prefix() + duplex_suffix()
        opening = (*tokenizer.encode(prompt), tokenizer.special.unit_start)
        fed = Rows.of(opening, torch.cat(rows))
        [answer] = executor.submit([LlmForward(executor.llm_store.open(), fed)])()
        decided.append(int(answer.logits.argmax()))
    return decided
