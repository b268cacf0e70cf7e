"""Stage: trains the vocoder, from mel to waveform: spectra first, then against judges as well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.voice import MEL_FRAMES_PER_CODE
from training.nano.voice.alphabet import SILENCE, TIMING
from training.nano.voice.discriminators import Judges, deceit_loss, feature_loss, judge_loss
from training.nano.voice.fixed import fixed_voice
from training.nano.voice.flow_batch import integrate
from training.nano.voice.flow_stage import FILE as FLOW_FILE
from training.nano.voice.recordings import INT16_PEAK, Recordings
from training.nano.voice.replayed import ReplayedStep, rate_for
from training.nano.voice.sizes import vocoder_config
from training.nano.voice.spectral_loss import SpectralLoss
from training.nano.voice.stage_clock import Average, StageClock, resume, save, set_rate
from training.nano.voice.trainable_hift import TrainableHiFT

SEGMENT_FRAMES = 32
PEAK_RATE = 5e-4
BETAS = (0.8, 0.99)
CLIP_NORM = 5.0
F0_OUTPUT_RATE_SCALE = 100.0  # the predictor's last layer speaks in Hz
F0_UNIT_HZ = 100.0
TOLD_F0_SHARE = 0.5  # of segments excited by the true fundamental, not the predicted one
MEL_WEIGHT, SPECTRUM_WEIGHT, FEATURE_WEIGHT = 8.0, 1.0, 10.0
JUDGES_FROM = 0.2  # share of the stage after which the judges join
FLOW_FROM = 0.6  # after which half of the mels come from the flow
FLOW_SHARE = 0.5
FLOW_UTTERANCES = 1_500
FLOW_BATCH = 48
FLOW_STEPS = 5
LONGEST_CODES = 10 * TIMING.codes_per_second
FILE = "hift.pt"
JUDGES_FILE = "hift_judges.pt"


@dataclass(frozen=True, eq=False)
class Segments:
    """Short stretches of speech.

    Attributes:
        mel: float32 [B, 80, F].
        wave: float32 [B, F * 480].
        f0_hz: float32 [B, F].
        is_made: bool [B], the mel comes from the flow and not from the wave.
    """

    mel: Tensor
    wave: Tensor
    f0_hz: Tensor
    is_made: Tensor


@dataclass(frozen=True, eq=False)
class FlowMels:
    """Mels the flow makes of recorded codes, and the mel frames for which there are any."""

    mel: Tensor
    frames: Tensor


def draw_segments(
    recordings: Recordings, size: int, generator: torch.Generator, made: FlowMels | None
) -> Segments:
    """Draw segments of 32 mel frames.

    Args:
        recordings: where from.
        size: number of segments.
        generator: on the recordings' device.
        made: mels of the flow that replace half of the true ones.
    """
    device = recordings.mel.device
    last = len(recordings.mel) - SEGMENT_FRAMES
    first = torch.randint(last, (size,), generator=generator, device=device)
    is_made = torch.zeros(size, dtype=torch.bool, device=device)
    source = recordings.mel
    if made is not None:
        n_made = int(size * FLOW_SHARE)
        drawn = torch.randint(len(made.frames), (n_made,), generator=generator, device=device)
        first[:n_made] = made.frames[drawn].clamp(max=last)
        is_made[:n_made] = True
    frames = first[:, None] + torch.arange(SEGMENT_FRAMES, device=device)
    mel = source[frames].float()
    if made is not None:
        mel = torch.where(is_made[:, None, None], made.mel[frames].float(), mel)
    per_frame = TIMING.samples_per_mel_frame
    samples = frames[:, :, None] * per_frame + torch.arange(per_frame, device=device)
    wave = recordings.wave[samples.flatten(1)].float() / INT16_PEAK
    return Segments(mel.transpose(1, 2), wave, recordings.f0_hz[frames], is_made)


@torch.no_grad()
def make_flow_mels(recordings: Recordings, flow: Flow, generator: torch.Generator) -> FlowMels:
    """Let the flow speak some of the recordings' codes.

    Args:
        recordings: on the flow's device.
        flow: trained, in evaluation mode.
        generator: on that device.
    """
    device = recordings.mel.device
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
            first = int(recordings.starts[index]) * MEL_FRAMES_PER_CODE
            n_frames = int(counts[row]) * MEL_FRAMES_PER_CODE
            mel[first : first + n_frames] = spoken[row, :n_frames].to(mel.dtype)
            frames.append(torch.arange(first, first + max(1, n_frames - SEGMENT_FRAMES)))
    return FlowMels(mel, torch.cat(frames).to(device))


@dataclass(frozen=True, eq=False)
class SegmentDraws:
    """What is random in a step.

    Attributes:
        noise: of the excitation [B, L, harmonics + 1].
        is_told: bool [B], the segment is excited by the true fundamental.
    """

    noise: Tensor
    is_told: Tensor

    @classmethod
    def draw(cls, segments: Segments, n_waves: int, generator: torch.Generator) -> SegmentDraws:
        """Draw for these segments, on the generator's device."""
        device, size = generator.device, len(segments.wave)
        shape = (*segments.wave.shape, n_waves)
        told = torch.rand(size, generator=generator, device=device) < TOLD_F0_SHARE
        return cls(torch.randn(shape, generator=generator, device=device), told | segments.is_made)


