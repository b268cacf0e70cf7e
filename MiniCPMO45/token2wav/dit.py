"""Diffusion transformer that estimates the velocity of the flow, one ODE step at a time.

The modules hold weights only; what a stream remembers is an `EstimatorCache`.
Source: docs/specification/model.md#7.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.token2wav.config import EstimatorConfig
from MiniCPMO45.token2wav.estimator_cache import EstimatorStep
from MiniCPMO45.token2wav.layers import CausalConv1d

GUIDANCE_ROWS = 2  # conditional, unconditional
MODULATION_CHUNKS = 9  # shift, scale, gate for attention, MLP and convolution
CONV_KERNEL = 3
QK_NORM_EPS = 1e-5
BLOCK_NORM_EPS = 1e-6
CONV_NORM_EPS = 1e-5
TIME_CHANNELS = 256
TIME_SCALE = 1000.0
TIME_PERIOD = 10_000.0


@dataclass(frozen=True)
class Modulation:
    """Everything in the estimator that depends on the ODE time and the weights alone.

    The scales have their 1 added, so that they are the weights of a layer norm.

    Attributes:
        blocks: per step and block [N, depth, 9, C].
        final: shift and scale of the output layer per step [N, 2, C].
    """

    blocks: Tensor
    final: Tensor

    @property
    def nbytes(self) -> int:
        """Memory of both tables."""
        return self.blocks.nbytes + self.final.nbytes


class Attention(nn.Module):
    """Self-attention with normalised queries and keys; no mask, no positions."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.num_heads * config.head_dim
        self.head_dim = config.head_dim
        self.to_q = nn.Linear(width, inner)
        self.to_k = nn.Linear(width, inner)
        self.to_v = nn.Linear(width, inner)
        self.q_norm = nn.LayerNorm(config.head_dim, eps=QK_NORM_EPS)
        self.k_norm = nn.LayerNorm(config.head_dim, eps=QK_NORM_EPS)
        self.proj = nn.Linear(inner, width)

    def forward(self, x: Tensor, block: int, caches: Sequence[EstimatorStep] | None) -> Tensor:
        """Attend from x to itself and to what each stream remembers.

        Args:
            x: [2S, T, C], the guidance rows of a stream next to each other.
            block: index of this block in the caches.
            caches: one per stream, or None without history.

        Returns:
            [2S, T, C].
        """
        split = (-1, self.head_dim)
        query = self.q_norm(self.to_q(x).unflatten(2, split)).transpose(1, 2)
        key = self.k_norm(self.to_k(x).unflatten(2, split)).transpose(1, 2)
        value = self.to_v(x).unflatten(2, split).transpose(1, 2)  # [2S, heads, T, head_dim]
        if caches is None:
            out = F.scaled_dot_product_attention(query, key, value)
        else:
            parts = []
            for stream, cache in enumerate(caches):
                rows = slice(GUIDANCE_ROWS * stream, GUIDANCE_ROWS * (stream + 1))
                seen = cache.extend(block, key[rows], value[rows])
                parts.append(F.scaled_dot_product_attention(query[rows], *seen))
            out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.proj(out.transpose(1, 2).flatten(2))  # [2S, T, C]


class Mlp(nn.Module):
    """Two linear layers with tanh-GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., C]."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CausalConvBlock(nn.Module):
    """Two causal convolutions with layer norm and Mish between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict(  # the checkpoint counts transposes and the activation too
            {
                "1": CausalConv1d(width, width, kernel_size=CONV_KERNEL),
                "3": nn.LayerNorm(width, eps=CONV_NORM_EPS),
                "6": CausalConv1d(width, width, kernel_size=CONV_KERNEL),
            }
        )

    def forward(self, x: Tensor, block: int, caches: Sequence[EstimatorStep] | None) -> Tensor:
        """Map [2S, T, C] to [2S, T, C]; arguments as in `Attention.forward`."""
        rows, _, width = x.shape
        if caches is None:
            past = x.new_zeros(rows, 2 * width, CONV_KERNEL - 1)
        else:
            past = torch.cat([cache.convolution_past(block) for cache in caches])
        first, second = past.split(width, dim=1)
        x, first = self.block["1"](x.transpose(1, 2), first)
        x = F.mish(self.block["3"](x.transpose(1, 2)))
        x, second = self.block["6"](x.transpose(1, 2), second)
        for stream, cache in enumerate(caches or ()):
            mine = slice(GUIDANCE_ROWS * stream, GUIDANCE_ROWS * (stream + 1))
            cache.keep_convolution(block, torch.cat((first[mine], second[mine]), dim=1))
        return x.transpose(1, 2)


