"""The batched flow equals chunk-by-chunk synthesis in serving."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from tests.fakes.toy_vocoder import Outputs
from tests.training.voice_recordings import recordings
from training.nano.shapes import vocoder_config
from training.nano.voice.alphabet import CODES_USED
from training.nano.voice.flow_batch import Layout, encode, integrate
from training.nano.voice.flow_stage import draw_batch
from training.nano.voice.pronunciation import LEAD_CODES
from training.nano.voice.recordings import PROMPT_CODES

N_STEPS = 3
N_CODES = 103  # four chunks, then the three codes that end the turn


def _voice(codes: Tensor) -> VoicePrompt:
    frames = 2 * PROMPT_CODES
    return VoicePrompt(codes, torch.randn(1, 192), torch.randn(1, frames, 80))


def _spread(model: torch.nn.Module) -> None:
    """Enlarge the initial weights, so that every path affects the output."""
    for name, parameter in model.named_parameters():
        if "adaLN" in name or "pos_bias" in name:
            torch.nn.init.normal_(parameter, std=0.1)


def test_whole_utterances_equal_streamed_chunks() -> None:
    torch.manual_seed(0)
    sizes = vocoder_config()
    flow = Flow(sizes.flow).requires_grad_(False)
    _spread(flow)
    model = Token2Wav(flow, HiFT(sizes.hift), LoadOptions(flow_steps=N_STEPS))
    mels = Outputs(flow)
    drawn = torch.tensor(CODES_USED)[torch.randint(len(CODES_USED), (1, PROMPT_CODES + N_CODES))]
    drawn[:, PROMPT_CODES : PROMPT_CODES + 3] = TIMING.silence_code
    codes = drawn[0, PROMPT_CODES:].tolist()
    voice = _voice(drawn[:, :PROMPT_CODES])
    base = model.set_up(voice)
    state = model.new_state(base)
    starts = []
    mels.all.clear()
    for start in range(0, N_CODES - 3, 25):
        stop = min(start + 25, N_CODES - 3) + 3
        starts.append(state.noise_offset)
        model.stream(state, codes[start:stop])
    starts.append(state.noise_offset)
    model.stream(state, codes[-3:], is_last=True)
    chunks = list(mels.all)
    noise = [base.noise[:, :, : voice.frames].transpose(1, 2)]
    for start, chunk in zip(starts, chunks, strict=True):
        noise.append(base.noise[:, :, start : start + chunk.shape[1]].transpose(1, 2))
    lengths = torch.tensor([N_CODES])
    whole = integrate(
        model.flow, voice, drawn[:, PROMPT_CODES:], lengths, torch.cat(noise, dim=1), N_STEPS
    )
    assert torch.allclose(whole, torch.cat(chunks, dim=1), atol=1e-4)


def test_padding_does_not_affect_the_utterance() -> None:
    torch.manual_seed(1)
    flow = Flow(vocoder_config().flow)
    drawn = torch.tensor(CODES_USED)[torch.randint(len(CODES_USED), (2, PROMPT_CODES + 60))]
    lengths = torch.tensor([60, 41])
    with torch.no_grad():
        together = encode(flow, drawn, Layout.apart(PROMPT_CODES, 60, lengths))
        alone = encode(
            flow, drawn[1:, : PROMPT_CODES + 41], Layout.apart(PROMPT_CODES, 41, lengths[1:])
        )
    assert torch.allclose(together[1:, : alone.shape[1]], alone, atol=1e-5)


def test_utterances_in_a_row_are_independent() -> None:
    torch.manual_seed(2)
    flow = Flow(vocoder_config().flow)
    gap = TIMING.lookahead_codes
    first, second = 41, 30
    drawn = torch.tensor(CODES_USED)[
        torch.randint(len(CODES_USED), (1, PROMPT_CODES + first + gap + second))
    ]
    place = torch.cat((torch.arange(first + gap), torch.arange(second)))[None]
    length = torch.tensor([first] * (first + gap) + [second] * second)[None]
    layout = Layout.of(PROMPT_CODES, place, length)
    begin = PROMPT_CODES + first + gap
    assert not layout.sees[0, begin:, PROMPT_CODES:begin].any()
    assert layout.sees[0, begin:, :PROMPT_CODES].all()
    with torch.no_grad():
        row = encode(flow, drawn, layout)
        n_alone = PROMPT_CODES + first
        alone = encode(
            flow, drawn[:, :n_alone], Layout.apart(PROMPT_CODES, first, torch.tensor([first]))
        )
    assert torch.allclose(row[:, : 2 * n_alone], alone, atol=1e-5)


def test_some_crops_start_without_the_silent_lead(tmp_path: Path) -> None:
    learned = recordings(tmp_path)
    batch = draw_batch(learned, 200, Random(0))
    lengths = learned.starts.diff()
    begun = batch.length[(batch.place == 0) & (batch.count == batch.length)]
    whole, shorter = (torch.isin(begun, lengths - lead).sum() for lead in (0, LEAD_CODES))
    assert 0.2 < shorter / (whole + shorter) < 0.6
