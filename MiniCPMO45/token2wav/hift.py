"""Mel to waveform: neural source-filter generator with an inverse STFT at the end (HiFT).

Modules hold weights only. A stream's overlap is a `HiFTCache`, replaced at every chunk.
Source: docs/specification/model.md#7.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from MiniCPMO45.token2wav.config import F0Config, HiFTConfig
from MiniCPMO45.token2wav.source import HarmonicSource

OVERLAP_FRAMES = 8  # mel frames computed again with the next chunk and cross-faded
F0_LAYERS = 5
LARGEST_MAGNITUDE = 100.0  # limit of the spectrum
LAST_LEAKY_SLOPE = 0.01  # before the last convolution only
SNAKE_EPS = 1e-9


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # whoever asks first, training may ask later
def _window(kind: str, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Periodic Hann for the STFT or symmetric Hamming for the cross-fade."""
    if kind == "hann":
        return torch.hann_window(size, periodic=True, dtype=dtype, device=device)
    return torch.hamming_window(size, periodic=False, dtype=dtype, device=device)


class Snake(nn.Module):
    """`x + sin(a x)^2 / a` with one a per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, T] to [B, C, T]."""
        alpha = self.alpha[:, None]
        return x + torch.sin(x * alpha).square() / (alpha + SNAKE_EPS)


class ResBlock(nn.Module):
    """Dilated convolutions with Snake, each pair behind a residual."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_same_conv(channels, kernel, d) for d in dilations)
        self.convs2 = nn.ModuleList(_same_conv(channels, kernel, 1) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, T] to [B, C, T]."""
        parts = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for first_act, first_conv, second_act, second_conv in parts:
            x = x + second_conv(second_act(first_conv(first_act(x))))
        return x


def _same_conv(channels: int, kernel: int, dilation: int) -> nn.Module:
    padding = (kernel - 1) * dilation // 2
    return weight_norm(nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=padding))


class F0Predictor(nn.Module):
    """Fundamental frequency per mel frame."""

    def __init__(self, config: F0Config) -> None:
        super().__init__()
        width = config.cond_channels
        layers: list[nn.Module] = []
        for index in range(F0_LAYERS):
            n_in = width if index else config.in_channels
            layers += [weight_norm(nn.Conv1d(n_in, width, kernel_size=3, padding=1)), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, config.num_class)

    def forward(self, mel: Tensor) -> Tensor:
        """Map mel [B, bins, F] to the fundamental in Hz [B, F]."""
        return self.classifier(self.condnet(mel).transpose(1, 2)).squeeze(2).abs()


class HiFT(nn.Module):
    """The generator."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        base, rates = config.base_channels, config.upsample_rates
        widths = [base // 2 ** (i + 1) for i in range(len(rates))]
        self.f0_predictor = F0Predictor(config.f0_predictor)
        self.m_source = HarmonicSource(config)
        self.conv_pre = weight_norm(nn.Conv1d(config.in_channels, base, 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(2 * width, width, kernel, rate, (kernel - rate) // 2))
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
        self.conv_post = weight_norm(nn.Conv1d(widths[-1], config.n_fft + 2, 7, padding=3))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.m_source.l_linear.weight.dtype

    def predict_f0(self, mel: Tensor) -> Tensor:
        """Map mel [B, bins, F] to the fundamental in Hz, float32 [B, F]."""
        return self.f0_predictor(mel).float()

    def excite(self, f0: Tensor, noise: Tensor | None) -> Tensor:
        """Make the excitation [B, 1, L], see `HarmonicSource.forward`."""
        return self.m_source(f0, noise)

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Filter the excitation by the mel.

        Args:
            mel: [B, bins, F].
            source: [B, 1, F * samples_per_frame].

        Returns:
            Waveform in +-audio_limit [B, F * samples_per_frame].
        """
        config, n_blocks = self.config, len(self.config.resblock_kernel_sizes)
        spectrum = self._stft(source[:, 0])  # [B, n_fft + 2, frames]
        x = self.conv_pre(mel)
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, config.lrelu_slope))
            if stage == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + self.source_resblocks[stage](self.source_downs[stage](spectrum))
            blocks = self.resblocks[stage * n_blocks : (stage + 1) * n_blocks]
            x = torch.stack([block(x) for block in blocks]).sum(0) / n_blocks
        x = self.conv_post(F.leaky_relu(x, LAST_LEAKY_SLOPE))
        return self._istft(x).clamp(-config.audio_limit, config.audio_limit)

    def forward(self, mel: Tensor, noise: Tensor | None) -> Tensor:
        """Map a whole mel [B, bins, F] to its waveform [B, F * samples_per_frame]."""
        return self.decode(mel, self.excite(self.predict_f0(mel), noise))

    def _stft(self, signal: Tensor) -> Tensor:
        n_fft, hop = self.config.n_fft, self.config.hop_len
        window = _window("hann", n_fft, signal.device, signal.dtype)
        spectrum = torch.stft(signal, n_fft, hop, n_fft, window, return_complex=True)
        return torch.cat((spectrum.real, spectrum.imag), dim=1)

    def _istft(self, x: Tensor) -> Tensor:
        n_fft, hop = self.config.n_fft, self.config.hop_len
        n_bins = n_fft // 2 + 1
        magnitude = x[:, :n_bins].exp().clamp(max=LARGEST_MAGNITUDE)
        angle = x[:, n_bins:].sin()
        spectrum = torch.complex(magnitude * angle.cos(), magnitude * angle.sin())
        window = _window("hann", n_fft, x.device, x.dtype)
        return torch.istft(spectrum, n_fft, hop, n_fft, window)


