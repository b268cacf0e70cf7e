"""The waveform generator on padded pieces: what lies behind a stream's end is silence to it.

Every convolution sees zeros beyond a stream's own end, so a piece of any length gives what it
would give alone. Never remembers a stream.
Source: docs/specification/model.md#7.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.device import wave_ops
from MiniCPMO45.device.packed_linear import all_of
from MiniCPMO45.device.wave_layers import (
    CHANNEL_STEP,
    Activation,
    PackedConvolution,
    PackedResBlock,
    pack_strided,
)
from MiniCPMO45.token2wav.config import HiFTConfig
from MiniCPMO45.token2wav.hift import LAST_LEAKY_SLOPE, OVERLAP_FRAMES, HiFT, ResBlock


@dataclass(frozen=True)
class Fourier:
    """The short transforms as products with small matrices.

    Attributes:
        forward: samples to real and imaginary parts, window included [n_fft, n_fft + 2].
        inverse: real and imaginary parts to windowed samples [n_fft + 2, n_fft].
        squared_window: [n_fft].
    """

    forward: Tensor
    inverse: Tensor
    squared_window: Tensor

    @classmethod
    def of(cls, n_fft: int, like: Tensor) -> Fourier:
        """Make the matrices for a periodic Hann window, beside `like`."""
        window = torch.hann_window(n_fft, periodic=True, dtype=torch.float64)
        n_bins = n_fft // 2 + 1
        turns = torch.outer(torch.arange(n_fft), torch.arange(n_bins)).double() / n_fft
        cos, sin = (2 * math.pi * turns).cos(), (2 * math.pi * turns).sin()
        forward = torch.cat((cos, -sin), dim=1) * window[:, None]
        # Bins other than the first and the last stand for their mirror images as well.
        weight = torch.full((n_bins,), 2.0 / n_fft, dtype=torch.float64)
        weight[0] = weight[-1] = 1.0 / n_fft
        inverse = torch.cat((cos * weight, -sin * weight), dim=1).T * window
        return cls(*(part.to(like) for part in (forward, inverse, window.square())))


@dataclass(frozen=True)
class PackedStage:
    """Weights of one stage of the filter.

    Attributes:
        up: the upsampling convolution.
        rate: by which it upsamples.
        down: brings the excitation's spectrum to this stage's rate; weight and bias.
        kernel: taps of `down`.
        stride: columns of the spectrum per frame of this stage.
        injected: residual block of the excitation.
        blocks: residual blocks of the signal, averaged.
        alphas: first Snakes of `blocks`, float32 [n, C].
        slope: of the leaky ReLU behind the stage.
    """

    up: PackedConvolution
    rate: int
    down: tuple[Tensor, Tensor]
    kernel: int
    stride: int
    injected: PackedResBlock
    blocks: tuple[PackedResBlock, ...]
    alphas: Tensor
    slope: float

    @classmethod
    def of(cls, hift: HiFT, stage: int, dtype: torch.dtype) -> PackedStage:
        """Pack a stage."""
        config, n_blocks = hift.config, len(hift.config.resblock_kernel_sizes)
        down = all_of(nn.Conv1d, hift.source_downs)[stage]
        up = all_of(nn.ConvTranspose1d, hift.ups)[stage]
        injected = all_of(ResBlock, hift.source_resblocks)[stage]
        following = all_of(ResBlock, hift.resblocks)[stage * n_blocks : (stage + 1) * n_blocks]
        blocks = tuple(PackedResBlock.of(block, dtype) for block in following)
        is_last = stage == len(config.upsample_rates) - 1
        return cls(
            PackedConvolution.of_upsampling(up, dtype),
            config.upsample_rates[stage],
            pack_strided(down),
            down.kernel_size[0],
            down.stride[0],
            PackedResBlock.of(injected, dtype),
            blocks,
            torch.stack([block.alphas[0] for block in blocks]),
            LAST_LEAKY_SLOPE if is_last else config.lrelu_slope,
        )


class PackedHift:
    """The generator; weights only."""

    def __init__(self, hift: HiFT, dtype: torch.dtype) -> None:
        """Pack the weights.

        Args:
            hift: the checkpoint's generator, its weight norms folded.
            dtype: of the filter's convolutions; pitch, excitation and transforms are float32.
        """
        self.config: HiFTConfig = hift.config
        self.dtype = dtype
        self.f0_predictor, self.source = hift.f0_predictor, hift.m_source
        self.first = pack_strided(hift.conv_pre)
        self.first_taps = hift.conv_pre.kernel_size[0]
        self.stages = [PackedStage.of(hift, i, dtype) for i in range(len(hift.ups))]
        self.last = PackedConvolution.of(hift.conv_post, dtype, step=CHANNEL_STEP)
        like = hift.m_source.l_linear.weight
        self.fourier = Fourier.of(self.config.n_fft, like)
        self.held = OVERLAP_FRAMES * self.config.samples_per_frame
        window = torch.hamming_window(2 * self.held, periodic=False, dtype=torch.float64)
        self.fades = [part.to(like.device) for part in window.split(self.held)]  # in, out

    def __call__(
        self,
        mel: Tensor,
        noise: Tensor,
        n_frames: Tensor,
        has_started: Tensor,
        tails: dict[str, Tensor],
        new_tails: dict[str, Tensor],
    ) -> Tensor:
        """Turn the next mel frames of S streams into samples.

        Args:
            mel: new frames, float32 [S, T, bins].
            noise: draws for old and new samples together [S, (8 + T) * 480, harmonics + 1].
            n_frames: frames of the chunk that count, int64 [S, 1].
            has_started: whether a turn is running, int64 [S, 1].
            tails: mel, source and speech of the last piece, by name.
            new_tails: receives those of this piece.

        Returns:
            float32 [S, (8 + T) * 480]; of a stream 8 frames (if it had started) and its chunk's
            frames count, and the last 8 of them will change with the next piece.
        """
        held, started = self.held, has_started > 0  # [S, 1]
        total = n_frames + OVERLAP_FRAMES * has_started  # [S, 1]
        mel = torch.where(
            started[:, :, None],
            torch.cat((tails["mel"], mel), dim=1),
            F.pad(mel, (0, 0, 0, OVERLAP_FRAMES)),
        )  # [S, 8 + T, bins]
        frames = torch.arange(mel.shape[1], device=mel.device)
        mel = torch.where((frames < total)[:, :, None], mel, 0.0)
        source = wave_ops.excite(self.source, self._predict_f0(mel, total[:, 0]), noise)  # [S, L]
        old = torch.where(started, tails["source"], source[:, :held])
        source = torch.cat((old, source[:, held:]), dim=1)
        speech = self._filter(mel, source, total[:, 0])
        fade_in, fade_out = self.fades
        faded = speech[:, :held] * fade_in + tails["speech"] * fade_out
        begin = torch.where(started, faded.to(speech.dtype), speech[:, :held])
        speech = torch.cat((begin, speech[:, held:]), dim=1)
        last_frames = (total - OVERLAP_FRAMES).clamp(min=0) + frames[:OVERLAP_FRAMES]  # [S, 8]
        new_tails["mel"][:] = mel.gather(1, last_frames[:, :, None].expand(-1, -1, mel.shape[2]))
        samples = torch.arange(held, device=mel.device)
        last_samples = self.config.samples_per_frame * last_frames[:, :1] + samples  # [S, held]
        new_tails["source"][:] = source.gather(1, last_samples)
        new_tails["speech"][:] = speech.gather(1, last_samples)
        return speech

    def _predict_f0(self, mel: Tensor, total: Tensor) -> Tensor:
        """Fundamental in Hz [S, F], zero behind a stream's end."""
        counts = torch.arange(mel.shape[1], device=mel.device) < total[:, None]
        x = mel.transpose(1, 2)
        # The phase adds up every error made here, and torch would take TF32 unasked.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            for layer in self.f0_predictor.condnet:
                x = layer(x)
                if isinstance(layer, nn.ELU):
                    x = x * counts[:, None]
        f0 = self.f0_predictor.classifier(x.transpose(1, 2)).squeeze(2).abs()
        return f0.float() * counts

    def _filter(self, mel: Tensor, source: Tensor, n_frames: Tensor) -> Tensor:
        """Filter the excitation [S, L] by the mel [S, F, bins]."""
        config = self.config
        columns = n_frames * (config.samples_per_frame // config.hop_len) + 1
        spectrum = self._spectrum(source, n_frames * config.samples_per_frame, columns)
        reach = self.first_taps // 2
        x = _strided(F.pad(mel, (0, 0, reach, reach)), self.first, self.first_taps, 1)
        y = F.leaky_relu(x, config.lrelu_slope)
        y = (y * (torch.arange(y.shape[1], device=y.device) < n_frames[:, None])[:, :, None]).to(
            self.dtype
        )
        lengths = n_frames
        for stage in self.stages:
            up, _ = wave_ops.convolve(y, stage.up, lengths)
            up = up.unflatten(2, (stage.rate, -1)).flatten(1, 2)  # [S, T * rate, C]
            lengths = lengths * stage.rate
            # The last stage has the columns of a centred transform, one more than its frames.
            lengths = lengths + int(stage.stride == 1)
            y = self._run_stage(stage, up, spectrum, lengths)
        wide, _ = wave_ops.convolve(y, self.last, lengths)
        parts = wave_ops.polar(wide, columns, config.n_fft // 2 + 1) @ self.fourier.inverse
        wave = wave_ops.overlap_add(parts, columns, self.fourier.squared_window, config.hop_len)
        return wave.clamp(-config.audio_limit, config.audio_limit)

    def _run_stage(
        self, stage: PackedStage, up: Tensor, spectrum: Tensor, lengths: Tensor
    ) -> Tensor:
        """Inject the excitation's spectrum and run the blocks; activated for what follows."""
        padding = 0 if stage.stride == 1 else stage.stride // 2
        x = _strided(
            F.pad(spectrum, (0, 0, padding, padding)), stage.down, stage.kernel, stage.stride
        )
        y = wave_ops.branch(x, None, stage.injected.alphas[:1], lengths, self.dtype)[0]
        x, activated = self._run_block(stage.injected, x, y, lengths)
        branches = wave_ops.branch(x, up, stage.alphas, lengths, self.dtype)
        total: tuple[Tensor, ...] = ()
        last = len(stage.blocks) - 1
        for index, (block, y) in enumerate(zip(stage.blocks, branches, strict=True)):
            is_last = index == last
            sum_so_far, activated = self._run_block(
                block,
                x,
                y,
                lengths,
                added=total,
                factor=1.0 / len(stage.blocks) if is_last else 1.0,
                activation=Activation(slope=stage.slope) if is_last else None,
            )
            total = (sum_so_far,)
        return activated

    @staticmethod
    def _run_block(
        block: PackedResBlock,
        x: Tensor,
        y: Tensor,
        lengths: Tensor,
        *,
        added: tuple[Tensor, ...] = (),
        factor: float = 1.0,
        activation: Activation | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run a residual block over x, whose first Snake has given y; see `wave_ops.convolve`."""
        n_pairs = len(block.convolutions) // 2
        for pair in range(n_pairs):
            first, second = block.convolutions[2 * pair : 2 * pair + 2]
            inner = Activation(alpha=block.alphas[2 * pair + 1])
            _, y = wave_ops.convolve(y, first, lengths, activation=inner, wants_sum=False)
            if pair < n_pairs - 1:
                following = Activation(alpha=block.alphas[2 * pair + 2])
                x, y = wave_ops.convolve(y, second, lengths, added=(x,), activation=following)
        return wave_ops.convolve(
            y,
            second,
            lengths,
            added=(x, *added),
            factor=factor,
            activation=activation,
            wants_sum=activation is None,
        )

    def _spectrum(self, source: Tensor, n_samples: Tensor, n_columns: Tensor) -> Tensor:
        """Centred transform of streams that end at their own length [S, columns, n_fft + 2]."""
        n_fft, hop, length = self.config.n_fft, self.config.hop_len, source.shape[1]
        places = torch.arange(-n_fft // 2, length + n_fft // 2, device=source.device).abs()
        last = n_samples[:, None] - 1
        places = (last - (last - places).abs()).clamp(min=0)  # mirrored at both ends [S, L + n_fft]
        pieces = source.gather(1, places).unfold(1, n_fft, hop)  # [S, columns, n_fft]
        spectrum = pieces @ self.fourier.forward
        counts = torch.arange(spectrum.shape[1], device=source.device) < n_columns[:, None]
        return spectrum * counts[:, :, None]


def _strided(x: Tensor, layer: tuple[Tensor, Tensor], kernel: int, stride: int) -> Tensor:
    """Convolve x [S, T, C] without padding, as one product: [S, T', C_out]."""
    weight, bias = layer
    rows = x.unfold(1, kernel, stride).transpose(2, 3).flatten(2)  # [S, T', kernel * C]
    return torch.addmm(bias, rows.flatten(0, 1), weight).unflatten(0, rows.shape[:2])
