"""S3 tokenizer v2: a log-mel spectrogram to speech tokens, 25 per second.

Used once per voice. Holds weights only; must never look at a waveform or at a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEAD_SIZE = 64  # fixed by the rotary table, whatever the width
ROPE_BASE = 10_000.0
MLP_FACTOR = 4  # hidden width of the MLP over the model's width
ATTENTION_NORM_EPS = 1e-6
MLP_NORM_EPS = 1e-5
CODE_LEVELS = 3  # values a digit of a speech token can take
TANH_LIMIT = 1.0 - 1e-6
MEL_FRAMES_PER_CODE = 4
# Source: docs/specification/model.md#1.8 and #7.1.
WINDOW_MEL_FRAMES = 3_000  # 30 s
OVERLAP_MEL_FRAMES = 400  # 4 s


@dataclass(frozen=True)
class SpeechTokenizerConfig:
    """Sizes of the tokenizer; the defaults are the published ones.

    Attributes:
        n_mels: bins of the spectrogram.
        width: hidden size, a multiple of 64.
        n_blocks: number of transformer blocks.
        memory_kernel: taps of the memory convolution, odd.
        code_digits: digits of one speech token.
    """

    n_mels: int = 128
    width: int = 1_280
    n_blocks: int = 6
    memory_kernel: int = 31
    code_digits: int = 8

    def __post_init__(self) -> None:
        """Refuse sizes the architecture cannot have."""
        if self.width <= 0 or self.width % HEAD_SIZE or self.memory_kernel % 2 == 0:
            raise ValueError(
                f"the speech tokenizer's width must be a multiple of {HEAD_SIZE} and its memory "
                f"kernel odd; found {self.width} and {self.memory_kernel}"
            )

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> SpeechTokenizerConfig:
        """Read the sizes off a state dict.

        Args:
            tensors: state dict with this module's names.

        Raises:
            ValueError: a tensor that tells a size is missing, or the sizes make no sense.
        """
        try:
            width, n_mels = tensors["encoder.conv1.weight"].shape[:2]
            memory_kernel = tensors["encoder.blocks.0.attn.fsmn_block.weight"].shape[-1]
            code_digits = tensors["quantizer._codebook.project_down.weight"].shape[0]
        except KeyError as error:
            raise ValueError(f"not a speech tokenizer: tensor {error} is missing") from error
        blocks = {name.split(".")[2] for name in tensors if name.startswith("encoder.blocks.")}
        return cls(n_mels, width, len(blocks), memory_kernel, code_digits)


class MemoryAttention(nn.Module):
    """Self-attention plus a depthwise convolution of the values (the FSMN memory)."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width, kernel = config.width, config.memory_kernel
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(
            width, width, kernel, padding=kernel // 2, groups=width, bias=False
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend over the whole sequence.

        Args:
            x: [B, T, width].
            cos: [T, 64], of the rotary angles.
            sin: [T, 64], of the rotary angles.
        """
        value = self.value(x)
        memory = self.fsmn_block(value.transpose(1, 2)).transpose(1, 2) + value
        query, key, heads = (
            part.unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)  # [B, heads, T, 64]
            for part in (self.query(x), self.key(x), value)
        )
        attended = F.scaled_dot_product_attention(
            _rotate(query, cos, sin), _rotate(key, cos, sin), heads
        )
        return self.out(attended.transpose(1, 2).flatten(-2)) + memory  # [B, T, width]


class TokenizerBlock(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width = config.width
        self.attn = MemoryAttention(config)
        self.attn_ln = nn.LayerNorm(width, eps=ATTENTION_NORM_EPS)
        self.mlp = nn.Sequential(
            nn.Linear(width, MLP_FACTOR * width), nn.GELU(), nn.Linear(MLP_FACTOR * width, width)
        )
        self.mlp_ln = nn.LayerNorm(width, eps=MLP_NORM_EPS)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [B, T, width] to the same shape."""
        x = x + self.attn(self.attn_ln(x), cos, sin)
        return x + self.mlp(self.mlp_ln(x))


class TokenizerEncoder(nn.Module):
    """Two convolutions that halve the frame rate each, then the blocks."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.n_mels, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(TokenizerBlock(config) for _ in range(config.n_blocks))

    def forward(self, mel: Tensor) -> Tensor:
        """Encode a spectrogram.

        Args:
            mel: [B, n_mels, T].

        Returns:
            [B, ceil(ceil(T / 2) / 2), width].
        """
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)  # [B, T / 4, width]
        cos, sin = rotary_table(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, cos.to(x.dtype), sin.to(x.dtype))
        return x


class ScalarCodebook(nn.Module):
    """Rounds a few projected values to digits; the digits in base 3 are the speech token."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.project_down = nn.Linear(config.width, config.code_digits)

    def forward(self, projected: Tensor) -> Tensor:
        """Turn projected values [..., digits] into speech tokens, int64 [...]."""
        bounded = projected.float().tanh().clamp(-TANH_LIMIT, TANH_LIMIT)
        digits = (bounded + 1.0).round().to(torch.int64)  # 0, 1 or 2
        places = CODE_LEVELS ** torch.arange(digits.shape[-1], device=digits.device)
        return (digits * places).sum(dim=-1)


class Quantizer(nn.Module):
    """The codebook under the name it has in the state dict."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self._codebook = ScalarCodebook(config)

    def project(self, hidden: Tensor) -> Tensor:
        """Map [..., width] to the values before rounding [..., digits]."""
        return self._codebook.project_down(hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., width] to speech tokens, int64 [...]."""
        return self._codebook(self.project(hidden))


class SpeechTokenizer(nn.Module):
    """Spectrogram in, speech tokens out."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TokenizerEncoder(config)
        self.quantizer = Quantizer(config)

    def encode(self, mel: Tensor) -> Tensor:
        """Return the speech tokens of a recording of any length.

        More than 30 s are taken in windows that overlap by 4 s; of every overlap each window
        gives the half on its own side.

        Args:
            mel: float32 [n_mels, T], see `features.tokenizer_log_mel`.

        Returns:
            int64 [ceil(ceil(T / 2) / 2)].
        """
        margin = OVERLAP_MEL_FRAMES // MEL_FRAMES_PER_CODE // 2
        windows = window_ranges(mel.shape[1])
        parts = []
        for start, stop in windows:
            codes = self.quantizer(self.encoder(mel[None, :, start:stop]))[0]
            first = margin if start > 0 else 0
            parts.append(codes[first : -margin if stop < mel.shape[1] else None])
        return torch.cat(parts)


def window_ranges(n_frames: int) -> list[tuple[int, int]]:
    """Return the windows [start, stop) that `encode` takes of `n_frames` mel frames.

    Every window but the last is 30 s long; the last is longer than the overlap, so that cutting
    half an overlap off its front never reaches its end.

    Raises:
        ValueError: there is no frame.
    """
    if n_frames <= 0:
        raise ValueError("a recording without mel frames has no speech tokens")
    starts = range(0, max(1, n_frames - OVERLAP_MEL_FRAMES), WINDOW_MEL_FRAMES - OVERLAP_MEL_FRAMES)
    return [(start, min(start + WINDOW_MEL_FRAMES, n_frames)) for start in starts]


def rotary_table(n_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary angles, float32 [n_positions, 64] each."""
    exponents = torch.arange(0, HEAD_SIZE, 2, device=device).float() / HEAD_SIZE
    angles = torch.outer(torch.arange(n_positions, device=device).float(), ROPE_BASE**-exponents)
    angles = torch.cat((angles, angles), dim=-1)  # [n_positions, 64]
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