def speak(hift: HiFT, segments: Segments, draws: SegmentDraws) -> tuple[Tensor, Tensor]:
    """Make the waveforms of segments.

    Returns:
        Waveforms [B, L] and the loss of the predicted fundamental.
    """
    told = segments.f0_hz
    predicted = hift.predict_f0(segments.mel)
    is_true = ~segments.is_made[:, None]
    distance = ((predicted - told).abs() * is_true).sum() / (is_true.sum() * told.shape[1])
    f0 = torch.where(draws.is_told[:, None], told, predicted.detach())
    return hift.decode(segments.mel, hift.excite(f0, draws.noise)), distance / F0_UNIT_HZ


class HiFTLesson:
    """One step of the vocoder, and of its judges once they take part."""

    def __init__(self, hift: HiFT, judges: Judges) -> None:
        """Make the optimizers on the modules' device."""
        self.hift = hift
        self.judges = judges
        device = next(hift.parameters()).device
        self._spectral = SpectralLoss().to(device)
        in_hz = list(hift.f0_predictor.classifier.parameters())
        others = [p for p in hift.parameters() if all(p is not each for each in in_hz)]
        groups = [
            {"params": others, "lr": rate_for(device, PEAK_RATE)},
            {"params": in_hz, "lr": rate_for(device, PEAK_RATE), "scale": F0_OUTPUT_RATE_SCALE},
        ]
        is_recorded = device.type == "cuda"
        self.ours, self.theirs = (
            torch.optim.AdamW(chosen, betas=BETAS, weight_decay=0.0, capturable=is_recorded)
            for chosen in (
                groups,
                [{"params": list(judges.parameters()), "lr": rate_for(device, PEAK_RATE)}],
            )
        )

    def plain(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Learn from spectra alone; takes the fields of `Segments`, then of `SegmentDraws`."""
        segments = Segments(*tensors[:4])
        wave, f0_loss = speak(self.hift, segments, SegmentDraws(*tensors[4:]))
        loss, mel_loss = self._spectral_part(wave, segments, f0_loss)
        self._update(loss)
        return mel_loss.detach(), f0_loss.detach(), torch.zeros_like(loss)

    def judged(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Learn from spectra and from the judges, which learn first."""
        segments = Segments(*tensors[:4])
        wave, f0_loss = speak(self.hift, segments, SegmentDraws(*tensors[4:]))
        train_judges(self.judges, self.theirs, segments.wave, wave.detach())
        with torch.no_grad():
            real = self.judges(segments.wave)
        maps = self.judges.requires_grad_(False)(wave)
        self.judges.requires_grad_(True)
        deceit = deceit_loss(maps)
        loss, mel_loss = self._spectral_part(wave, segments, f0_loss)
        self._update(loss + deceit + FEATURE_WEIGHT * feature_loss(real, maps))
        return mel_loss.detach(), f0_loss.detach(), deceit.detach()

    def _spectral_part(
        self, wave: Tensor, segments: Segments, f0_loss: Tensor
    ) -> tuple[Tensor, Tensor]:
        mel_loss, rest = self._spectral(wave, segments.wave)
        return MEL_WEIGHT * mel_loss + SPECTRUM_WEIGHT * rest + f0_loss, mel_loss

    def _update(self, loss: Tensor) -> None:
        self.ours.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.hift.parameters(), CLIP_NORM)
        self.ours.step()


