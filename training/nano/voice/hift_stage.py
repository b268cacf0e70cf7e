"""Stage: trains the vocoder, from mel to waveform: with spectral, then adversarial losses.

The filter is trained with the true F0, and a predictor of F0 from the mel separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.token2wav.config import UPSAMPLING
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from training.nano.bank import INT16_PEAK
from training.nano.shapes import vocoder_config
from training.nano.voice.alphabet import SILENCE
from training.nano.voice.discriminators import (
    Discriminators,
    SpectralLoss,
    discriminator_loss,
    feature_loss,
    generator_loss,
)
from training.nano.voice.flow_batch import integrate
from training.nano.voice.flow_stage import FILE as FLOW_FILE
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

SEGMENT_FRAMES = 32
PEAK_RATE = 5e-4
BETAS = (0.8, 0.99)
CLIP_NORM = 5.0
F0_BATCH = 24
MEL_WEIGHT, SPECTRUM_WEIGHT, FEATURE_WEIGHT = 8.0, 1.0, 10.0
DISCRIMINATORS_FROM = 0.2  # share of the stage after which the discriminators are used
FLOW_FROM = 0.6  # share after which half of the mels are the flow's
FLOW_SHARE = 0.5
FLOW_UTTERANCES = 1_500
FLOW_BATCH = 48
FLOW_STEPS = 5
LONGEST_CODES = 10 * TIMING.codes_per_second
FILE = "hift.pt"
DISCRIMINATORS_FILE = "hift_discriminators.pt"


F0_PEAK_RATE = 2e-3
F0_OUTPUT_RATE_SCALE = 30.0  # the last layer outputs Hz
F0_WARM_UP_STEPS = 20
F0_UNIT_HZ = 100.0


def train_fundamental(hift: HiFT, draw: Callable[[], tuple[Tensor, Tensor]], n_steps: int) -> float:
    """Train the F0 predictor; return its mean error in Hz over the last tenth of the steps.

    `draw` returns mels [B, 80, F] with their F0 in Hz [B, F], 0 where unvoiced.
    """
    predictor = hift.f0_predictor
    optimizer = torch.optim.AdamW(
        [
            {"params": list(predictor.condnet.parameters()), "scale": 1.0},
            {"params": list(predictor.classifier.parameters()), "scale": F0_OUTPUT_RATE_SCALE},
        ],
        weight_decay=0.0,
    )
    distances: list[Tensor] = []
    for step in range(n_steps):
        share = min((step + 1) / F0_WARM_UP_STEPS, 1 - step / n_steps)
        for group in optimizer.param_groups:
            group["lr"] = F0_PEAK_RATE * share * group["scale"]
        mel, f0_hz = draw()
        loss = F.l1_loss(predictor(mel.transpose(1, 2)), f0_hz) / F0_UNIT_HZ
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        distances.append(loss.detach())
    return float(torch.stack(distances[-max(1, n_steps // 10) :]).mean()) * F0_UNIT_HZ


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of speech: mel [B, 80, F], wave [B, F * 480], F0 in Hz [B, F]."""

    mel: Tensor
    wave: Tensor
    f0_hz: Tensor


@dataclass(frozen=True, eq=False)
class FlowMels:
    """Mels of recorded codes by the flow, and the frames at which they exist."""

    mel: Tensor
    frames: Tensor


def draw_segments(
    recordings: Recordings, size: int, generator: torch.Generator, made: FlowMels | None
) -> Segments:
    """Draw segments of 32 mel frames, half of them with mels by the flow."""
    device = recordings.mel.device
    last = len(recordings.mel) - SEGMENT_FRAMES
    first = torch.randint(last, (size,), generator=generator, device=device)
    n_made = 0 if made is None else int(size * FLOW_SHARE)
    if made is not None:
        drawn = torch.randint(len(made.frames), (n_made,), generator=generator, device=device)
        first[:n_made] = made.frames[drawn].clamp(max=last)
    frames = first[:, None] + torch.arange(SEGMENT_FRAMES, device=device)
    mel = recordings.mel[frames].float()
    if made is not None:
        mel[:n_made] = made.mel[frames[:n_made]].float()
    per_frame = TIMING.samples_per_mel_frame
    samples = frames[:, :, None] * per_frame + torch.arange(per_frame, device=device)
    wave = recordings.wave[samples.flatten(1)].float() / INT16_PEAK
    return Segments(mel.transpose(1, 2), wave, recordings.f0_hz[frames])


@torch.no_grad()
def make_flow_mels(recordings: Recordings, weights: Path, generator: torch.Generator) -> FlowMels:
    flow, device = Flow(vocoder_config().flow), recordings.mel.device
    resume(flow, weights)
    flow.to(device).eval()
    voice = fixed_voice(recordings)
    lengths = recordings.starts.diff()
    chosen = [i for i in range(len(recordings)) if lengths[i] <= LONGEST_CODES]
    chosen = sorted(chosen[:FLOW_UTTERANCES], key=lambda i: int(lengths[i]))
    mel = recordings.mel.clone()
    frames = []
    for at in range(0, len(chosen), FLOW_BATCH):
        some = chosen[at : at + FLOW_BATCH]
        counts = lengths[some]
        codes = torch.full((len(some), int(counts.max())), SILENCE, device=device)
        for row, index in enumerate(some):
            codes[row, : int(counts[row])] = recordings.codes_of(index)
        shape = (len(some), voice.frames + 2 * codes.shape[1], mel.shape[1])
        noise = torch.randn(shape, generator=generator, device=device)
        spoken = integrate(flow, voice, codes, counts.to(device), noise, FLOW_STEPS)
        for row, index in enumerate(some):
            first = int(recordings.starts[index]) * UPSAMPLING
            n_frames = int(counts[row]) * UPSAMPLING
            mel[first : first + n_frames] = spoken[row, :n_frames].to(mel.dtype)
            frames.append(torch.arange(first, first + max(1, n_frames - SEGMENT_FRAMES)))
    return FlowMels(mel, torch.cat(frames).to(device))


