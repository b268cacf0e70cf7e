"""Mel to waveform: neural source-filter generator with an inverse STFT at the end (HiFT).

Signals are [S, T, C]. In a padded batch every convolution sees zeros beyond a stream's end, so
results do not depend on the padding. Modules hold weights only.
Source: docs/specification/model.md#7.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from MiniCPMO45.kernels.convolutions import (
    Convolution,
    Upsampling,
    branch,
    convolve,
    inside,
    upsample,
)
from MiniCPMO45.kernels.device import run_concurrently
from MiniCPMO45.kernels.products import FrameConvolution
from MiniCPMO45.kernels.wave_transforms import cross_fade, excite, fourier, overlap_add, polar
from MiniCPMO45.token2wav.config import OVERLAP_FRAMES, F0Config, HiFTConfig

F0_LAYERS = 5
LAST_LEAKY_SLOPE = 0.01  # before the last convolution only


class Overlap(NamedTuple):
    """The last 8 mel frames [S, 8, bins] of a piece, which start the next piece.

    `source` and `speech` are their excitation and waveform [S, 8 * samples_per_frame].
    """

    mel: Tensor
    source: Tensor
    speech: Tensor


class Snake(nn.Module):
    """Parameters of a Snake, one per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))


class ResBlock(nn.Module):
    """Residual pairs of dilated convolutions with Snake activations."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            weight_norm(Convolution(channels, channels, kernel, d)) for d in dilations
        )
        self.convs2 = nn.ModuleList(
            weight_norm(Convolution(channels, channels, kernel)) for _ in dilations
        )
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    @property
    def alpha(self) -> Tensor:
        return cast(Snake, self.activations1[0]).alpha

    def forward(self, x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        """Run the block over x [S, T, C], whose first Snake gave y [S, T, C]: float32 [S, T, C]."""
        x, y = self.run_front(x, y, lengths)
        return convolve(y, self.last, lengths, added=(x,))[0]

    def run_front(self, x: Tensor, y: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Run all but the last convolution; return its residual and its input."""
        pairs = list(zip(self.convs1, self.activations2, self.convs2, strict=True))
        for index, (first, inner, second) in enumerate(pairs):
            between = cast(Snake, inner).alpha
            _, y = convolve(
                y, cast(Convolution, first), lengths, activation=between, wants_sum=False
            )
            if index < len(pairs) - 1:
                following = cast(Snake, self.activations1[index + 1]).alpha
                x, y = convolve(
                    y, cast(Convolution, second), lengths, added=(x,), activation=following
                )
        return x, y

    @property
    def last(self) -> Convolution:
        return cast(Convolution, self.convs2[-1])


class F0Predictor(nn.Module):
    def __init__(self, config: F0Config) -> None:
        super().__init__()
        width = config.cond_channels
        layers: list[nn.Module] = []
        for index in range(F0_LAYERS):
            n_in = width if index else config.in_channels
            layers += [weight_norm(FrameConvolution(n_in, width, 3, padding=1)), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, config.num_class)

    def forward(self, mel: Tensor, counts: Tensor | None = None) -> Tensor:
        """Predict the fundamental in Hz, float32 [S, F], from mel [S, F, bins].

        Both are zero beyond a stream's end, where `counts`, bool [S, F], are False.
        """
        x = mel
        for layer in self.condnet:
            x = layer(x)
            if counts is not None and isinstance(layer, nn.ELU):
                x = x * counts[:, :, None]
        f0 = self.classifier(x).squeeze(2).abs().float()
        return f0 if counts is None else f0 * counts