def train_hift(
    recordings: Recordings,
    folder: Path,
    clock: StageClock,
    *,
    batch_size: int = 32,
    judges_from: float = JUDGES_FROM,
    seed: int = 0,
) -> HiFT:
    """Train or go on training; writes `hift.pt` and the judges beside it.

    Args:
        recordings: on the device to train on.
        folder: where the weights are and go; the flow's are used once they are there.
        clock: when to stop.
        batch_size: segments per step.
        judges_from: share of the stage after which the judges join; 0 when going on.
        seed: of weights, segments and noise.
    """
    torch.manual_seed(seed)
    device = recordings.mel.device
    hift, judges = TrainableHiFT(vocoder_config().hift), Judges()
    peak = PEAK_RATE * resume(hift, folder / FILE)
    resume(judges, folder / JUDGES_FILE)
    lesson = HiFTLesson(hift.to(device).train(), judges.to(device).train())
    average = Average(hift)
    generator = torch.Generator(device).manual_seed(seed)
    plain = ReplayedStep(lesson.plain, [lesson.ours])
    judged = ReplayedStep(lesson.judged, [lesson.ours, lesson.theirs])
    made = None
    for tick in clock.ticks("hift"):
        if made is None and tick.progress > FLOW_FROM and (folder / FLOW_FILE).is_file():
            made = _flow_mels(recordings, folder, generator)
        for optimizer in (lesson.ours, lesson.theirs):
            set_rate(optimizer, tick, peak)
        segments = draw_segments(recordings, batch_size, generator, made)
        draws = SegmentDraws.draw(segments, hift.config.nb_harmonics + 1, generator)
        step = judged if tick.progress >= judges_from else plain
        mel_loss, f0_loss, deceit = step(
            segments.mel,
            segments.wave,
            segments.f0_hz,
            segments.is_made,
            draws.noise,
            draws.is_told,
        )
        average.update(tick.step)
        tick.show(mel=mel_loss, f0=f0_loss, deceit=deceit)
        if tick.is_save_due:
            save(average.state_dict(), folder / FILE)
            save(judges.state_dict(), folder / JUDGES_FILE)
    hift.load_state_dict(average.state_dict())
    return hift.eval()


def _flow_mels(recordings: Recordings, folder: Path, generator: torch.Generator) -> FlowMels:
    flow = Flow(vocoder_config().flow)
    resume(flow, folder / FLOW_FILE)
    return make_flow_mels(recordings, flow.to(recordings.mel.device).eval(), generator)


def train_judges(
    judges: Judges, optimizer: torch.optim.Optimizer, real: Tensor, made: Tensor
) -> None:
    """Take one step of the judges.

    Args:
        judges: trained here.
        optimizer: of their parameters.
        real: true waveforms [B, L].
        made: what the vocoder made of them [B, L].
    """
    loss = judge_loss(judges(real), judges(made))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(judges.parameters(), CLIP_NORM)
    optimizer.step()
