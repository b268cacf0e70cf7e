"""The device vocoder as it runs on a card: captured graphs, compiled kernels, half precision."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from MiniCPMO45.device.graphs import capture_all
from MiniCPMO45.device.vocoder import DeviceCall, DeviceVocoder
from MiniCPMO45.device.vocoder_streams import VocoderStream
from MiniCPMO45.token2wav.config import (
    EstimatorConfig,
    F0Config,
    FlowConfig,
    FlowEncoderConfig,
    HiFTConfig,
    Token2WavConfig,
)
from MiniCPMO45.token2wav.load import build_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav, VocoderOptions
from tests.fakes.toy_vocoder import PITCH_HZ, toy_codes, toy_voice

pytestmark = pytest.mark.gpu

MEL_LIMIT = 0.01  # between half precision and float32
CALLS = ((28, False), (13, False), (18, False), (28, False), (7, True))
VOICES = (75, 150)

SMALL = Token2WavConfig(
    flow=FlowConfig(
        input_size=32,
        encoder=FlowEncoderConfig(
            input_size=32,
            output_size=64,
            num_blocks=2,
            num_up_blocks=2,
            attention_heads=4,
            linear_units=96,
        ),
        estimator=EstimatorConfig(mlp_ratio=2.0, depth=2, num_heads=4, head_dim=16, hidden_size=64),
    ),
    hift=HiFTConfig(base_channels=128, f0_predictor=F0Config(cond_channels=32)),
)


def random_vocoder(config: Token2WavConfig, n_steps: int) -> Token2Wav:
    """Random weights of the given sizes on the card."""
    torch.manual_seed(7)
    model = Token2Wav(config)
    flow, hift = model.flow.state_dict(), model.hift.state_dict()
    hift["f0_predictor.classifier.bias"] = torch.tensor([PITCH_HZ])
    return build_token2wav(config, flow, hift, VocoderOptions(n_steps=n_steps), device="cuda")


@pytest.fixture(autouse=True)
def exact_convolutions() -> Iterator[None]:
    """The plain vocoder as the specification wants it: float32 throughout."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def seeded(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def largest_errors(plain: Token2Wav, device: DeviceVocoder) -> tuple[float, float]:
    """Largest difference of samples, and of the mel that ends each chunk, over a turn."""
    capture_all([device.pieces(rows=(2,))], show_progress=False)
    bases = [plain.set_up(toy_voice(n)) for n in VOICES]
    states = [plain.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    streams = [device.new_state(base, seeded(i)) for i, base in enumerate(bases)]
    wave_error = mel_error = 0.0
    for step, (n_codes, is_last) in enumerate(CALLS):
        codes = [toy_codes(n_codes, 10 * step + i) for i in range(len(bases))]
        for state, stream in zip(states, streams, strict=True):
            assert stream.noise_offset == state.noise_offset
        expected = [
            plain.stream(state, each, is_last) for state, each in zip(states, codes, strict=True)
        ]
        answers = device.stream_many(
            [DeviceCall(s, each, is_last) for s, each in zip(streams, codes, strict=True)]
        )
        for ours, theirs, state, stream in zip(answers, expected, states, streams, strict=True):
            wave_error = max(wave_error, float((ours - theirs).abs().max()))
            mel = stream.layout.split(stream.memory.tails)["mel"]
            assert state.hift is not None
            mel_error = max(mel_error, float((mel - state.hift.mel[0]).abs().max()))
    return wave_error, mel_error


@torch.inference_mode()
def test_closed_streams_free_the_card_s_memory_after_the_batch_size_changes() -> None:
    plain = random_vocoder(SMALL, n_steps=3)
    device = DeviceVocoder(plain)
    capture_all([device.pieces(rows=(1, 2, 4))], show_progress=False)
    base = plain.set_up(toy_voice(VOICES[0]))
    bystander = device.new_state(base)

    def speak(streams: list[VocoderStream]) -> None:
        device.stream_many([DeviceCall(stream, toy_codes(28)) for stream in streams])

    speak([bystander])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    crowd = [device.new_state(base) for _ in range(3)]
    speak(crowd)
    of_crowd = sum(stream.nbytes for stream in crowd)
    assert torch.cuda.memory_allocated() >= before + of_crowd
    crowd.clear()
    speak([bystander, device.new_state(base)])
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@torch.inference_mode()
def test_in_float32_graphs_speak_like_the_plain_vocoder() -> None:
    plain = random_vocoder(SMALL, n_steps=3)
    wave_error, mel_error = largest_errors(plain, DeviceVocoder(plain, dtype=torch.float32))
    assert mel_error < 1e-4
    assert wave_error < 1e-3  # phases of the excitation add up over a chunk


@torch.inference_mode()
def test_half_precision_keeps_the_mel_at_full_size() -> None:
    plain = random_vocoder(Token2WavConfig(), n_steps=5)
    wave_error, mel_error = largest_errors(plain, DeviceVocoder(plain))
    print(f"mel error {mel_error:.2e}, wave error {wave_error:.2e}")
    assert mel_error < MEL_LIMIT
