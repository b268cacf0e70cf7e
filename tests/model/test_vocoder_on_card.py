"""The vocoder as it runs on a card: captured graphs, compiled kernels, half precision."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from benchmarks.machine import tensor_bytes
from MiniCPMO45.engine.steps import Vocode
from MiniCPMO45.kernels.device import capture_all
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import (
    EstimatorConfig,
    F0Config,
    FlowConfig,
    FlowEncoderConfig,
    HiFTConfig,
    Token2WavConfig,
)
from MiniCPMO45.token2wav.load import build_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream, TailLayout
from tests.fakes.toy_vocoder import toy_codes, toy_voice, toy_weights

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


def vocoders(
    config: Token2WavConfig, n_steps: int, dtype: torch.dtype | None = None
) -> tuple[Token2Wav, Token2Wav]:
    """The same weights on the card, and on the CPU in float32 without padding."""
    weights = toy_weights(config)
    on_card = LoadOptions(torch.device("cuda"), flow_steps=n_steps, flow_dtype=dtype)
    plain = build_token2wav(config, *weights, LoadOptions(flow_steps=n_steps))
    return build_token2wav(config, *weights, on_card), plain


@pytest.fixture(autouse=True)
def exact_convolutions() -> Iterator[None]:
    """The plain vocoder as the specification wants it: float32 throughout."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def largest_errors(card: Token2Wav, plain: Token2Wav) -> tuple[float, float]:
    capture_all([card.pieces(rows=(2,))], show_progress=False)
    voices = [toy_voice(n) for n in VOICES]
    streams, states = (
        [each.new_state(each.set_up(voice)) for voice in voices] for each in (card, plain)
    )
    wave_error = mel_error = 0.0
    for step, (n_codes, is_last) in enumerate(CALLS):
        codes = [toy_codes(n_codes, 10 * step + i) for i in range(len(voices))]
        answers, expected = (
            vocoder.stream_many(
                [Vocode(s, each, is_last) for s, each in zip(group, codes, strict=True)]
            )
            for vocoder, group in ((card, streams), (plain, states))
        )
        for ours, theirs, stream, state in zip(answers, expected, streams, states, strict=True):
            assert stream.noise_offset == state.noise_offset
            wave_error = max(wave_error, float((ours.cpu() - theirs).abs().max()))
            mel, other = (
                TailLayout.of(plain.config, plain.options.flow_steps).split(each.memory.tails)[
                    "mel"
                ]
                for each in (stream, state)
            )
            mel_error = max(mel_error, float((mel.cpu() - other).abs().max()))
    return wave_error, mel_error


@torch.inference_mode()
def test_closed_streams_free_the_card_s_memory_after_the_batch_size_changes() -> None:
    vocoder, _ = vocoders(SMALL, n_steps=3)
    capture_all([vocoder.pieces(rows=(1, 2, 4))], show_progress=False)
    base = vocoder.set_up(toy_voice(VOICES[0]))
    bystander = vocoder.new_state(base)

    def speak(streams: list[SpeechStream]) -> None:
        vocoder.stream_many([Vocode(stream, toy_codes(28)) for stream in streams])

    speak([bystander])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    crowd = [vocoder.new_state(base) for _ in range(3)]
    speak(crowd)
    of_crowd = sum(tensor_bytes(stream.memory) for stream in crowd)
    assert torch.cuda.memory_allocated() >= before + of_crowd
    crowd.clear()
    speak([bystander, vocoder.new_state(base)])
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@torch.inference_mode()
def test_in_float32_graphs_speak_like_the_cpu() -> None:
    wave_error, mel_error = largest_errors(*vocoders(SMALL, n_steps=3, dtype=torch.float32))
    assert mel_error < 1e-4
    assert wave_error < 1e-3  # phases of the excitation add up over a chunk


@torch.inference_mode()
def test_half_precision_keeps_the_mel_at_full_size() -> None:
    wave_error, mel_error = largest_errors(*vocoders(Token2WavConfig(), n_steps=5))
    print(f"mel error {mel_error:.2e}, wave error {wave_error:.2e}")
    assert mel_error < MEL_LIMIT