def _source_downs(config: HiFTConfig, widths: Sequence[int]) -> list[nn.Module]:
    """Convolutions that bring the excitation's spectrum to each stage's rate."""
    channels = config.n_fft + 2
    downs: list[nn.Module] = []
    rate = 1
    for width, up in zip(reversed(widths), (1, *reversed(config.upsample_rates[1:])), strict=True):
        rate *= up
        kernel, padding = (1, 0) if rate == 1 else (2 * rate, rate // 2)
        downs.insert(0, nn.Conv1d(channels, width, kernel, stride=rate, padding=padding))
    return downs


def fold_weight_norm(model: nn.Module) -> None:
    """Replace every weight-norm pair by the weight it stands for, once, after loading."""
    for module in list(model.modules()):
        if is_parametrized(module, "weight"):
            remove_parametrizations(module, "weight", leave_parametrized=True)


@dataclass(frozen=True)
class HiFTCache:
    """Overlap between two chunks of one stream; replaced, never written to.

    Attributes:
        mel: last 8 mel frames [1, bins, 8].
        source: their excitation [1, 1, 8 * samples_per_frame].
        speech: their waveform after the cross-fade [1, 8 * samples_per_frame].
    """

    mel: Tensor
    source: Tensor
    speech: Tensor

    @property
    def nbytes(self) -> int:
        """Memory of the three tensors."""
        return self.mel.nbytes + self.source.nbytes + self.speech.nbytes


def stream_hift(
    hift: HiFT,
    mel: Tensor,
    caches: Sequence[HiFTCache] | None,
    noise: Tensor | None,
    *,
    is_last: bool,
) -> tuple[Tensor, list[HiFTCache]]:
    """Turn the next mel frames of S streams into samples.

    Args:
        hift: the generator.
        mel: new frames [S, bins, T].
        caches: one per stream, or None when all of them start here.
        noise: draws for old and new samples together [S, L, harmonics + 1], or None.
        is_last: nothing follows; nothing is held back.

    Returns:
        Samples [S, n] and the new caches. A first chunk that is not the last has
        8 * samples_per_frame zeros in front, so that it is as long as its mel.

    Raises:
        ValueError: a first chunk is shorter than what has to be held back.
    """
    held = OVERLAP_FRAMES * hift.config.samples_per_frame
    if caches is not None:
        mel = torch.cat((torch.cat([c.mel for c in caches]), mel), dim=2)
    elif not is_last and mel.shape[2] < OVERLAP_FRAMES:
        raise ValueError(f"a first chunk needs {OVERLAP_FRAMES} mel frames, got {mel.shape[2]}")
    source = hift.excite(hift.predict_f0(mel), noise)
    if caches is not None:
        source = torch.cat((torch.cat([c.source for c in caches]), source[:, :, held:]), dim=2)
    speech = hift.decode(mel, source)
    if caches is not None:
        window = _window("hamming", 2 * held, speech.device, torch.float64)
        faded = speech[:, :held] * window[:held]
        faded = faded + torch.cat([c.speech for c in caches]) * window[held:]
        speech = torch.cat((faded.to(speech.dtype), speech[:, held:]), dim=1)
    kept = [
        HiFTCache(
            mel[s : s + 1, :, -OVERLAP_FRAMES:].clone(),
            source[s : s + 1, :, -held:].clone(),
            speech[s : s + 1, -held:].clone(),
        )
        for s in range(mel.shape[0])
    ]
    if is_last:
        return speech, kept
    out = speech[:, : speech.shape[1] - held]
    return (out if caches is not None else F.pad(out, (held, 0))), kept
