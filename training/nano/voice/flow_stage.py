"""Stage: trains the flow, from speech codes to mel, with the chunks of serving."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.token2wav.config import UPSAMPLING
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from training.nano.shapes import vocoder_config
from training.nano.voice.alphabet import SILENCE
from training.nano.voice.flow_batch import Layout, encode, estimate, join_condition
from training.nano.voice.pronunciation import LEAD_CODES
from training.nano.voice.recordings import Recordings, fixed_voice
from training.nano.voice.stage_clock import (
    Average,
    ReplayedStep,
    StageClock,
    half_precision,
    rate_for,
    resume,
    save,
    set_rate,
)

PEAK_RATE = 1e-3
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
CROP_CODES = 3 * TIMING.codes_per_second + TIMING.lookahead_codes
ROW_CODES = 6 * TIMING.codes_per_second
FROM_THE_START = 0.7  # share of crops from the start of a turn
WITHOUT_LEAD = 0.4  # share of those without leading silence, as in whole replies
GUIDANCE_DROPOUT = 0.2
MU_WEIGHT = 0.5
FILE = "flow.pt"


@dataclass(frozen=True, eq=False)
class FlowBatch:
    """Rows of padded utterances and crops."""

    codes: Tensor
    mel: Tensor
    place: Tensor  # index of each code in its utterance, int64 [B, n]
    length: Tensor  # codes of the utterance of each code, int64 [B, n]
    count: Tensor  # those of them with their look-ahead, which count in the loss, int64 [B, n]


@dataclass(frozen=True, eq=False)
class FlowDraws:
    """Random values of a step."""

    noise: Tensor  # initial noise including the prompt, float32 [B, 2P + 2n, 80]
    times: Tensor  # ODE times, distributed like the schedule of serving, float32 [B]
    has_condition: Tensor  # float32 [B], 0 for unconditional rows (classifier-free guidance)

    @classmethod
    def draw(cls, size: int, n_frames: int, n_bins: int, generator: torch.Generator) -> FlowDraws:
        device = generator.device
        noise = torch.randn(size, n_frames, n_bins, generator=generator, device=device)
        drawn = torch.rand(2, size, generator=generator, device=device)
        has_condition = (drawn[1] >= GUIDANCE_DROPOUT).float()
        return cls(noise, 1 - torch.cos(drawn[0] * (math.pi / 2)), has_condition)


def draw_batch(recordings: Recordings, size: int, random: Random) -> FlowBatch:
    device = recordings.codes.device
    filled = [each for _ in range(size) for each in _fill_row(recordings, random)]
    at, place, length, count = torch.tensor(filled).to(device).unbind(1)
    codes = torch.where(place < length, recordings.codes[at], SILENCE)
    frames = at[:, None] * UPSAMPLING + torch.arange(UPSAMPLING, device=device)
    mel = recordings.mel[frames.flatten()].float()
    parts = (codes, mel, place, length, count)
    return FlowBatch(*(each.unflatten(0, (size, -1)) for each in parts))


def _fill_row(recordings: Recordings, random: Random) -> list[tuple[int, int, int, int]]:
    """Return index, place, length and count of each code of a row."""
    row: list[tuple[int, int, int, int]] = []
    while (remaining := ROW_CODES - len(row)) > TIMING.codes_per_second:
        first, end = _draw_crop(recordings, random)
        length = min(end - first, remaining, CROP_CODES)
        count = length if first + length == end else length - TIMING.lookahead_codes
        width = min(length + TIMING.lookahead_codes, remaining)  # look-ahead stays inside the row
        row += [(min(first + at, end - 1), at, length, count) for at in range(width)]
    return row + [(0, 1, 0, 0)] * (ROW_CODES - len(row))  # padding


def _draw_crop(recordings: Recordings, random: Random) -> tuple[int, int]:
    """Draw the first code of a crop, and the end of its utterance."""
    index = random.randrange(len(recordings))
    begin, end = int(recordings.starts[index]), int(recordings.starts[index + 1])
    if random.random() > FROM_THE_START:
        begin += random.randrange(max(1, end - begin - TIMING.codes_per_second))
    elif random.random() < WITHOUT_LEAD:
        begin += LEAD_CODES
    return begin, end


def flow_loss(
    flow: Flow, voice: VoicePrompt, batch: FlowBatch, draws: FlowDraws
) -> tuple[Tensor, Tensor]:
    """Return the flow-matching loss and the L1 distance of mu and mel."""
    size = len(batch.codes)
    n_prompt = voice.codes.shape[1]
    layout = Layout.of(n_prompt, batch.place, batch.length)
    mu = encode(flow, torch.cat((voice.codes.expand(size, -1), batch.codes), dim=1), layout)
    mel = torch.cat((voice.mel.expand(size, -1, -1), batch.mel), dim=1)
    prompt = torch.cat((voice.mel.expand(size, -1, -1), torch.zeros_like(batch.mel)), dim=1)
    condition = join_condition(flow, mu, voice.speaker, prompt)
    x = torch.lerp(draws.noise, mel, draws.times[:, None, None])
    velocity = estimate(
        flow.decoder.estimator,
        x,
        condition * draws.has_condition[:, None, None],
        draws.times,
        layout.upsampled().sees,
    )
    is_counted = F.pad(batch.place < batch.count, (n_prompt, 0), value=True)
    weight = is_counted.repeat_interleave(UPSAMPLING, 1)[..., None]
    total = weight.sum() * mel.shape[2]
    matching = ((velocity - (mel - draws.noise)).square() * weight).sum() / total
    return matching, ((mu - mel).abs() * weight).sum() / total


def train_flow(
    recordings: Recordings, folder: Path, clock: StageClock, *, batch_size: int = 32, seed: int = 0
) -> None:
    """Train, or resume training, and write `flow.pt`."""
    torch.manual_seed(seed)
    device = recordings.codes.device
    flow = Flow(vocoder_config().flow)
    peak = PEAK_RATE * resume(flow, folder / FILE)
    flow.to(device).train()
    average = Average(flow)
    random = Random(seed)
    on_device = torch.Generator(device).manual_seed(seed)
    voice = fixed_voice(recordings)
    is_captured = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        flow.parameters(), rate_for(device, peak), weight_decay=WEIGHT_DECAY, capturable=is_captured
    )

    def learn(*tensors: Tensor) -> tuple[Tensor, ...]:
        batch, draws = FlowBatch(*tensors[:5]), FlowDraws(*tensors[5:])
        with half_precision(device):
            matching, distance = flow_loss(flow, voice, batch, draws)
        optimizer.zero_grad(set_to_none=True)
        (matching + MU_WEIGHT * distance).backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), CLIP_NORM)
        optimizer.step()
        return matching.detach(), distance.detach()

    step = ReplayedStep(learn, [optimizer])
    n_frames = voice.frames + ROW_CODES * UPSAMPLING
    for tick in clock.ticks("flow"):
        set_rate(optimizer, tick, peak)
        batch = draw_batch(recordings, batch_size, random)
        draws = FlowDraws.draw(batch_size, n_frames, batch.mel.shape[2], on_device)
        matching, distance = step(*vars(batch).values(), *vars(draws).values())
        average.update(tick.step)
        tick.show(cfm=matching, mu=distance)
        if tick.is_save_due:
            save(average.state_dict(), folder / FILE)
