"""Stage: trains the flow, from speech codes to mel, in the chunks in which it is served."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.voice import MEL_FRAMES_PER_CODE, VoicePrompt
from training.nano.voice.alphabet import SILENCE, TIMING
from training.nano.voice.fixed import fixed_voice
from training.nano.voice.flow_batch import Layout, encode, estimate, join_condition
from training.nano.voice.recordings import Recordings
from training.nano.voice.replayed import ReplayedStep, rate_for
from training.nano.voice.sizes import vocoder_config
from training.nano.voice.stage_clock import Average, StageClock, resume, save, set_rate

PEAK_RATE = 1e-3
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
CROP_CODES = 3 * TIMING.codes_per_second + TIMING.lookahead_codes
FROM_THE_START = 0.7  # share of crops that begin where a turn begins
GUIDANCE_DROPOUT = 0.2
MU_WEIGHT = 0.5
FILE = "flow.pt"


@dataclass(frozen=True, eq=False)
class FlowBatch:
    """Padded crops of utterances.

    Attributes:
        codes: int64 [B, n].
        mel: float32 [B, 2n, 80].
        lengths: codes of each crop, int64 [B].
        counts: how far each crop is like what is served, in codes, int64 [B]; a crop that ends
            inside an utterance ends without its look-ahead.
    """

    codes: Tensor
    mel: Tensor
    lengths: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class FlowDraws:
    """What is random in a step.

    Attributes:
        noise: where the flow begins, prompt included, float32 [B, 2P + 2n, 80].
        times: ODE times, drawn along the schedule that is served, float32 [B].
        is_told: float32 [B], 0 for crops that learn to do without a condition.
    """

    noise: Tensor
    times: Tensor
    is_told: Tensor

    @classmethod
    def draw(cls, size: int, n_frames: int, n_bins: int, generator: torch.Generator) -> FlowDraws:
        """Draw for B crops of so many mel frames, on the generator's device."""
        device = generator.device
        noise = torch.randn(size, n_frames, n_bins, generator=generator, device=device)
        drawn = torch.rand(2, size, generator=generator, device=device)
        is_told = (drawn[1] >= GUIDANCE_DROPOUT).float()
        return cls(noise, 1 - torch.cos(drawn[0] * (math.pi / 2)), is_told)


def draw_batch(recordings: Recordings, size: int, generator: torch.Generator) -> FlowBatch:
    """Draw crops of at most 78 codes.

    Args:
        recordings: where from.
        size: number of crops.
        generator: on the CPU.
    """
    device = recordings.codes.device
    index = torch.randint(len(recordings), (size,), generator=generator)
    begin, end = recordings.starts[index], recordings.starts[index + 1]
    inside = torch.rand(size, generator=generator) > FROM_THE_START
    offset = torch.rand(size, generator=generator) * (end - begin - TIMING.codes_per_second).clamp(
        min=0
    )
    first = begin + torch.where(inside, offset.long(), 0)
    lengths = (end - first).clamp(max=CROP_CODES)
    counts = torch.where(first + lengths < end, lengths - TIMING.lookahead_codes, lengths)
    place = torch.arange(CROP_CODES)
    at = torch.minimum(first[:, None] + place, end[:, None] - 1).to(device)
    is_real = (place < lengths[:, None]).to(device)
    codes = torch.where(is_real, recordings.codes[at], SILENCE)
    frames = at[:, :, None] * MEL_FRAMES_PER_CODE + torch.arange(MEL_FRAMES_PER_CODE, device=device)
    mel = recordings.mel[frames.flatten(1)].float()
    return FlowBatch(codes, mel, lengths.to(device), counts.to(device))


def flow_loss(
    flow: Flow, voice: VoicePrompt, batch: FlowBatch, draws: FlowDraws
) -> tuple[Tensor, Tensor]:
    """Return the flow-matching loss and the mean distance of mu from the mel.

    Args:
        flow: being trained.
        voice: the prompt in front of every crop, on the flow's device.
        batch: the crops.
        draws: what is random.
    """
    size, n_codes = batch.codes.shape
    n_prompt = voice.codes.shape[1]
    layout = Layout.of(n_prompt, n_codes, batch.lengths)
    mu = encode(flow, torch.cat((voice.codes.expand(size, -1), batch.codes), dim=1), layout)
    mel = torch.cat((voice.mel.expand(size, -1, -1), batch.mel), dim=1)
    prompt = torch.cat((voice.mel.expand(size, -1, -1), torch.zeros_like(batch.mel)), dim=1)
    condition = join_condition(flow, mu, voice.speaker, prompt)
    x = torch.lerp(draws.noise, mel, draws.times[:, None, None])
    velocity = estimate(
        flow.decoder.estimator,
        x,
        condition * draws.is_told[:, None, None],
        draws.times,
        layout.upsampled().sees,
    )
    place = torch.arange(n_prompt + n_codes, device=mel.device) - n_prompt
    weight = (place < batch.counts[:, None]).repeat_interleave(MEL_FRAMES_PER_CODE, 1)[..., None]
    total = weight.sum() * mel.shape[2]
    matching = ((velocity - (mel - draws.noise)).square() * weight).sum() / total
    return matching, ((mu - mel).abs() * weight).sum() / total


def train_flow(
    recordings: Recordings, folder: Path, clock: StageClock, *, batch_size: int = 96, seed: int = 0
) -> Flow:
    """Train or go on training; writes `flow.pt`.

    Args:
        recordings: on the device to train on.
        folder: where the weights are and go.
        clock: when to stop.
        batch_size: crops per step.
        seed: of weights, crops and noise.
    """
    torch.manual_seed(seed)
    device = recordings.codes.device
    flow = Flow(vocoder_config().flow)
    peak = PEAK_RATE * resume(flow, folder / FILE)
    flow.to(device).train()
    average = Average(flow)
    on_cpu = torch.Generator().manual_seed(seed)
    on_device = torch.Generator(device).manual_seed(seed)
    voice = fixed_voice(recordings)
    is_recorded = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        flow.parameters(),
        rate_for(device, peak),
        weight_decay=WEIGHT_DECAY,
        capturable=is_recorded,
    )

    def learn(*tensors: Tensor) -> tuple[Tensor, ...]:
        batch, draws = FlowBatch(*tensors[:4]), FlowDraws(*tensors[4:])
        matching, distance = flow_loss(flow, voice, batch, draws)
        optimizer.zero_grad(set_to_none=True)
        (matching + MU_WEIGHT * distance).backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), CLIP_NORM)
        optimizer.step()
        return matching.detach(), distance.detach()

    step = ReplayedStep(learn, [optimizer])
    n_frames = voice.frames + CROP_CODES * MEL_FRAMES_PER_CODE
    for tick in clock.ticks("flow"):
        set_rate(optimizer, tick, peak)
        batch = draw_batch(recordings, batch_size, on_cpu)
        draws = FlowDraws.draw(batch_size, n_frames, batch.mel.shape[2], on_device)
        matching, distance = step(
            batch.codes,
            batch.mel,
            batch.lengths,
            batch.counts,
            draws.noise,
            draws.times,
            draws.is_told,
        )
        average.update(tick.step)
        tick.show(cfm=matching, mu=distance)
        if tick.is_save_due:
            save(average.state_dict(), folder / FILE)
    flow.load_state_dict(average.state_dict())
    return flow.eval()