class HarmonicSource(nn.Module):
    """Weights that merge the harmonics into one excitation."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.l_linear = nn.Linear(config.nb_harmonics + 1, 1)


class HiFT(nn.Module):
    """The generator; its filter computes in `dtype`, all else in float32."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config, self.dtype = config, torch.float32
        base, rates = config.base_channels, config.upsample_rates
        widths = [base // 2 ** (i + 1) for i in range(len(rates))]
        self.f0_predictor = F0Predictor(config.f0_predictor)
        self.m_source = HarmonicSource(config)
        self.conv_pre = weight_norm(FrameConvolution(config.in_channels, base, 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(Upsampling(2 * width, width, kernel, rate))
            for width, kernel, rate in zip(widths, config.upsample_kernel_sizes, rates, strict=True)
        )
        self.source_downs = nn.ModuleList(_source_downs(config, widths))
        self.source_resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations)
            for width, kernel, dilations in zip(
                widths,
                config.source_resblock_kernel_sizes,
                config.source_resblock_dilation_sizes,
                strict=True,
            )
        )
        self.resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations)
            for width in widths
            for kernel, dilations in zip(
                config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True
            )
        )
        self.conv_post = weight_norm(Convolution(widths[-1], config.n_fft + 2, 7))

    def pack(self, dtype: torch.dtype) -> None:
        """Pack the weights for the kernels, once, after loading."""
        self.dtype = dtype
        for module in self.modules():
            if isinstance(module, Convolution | Upsampling):
                module.pack(dtype)
            elif isinstance(module, FrameConvolution):
                module.pack()

    def forward(
        self,
        mel: Tensor,
        noise: Tensor,
        overlap: Overlap | None,
        n_frames: Tensor,
        has_started: Tensor,
    ) -> tuple[Tensor, Overlap]:
        """Convert the next mel frames of S streams to samples.

        `mel` are new frames, float32 [S, T, bins], of which `n_frames`, int64 [S, 1], are valid,
        and `noise` draws for old and new samples together [S, L, harmonics + 1]. Streams whose turn
        has not `has_started`, int64 [S, 1], start here; without `overlap` all do.

        Returns:
            float32 [S, L], L being the samples of T frames, and of 8 more with an overlap: those of
            the piece before, cross-faded if the stream has started, and the new ones, the last 8
            frames of which change with the next piece. And the ends of these pieces.
        """
        held = OVERLAP_FRAMES * self.config.samples_per_frame
        started = has_started > 0
        total = n_frames + OVERLAP_FRAMES * has_started
        if overlap is not None:
            begun, behind = torch.cat((overlap.mel, mel), 1), F.pad(mel, (0, 0, 0, OVERLAP_FRAMES))
            mel = torch.where(started[:, :, None], begun, behind)  # [S, 8 + T, bins]
        counts = torch.arange(mel.shape[1], device=mel.device) < total  # [S, F]
        mel = torch.where(counts[:, :, None], mel, 0.0)
        source = self.excite(self.f0_predictor(mel, counts), noise)  # [S, L]
        if overlap is not None:
            begin = torch.where(started, overlap.source, source[:, :held])
            source = torch.cat((begin, source[:, held:]), dim=1)
        speech = self.decode(mel, source, total[:, 0])
        if overlap is not None:
            fade_in, fade_out = cross_fade(held, speech.device)
            faded = (speech[:, :held] * fade_in + overlap.speech * fade_out).to(speech.dtype)
            begin = torch.where(started, faded, speech[:, :held])
            speech = torch.cat((begin, speech[:, held:]), dim=1)
        return speech, self._end_of(mel, source, speech, total)

    def excite(self, f0: Tensor, noise: Tensor) -> Tensor:
        return excite(f0, noise, self.m_source.l_linear, self.config)

    def decode(self, mel: Tensor, source: Tensor, n_frames: Tensor | None = None) -> Tensor:
        """Filter the excitation [S, F * samples_per_frame] by the mel [S, F, bins].

        Returns:
            Waveform in +-audio_limit [S, F * samples_per_frame].
        """
        config = self.config
        if n_frames is None:
            n_frames = torch.full((len(mel),), mel.shape[1], device=mel.device)
        columns = n_frames * (config.samples_per_frame // config.hop_len) + 1
        spectrum = self._spectrum(source, n_frames, columns)
        y = F.leaky_relu(self.conv_pre(mel), config.lrelu_slope)
        y = (y * inside(y, n_frames)).to(self.dtype)
        rates, counts = config.upsample_rates, [n_frames]
        for rate in rates:
            counts.append(counts[-1] * rate)
        counts[-1] = counts[-1] + 1  # the last stage has the columns of a centred transform
        sources = run_concurrently(
            [partial(self._source, n, spectrum, counts[n + 1]) for n in range(len(rates))], y.device
        )
        for stage, up in enumerate(self.ups):
            upsampled = upsample(y, cast(Upsampling, up), counts[stage])
            y = self._run_stage(stage, sources[stage], upsampled, counts[stage + 1])
        wide, _ = convolve(y, cast(Convolution, self.conv_post), counts[-1])
        transform = fourier(config.n_fft, wide.device)
        parts = polar(wide, columns, config.n_fft // 2 + 1) @ transform.inverse
        wave = overlap_add(parts, columns, transform.squared_window, config.hop_len)
        return wave.clamp(-config.audio_limit, config.audio_limit)

    def _source(self, stage: int, spectrum: Tensor, lengths: Tensor) -> Tensor:
        """Filter the excitation's spectrum for a stage, float32 [S, T, C]."""
        block = cast(ResBlock, self.source_resblocks[stage])
        x = self.source_downs[stage](spectrum)
        x, [y] = branch(x, None, block.alpha[None], lengths, self.dtype)
        return block(x, y, lengths)

    def _run_stage(self, stage: int, source: Tensor, upsampled: Tensor, lengths: Tensor) -> Tensor:
        """Add the source and run the blocks; the result is activated for the next convolution."""
        config = self.config
        n_blocks = len(config.resblock_kernel_sizes)
        *blocks, last = cast("list[ResBlock]", list(self.resblocks))[stage * n_blocks :][:n_blocks]
        alphas = torch.stack([block.alpha for block in (*blocks, last)])
        x, branches = branch(source, upsampled, alphas, lengths, self.dtype)
        is_last = stage == len(self.ups) - 1
        following = LAST_LEAKY_SLOPE if is_last else config.lrelu_slope
        works: list[Callable[[], Any]] = [
            partial(block, x, y, lengths) for block, y in zip(blocks, branches, strict=False)
        ]
        works.append(partial(last.run_front, x, branches[-1], lengths))
        *sums, (residual, y) = run_concurrently(works, x.device)
        _, activated = convolve(
            y,
            last.last,
            lengths,
            added=(residual, *sums),
            factor=1.0 / len(works),
            activation=following,
            wants_sum=False,
        )
        return activated

    def _spectrum(self, source: Tensor, n_frames: Tensor, n_columns: Tensor) -> Tensor:
        """Centred transform of streams of different lengths [S, columns, n_fft + 2]."""
        n_fft, hop, length = self.config.n_fft, self.config.hop_len, source.shape[1]
        places = torch.arange(-n_fft // 2, length + n_fft // 2, device=source.device).abs()
        last = n_frames[:, None] * self.config.samples_per_frame - 1
        places = (last - (last - places).abs()).clamp(min=0)  # mirrored at both ends [S, L + n_fft]
        pieces = source.gather(1, places).unfold(1, n_fft, hop)  # [S, columns, n_fft]
        spectrum = pieces @ fourier(n_fft, source.device).forward
        return spectrum * inside(spectrum, n_columns)

    def _end_of(self, mel: Tensor, source: Tensor, speech: Tensor, total: Tensor) -> Overlap:
        """The overlap with the next piece; undefined for shorter streams."""
        per_frame, device = self.config.samples_per_frame, mel.device
        frames = total - OVERLAP_FRAMES + torch.arange(OVERLAP_FRAMES, device=device)
        frames = frames.clamp(0, mel.shape[1] - 1)  # [S, 8]
        samples = per_frame * frames[:, :, None] + torch.arange(per_frame, device=device)
        samples = samples.flatten(1)  # [S, 8 * samples_per_frame]
        mel = mel.gather(1, frames[:, :, None].expand(-1, -1, mel.shape[2]))
        return Overlap(mel, source.gather(1, samples), speech.gather(1, samples))


def _source_downs(config: HiFTConfig, widths: Sequence[int]) -> list[nn.Module]:
    """Convolutions of the excitation's spectrum to each stage's rate."""
    channels = config.n_fft + 2
    downs: list[nn.Module] = []
    rate = 1
    for width, up in zip(reversed(widths), (1, *reversed(config.upsample_rates[1:])), strict=True):
        rate *= up
        kernel, padding = (1, 0) if rate == 1 else (2 * rate, rate // 2)
        downs.insert(0, FrameConvolution(channels, width, kernel, stride=rate, padding=padding))
    return downs


def fold_weight_norm(model: nn.Module) -> None:
    """Replace every weight-norm pair by its weight, once, after loading."""
    for module in list(model.modules()):
        if is_parametrized(module, "weight"):
            remove_parametrizations(module, "weight", leave_parametrized=True)