class DiTBlock(nn.Module):
    """Attention, causal convolution and MLP, each scaled, shifted and gated by the ODE time."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attn = Attention(config)
        self.mlp = Mlp(width, config.mlp_size)
        self.conv = CausalConvBlock(width)
        self.adaLN_modulation = nn.Sequential(
            nn.SiLU(), nn.Linear(width, MODULATION_CHUNKS * width)
        )

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        block: int,
        caches: Sequence[EstimatorStep] | None,
    ) -> Tensor:
        """Map [2S, T, C] to [2S, T, C].

        Args:
            x: hidden states.
            modulation: this step's and block's row of `Modulation.blocks` [9, C].
            block: index of this block.
            caches: one per stream, or None without history.
        """
        sa, ca, ga, sm, cm, gm, sv, cv, gv = modulation.unbind(0)
        x = _add_gated(x, ga, self.attn(_norm(x, ca, sa), block, caches))
        x = _add_gated(x, gv, self.conv(_norm(x, cv, sv), block, caches))
        return _add_gated(x, gm, self.mlp(_norm(x, cm, sm)))


# On a GPU each of these is one kernel. On the CPU a launch costs nothing, and separate operations
# round as the recorded ones do; the waveform magnifies the last bit of the mel a thousandfold.


def _norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    if x.is_cuda:
        return F.layer_norm(x, scale.shape, scale, shift, BLOCK_NORM_EPS)
    return F.layer_norm(x, scale.shape, eps=BLOCK_NORM_EPS) * scale + shift


def _add_gated(x: Tensor, gate: Tensor, change: Tensor) -> Tensor:
    return torch.addcmul(x, gate, change) if x.is_cuda else x + gate * change


class TimestepEmbedder(nn.Module):
    """Sinusoids of the ODE time through a small MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(TIME_CHANNELS, width), nn.SiLU(), nn.Linear(width, width)
        )

    def forward(self, time: Tensor) -> Tensor:
        """Map times [N] in 0...1 (float32) to [N, C]."""
        half = TIME_CHANNELS // 2
        order = torch.arange(half, device=time.device, dtype=torch.float32)
        angle = (TIME_SCALE * time)[:, None] * torch.exp(order * (-math.log(TIME_PERIOD) / half))
        waves = torch.cat((angle.cos(), angle.sin()), dim=1)  # [N, 256]
        return self.mlp(waves.to(next(self.mlp.parameters()).dtype))


class FinalLayer(nn.Module):
    """Modulated norm and projection to mel bins."""

    def __init__(self, width: int, n_out: int) -> None:
        super().__init__()
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.linear = nn.Linear(width, n_out)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """Map [2S, T, C] to [2S, T, bins]; modulation is a row of `Modulation.final` [2, C]."""
        shift, scale = modulation.unbind(0)
        return self.linear(_norm(x, scale, shift))


class DiT(nn.Module):
    """The estimator."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        self.config = config
        self.t_embedder = TimestepEmbedder(config.hidden_size)
        self.in_proj = nn.Linear(config.in_channels, config.hidden_size)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(config.hidden_size, config.out_channels)

    def modulate(self, times: Tensor) -> Modulation:
        """Compute what depends on the ODE time only, once for all chunks of all streams.

        Args:
            times: ODE time of each step, float32 [N].
        """
        linears = [block.get_submodule("adaLN_modulation") for block in self.blocks]
        blocks, final = [], []
        for time in times:
            # One step with its guidance rows: a product's rounding depends on its number of rows.
            embedded = self.t_embedder(time.expand(GUIDANCE_ROWS))  # [2, C]
            blocks.append(torch.stack([linear(embedded)[0] for linear in linears]))
            final.append(self.final_layer.adaLN_modulation(embedded)[0])
        of_blocks = torch.stack(blocks).unflatten(2, (MODULATION_CHUNKS, -1))  # [N, depth, 9, C]
        of_blocks[:, :, 1::3] += 1  # scales sit in the middle of each triple
        of_final = torch.stack(final).unflatten(1, (2, -1))  # [N, 2, C]
        of_final[:, 1] += 1
        return Modulation(of_blocks, of_final)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        modulation: Modulation,
        step: int,
        caches: Sequence[EstimatorStep] | None,
    ) -> Tensor:
        """Estimate the velocity at one step.

        Args:
            x: the flow's state [S, T, bins].
            condition: mu, speaker and prompt mel joined [2S, T, in_channels - bins].
            modulation: tables of all steps.
            step: index of this step.
            caches: one per stream, or None without history.

        Returns:
            Velocity of the guidance rows [S, 2, T, bins].
        """
        rows = x.repeat_interleave(GUIDANCE_ROWS, dim=0)
        hidden = torch.cat((rows, condition), dim=2) @ self.in_proj.weight.T + self.in_proj.bias
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, modulation.blocks[step, index], index, caches)
        out = self.final_layer(hidden, modulation.final[step])
        return out.unflatten(0, (-1, GUIDANCE_ROWS))