class HiFTTrainer:
    """One step of the vocoder, and of its discriminators."""

    def __init__(self, hift: HiFT, discriminators: Discriminators) -> None:
        self.hift = hift
        self.discriminators = discriminators
        device = next(hift.parameters()).device
        self._spectral = SpectralLoss().to(device)
        is_captured = device.type == "cuda"
        self.ours, self.theirs = (
            torch.optim.AdamW(
                module.parameters(),
                rate_for(device, PEAK_RATE),
                betas=BETAS,
                weight_decay=0.0,
                capturable=is_captured,
            )
            for module in (hift, discriminators)
        )

    def step(
        self, mel: Tensor, wave: Tensor, f0_hz: Tensor, noise: Tensor, *, is_adversarial: bool
    ) -> tuple[Tensor, ...]:
        """Take a step with mel [B, 80, F] and wave [B, L].

        Losses are spectral; with `is_adversarial` also those of the discriminators, which then take
        a step, too.

        Returns:
            The log-mel distance and the generator loss, zero without discriminators.
        """
        made = self.hift.decode(mel.transpose(1, 2), self.hift.excite(f0_hz, noise))
        mel_loss, rest = self._spectral(made, wave)
        loss, generator_part = MEL_WEIGHT * mel_loss + SPECTRUM_WEIGHT * rest, rest.new_zeros(())
        if is_adversarial:
            generator_part, wanted = self._discriminate(wave, made.detach())
            loss = loss + (made * wanted).sum()
        self.ours.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.hift.parameters(), CLIP_NORM)
        self.ours.step()
        return mel_loss.detach(), generator_part

    def _discriminate(self, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        """Train the discriminators; return the generator loss and its gradient at `made`."""
        made.requires_grad_()
        with half_precision(made.device):
            true, false = self.discriminators(real), self.discriminators(made)
            loss, generator_part = discriminator_loss(true, false), generator_loss(false)
            features = feature_loss(true, false)
        (wanted,) = torch.autograd.grad(
            generator_part + FEATURE_WEIGHT * features, made, retain_graph=True
        )
        self.theirs.zero_grad(set_to_none=True)
        loss.backward(inputs=list(self.discriminators.parameters()))
        torch.nn.utils.clip_grad_norm_(self.discriminators.parameters(), CLIP_NORM)
        self.theirs.step()
        return generator_part.detach(), wanted


def train_hift(
    recordings: Recordings,
    folder: Path,
    clock: StageClock,
    *,
    batch_size: int = 32,
    discriminators_from: float = DISCRIMINATORS_FROM,
    f0_steps: int = 4_000,
    seed: int = 0,
) -> None:
    """Train, or resume training, and write `hift.pt` and the discriminators.

    The flow is used as soon as its weights are in the folder. `discriminators_from` is the share of
    the stage after which the discriminators are used.
    """
    torch.manual_seed(seed)
    device = recordings.mel.device
    hift, discriminators = HiFT(vocoder_config().hift), Discriminators()
    _init_excitation(hift)
    peak = PEAK_RATE * resume(hift, folder / FILE)
    resume(discriminators, folder / DISCRIMINATORS_FILE)
    trainer = HiFTTrainer(hift.to(device).train(), discriminators.to(device).train())
    generator = torch.Generator(device).manual_seed(seed)
    optimizers = [trainer.ours, trainer.theirs]
    plain = ReplayedStep(partial(trainer.step, is_adversarial=False), [trainer.ours])
    adversarial = ReplayedStep(partial(trainer.step, is_adversarial=True), optimizers)
    made: FlowMels | None = None

    def draw() -> tuple[Tensor, Tensor]:
        drawn = draw_segments(recordings, F0_BATCH, generator, made)
        return drawn.mel, drawn.f0_hz

    hertz = train_fundamental(hift, draw, f0_steps)
    average = Average(hift)
    for tick in clock.ticks("hift"):
        if made is None and tick.progress > FLOW_FROM and (folder / FLOW_FILE).is_file():
            made = make_flow_mels(recordings, folder / FLOW_FILE, generator)
            hertz = train_fundamental(hift, draw, f0_steps)
            average.load({f"f0_predictor.{n}": p for n, p in hift.f0_predictor.named_parameters()})
        for optimizer in optimizers:
            set_rate(optimizer, tick, peak)
        segments = draw_segments(recordings, batch_size, generator, made)
        shape = (*segments.wave.shape, hift.config.nb_harmonics + 1)
        noise = torch.randn(shape, generator=generator, device=device)
        step = adversarial if tick.progress >= discriminators_from else plain
        mel_loss, generator_part = step(*vars(segments).values(), noise)
        average.update(tick.step)
        tick.show(mel=mel_loss, generator=generator_part, hertz=hertz)
        if tick.is_save_due:
            save(average.state_dict(), folder / FILE)
            save(discriminators.state_dict(), folder / DISCRIMINATORS_FILE)


def _init_excitation(hift: HiFT) -> None:
    """Initialise the excitation as pulses, since the filter would learn to ignore a weak one."""
    torch.nn.init.ones_(hift.m_source.l_linear.weight)
    torch.nn.init.zeros_(hift.m_source.l_linear.bias)
