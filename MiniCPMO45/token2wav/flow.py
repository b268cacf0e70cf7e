"""Speech codes to mel by flow matching: a diffusion transformer, Euler steps, guidance.

Streams of a batch may differ in age; their state is updated in place. Modules hold weights only.
The residual stream and the norms are float32; products use the dtype passed to `pack`.
Source: docs/specification/model.md#7.2 and #7.3.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.kernels.stream_memory import StreamCache, attend, store_entries
from MiniCPMO45.kernels.stream_norms import gated_norm, norm_heads, norm_mish_unfold
from MiniCPMO45.token2wav.config import (
    CONV_KERNEL,
    GUIDANCE_ROWS,
    UPSAMPLING,
    EstimatorConfig,
    FlowConfig,
)
from MiniCPMO45.token2wav.flow_encoder import (
    ConformerLayer,
    FlowEncoder,
    Linear,
    TapConvolution,
    pack_all,
    project_into,
)
from MiniCPMO45.token2wav.vocoder_state import ChunkBatch, FlowSchedule

NOISE_SEED = 0  # of the starting noise; the reference draws it unseeded
MODULATION_CHUNKS = 9  # shift, scale, gate for attention, MLP and convolution
QK_NORM_EPS = 1e-5
BLOCK_NORM_EPS = 1e-6
CONV_NORM_EPS = 1e-5
TIME_CHANNELS = 256
TIME_SCALE = 1000.0
TIME_PERIOD = 10_000.0

Tails = tuple[Tensor, Tensor]  # the last frames before a chunk, and the output for its own


class Attention(nn.Module):
    """Self-attention with normalised queries and keys; no mask, no positions."""

    qkv: tuple[Tensor, Tensor]
    head_norms: Tensor

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.num_heads * config.head_dim
        self.head_dim = config.head_dim
        self.to_q = nn.Linear(width, inner)
        self.to_k = nn.Linear(width, inner)
        self.to_v = nn.Linear(width, inner)
        self.q_norm = nn.LayerNorm(config.head_dim, eps=QK_NORM_EPS)
        self.k_norm = nn.LayerNorm(config.head_dim, eps=QK_NORM_EPS)
        self.proj = Linear(inner, width)

    def pack(self, dtype: torch.dtype) -> None:
        """Concatenate the weights of queries, keys and values, and stack those of their norms."""
        parts, norms = (self.to_q, self.to_k, self.to_v), (self.q_norm, self.k_norm)
        weight = torch.cat([part.weight for part in parts])
        self.qkv = weight.to(dtype), torch.cat([part.bias for part in parts]).to(dtype)
        self.head_norms = torch.stack([torch.stack((norm.weight, norm.bias)) for norm in norms])

    def forward(self, x: Tensor, qkv: Tensor, cache: StreamCache, layer: int) -> Tensor:
        """Attend from x [2S, T, C] to itself and to each stream's cache: [2S, T, C].

        The guidance rows of a stream are adjacent. `qkv` [2S, T, 3 * inner] receives queries, keys
        and values.
        """
        project_into(x, self.qkv, qkv)
        norm_heads(qkv, self.head_norms, QK_NORM_EPS, cache.heads)
        return cast(Tensor, self.proj(attend(qkv, None, cache, layer)))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = Linear(width, hidden)
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.fc1.gelu(x)))


class CausalConvBlock(nn.Module):
    """Two causal convolutions with layer norm and Mish between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict(  # the checkpoint also counts transposes and the activation
            {
                "1": TapConvolution(width, width, kernel_size=CONV_KERNEL),
                "3": nn.LayerNorm(width, eps=CONV_NORM_EPS),
                "6": TapConvolution(width, width, kernel_size=CONV_KERNEL),
            }
        )

    @property
    def layers(self) -> tuple[TapConvolution, nn.LayerNorm, TapConvolution]:
        first, norm, second = self.block.values()
        return cast(TapConvolution, first), cast(nn.LayerNorm, norm), cast(TapConvolution, second)

    def forward(self, rows: Tensor, tails: Tails, n_frames: Tensor) -> Tensor:
        """Run both convolutions over the unfolded rows [2S, T, 3 * C] of the first: [2S, T, C].

        `tails` belong to the second one, float32 [S, 2, 2, C] each; `n_frames`, int64 [S], are
        valid.
        """
        first, norm, second = self.layers
        affine = (norm.weight, norm.bias)
        y = norm_mish_unfold(first.product(rows), affine, CONV_NORM_EPS, (*tails, n_frames))
        return second.product(y)


class DiTBlock(nn.Module):
    """Attention, causal convolution and MLP, each scaled, shifted and gated by the ODE time."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attn = Attention(config)
        self.mlp = Mlp(width, int(width * config.mlp_ratio))
        self.conv = CausalConvBlock(width)
        self.adaLN_modulation = nn.Sequential(
            nn.SiLU(), nn.Linear(width, MODULATION_CHUNKS * width)
        )

    def forward(
        self,
        x: Tensor,
        change: tuple[Tensor | None, Tensor | None],
        modulation: Tensor,
        qkv: Tensor,
        cache: StreamCache,
        layer: int,
        tails: tuple[Tails, Tails],
        n_frames: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the block; return the MLP's branch [2S, T, C] and its gate.

        The other branches are added to `x`, the residual stream, float32 [2S, T, C], as is
        `change`, the preceding block's MLP branch with its gate [C]. `modulation` [9, C] is this
        step's and block's row of `FlowSchedule.blocks`; the other arguments are those of
        `Attention` and `CausalConvBlock`.
        """
        sa, ca, ga, sm, cm, gm, sv, cv, gv = modulation.unbind(0)
        y = gated_norm(x, *change, (ca, sa), BLOCK_NORM_EPS, qkv.dtype)
        mixed = self.attn(y, qkv, cache, layer)
        taps = (*tails[0], n_frames)
        rows = gated_norm(x, mixed, ga, (cv, sv), BLOCK_NORM_EPS, qkv.dtype, taps)
        convolved = self.conv(rows, tails[1], n_frames)
        y = gated_norm(x, convolved, gv, (cm, sm), BLOCK_NORM_EPS, qkv.dtype)
        return self.mlp(y), gm


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
        return cast(Tensor, self.mlp(torch.cat((angle.cos(), angle.sin()), dim=1)))


class FinalLayer(nn.Module):
    def __init__(self, width: int, n_out: int) -> None:
        super().__init__()
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.linear = nn.Linear(width, n_out)


class DiT(nn.Module):
    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        self.config = config
        self.dtype = torch.float32
        self.t_embedder = TimestepEmbedder(config.hidden_size)
        self.in_proj = nn.Linear(config.in_channels, config.hidden_size)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(config.hidden_size, config.out_channels)

    def drop_modulation(self) -> None:
        """Free the weights that only `Flow.make_schedule` reads."""
        for module in (*self.blocks, self.final_layer):
            del module.adaLN_modulation

    def project_condition(self, mu: Tensor, speaker: Tensor, prompt: Tensor | None) -> Tensor:
        """The part of the input projection that is the same for all steps [S, 2, T, C].

        The second guidance row is unconditional: it lacks `mu`, the encoder's output [S, T, bins],
        `speaker` [S, bins] and the prompt's mel [S, T, bins].
        """
        weight, bias = self.in_proj.weight, self.in_proj.bias
        _, of_mu, of_speaker, of_prompt = weight.split(mu.shape[2], dim=1)
        conditional = mu @ of_mu.T + (speaker @ of_speaker.T)[:, None] + bias
        if prompt is not None:
            conditional = conditional + prompt @ of_prompt.T
        return torch.stack((conditional, bias.expand_as(conditional)), dim=1)

    def forward(
        self, x: Tensor, condition: Tensor, step: int, batch: ChunkBatch, tails: Tails
    ) -> Tensor:
        """Estimate the velocity at one step and update the streams' state.

        `x` is the flow's state, float32 [S, T, bins]; `tails` are those of all convolutions [S,
        depth, 2, 2, 2, C].

        Returns:
            Velocity of the guidance rows, float32 [S, 2, T, bins]; undefined beyond a stream's end.
        """
        cache, depth, schedule = batch.estimator, len(self.blocks), batch.schedule
        n_frames = batch.table["n_frames"][:, 0]
        rows = x @ self.in_proj.weight[:, : x.shape[2]].T
        hidden = (rows[:, None] + condition).flatten(0, 1)  # [2S, T, C]
        inner = 3 * cache.heads * self.config.head_dim
        shape = (depth, *hidden.shape[:2], inner)
        qkv = torch.empty(shape, dtype=self.dtype, device=x.device)
        old, new = tails
        change: tuple[Tensor | None, Tensor | None] = (None, None)
        for index, block in enumerate(self.blocks):
            modulation, layer = schedule.blocks[step, index], step * depth + index
            ends = [(old[:, index, which], new[:, index, which]) for which in range(2)]
            change = block(hidden, change, modulation, qkv[index], cache, layer, ends, n_frames)
        store_entries(qkv, cache, step * depth)
        shift, scale = schedule.final[step].unbind(0)
        y = gated_norm(hidden, *change, (scale, shift), BLOCK_NORM_EPS, torch.float32)
        return cast(Tensor, self.final_layer.linear(y)).unflatten(0, (-1, GUIDANCE_ROWS))


def draw_flow_noise(n_frames: int, n_bins: int, seed: int = NOISE_SEED) -> Tensor:
    """Draw the starting noise of the ODE: standard normal, on the CPU [1, n_bins, n_frames].

    A longer draw begins with the shorter one of the same seed if `n_bins` is a multiple of 16.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_frames, n_bins, generator=generator).T[None].contiguous()


class FlowDecoder(nn.Module):
    """Holds the estimator under the checkpoint's name."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.estimator = DiT(config.estimator)


class Flow(nn.Module):
    """Encoder, estimator and their projections; weights only."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config, self.dtype = config, torch.float32
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_dim, config.output_size)
        self.encoder = FlowEncoder(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.output_size, config.output_size)
        self.decoder = FlowDecoder(config)

    @property
    def device(self) -> torch.device:
        return self.encoder_proj.weight.device

    @torch.no_grad()
    def pack(self, n_frames: int, dtype: torch.dtype) -> None:
        """Pack the weights for `forward`, once, after loading.

        Cached and new mel frames together are at most `n_frames`; products, keys and values are of
        `dtype`, all else is float32.
        """
        encoder, estimator = self.encoder, self.decoder.estimator
        self.dtype = encoder.dtype = estimator.dtype = dtype
        pack_all(self, dtype)
        for layer in encoder.encoders:
            cast(ConformerLayer, layer).self_attn.pack(n_frames // UPSAMPLING, dtype)
        for layer in encoder.up_encoders:
            cast(ConformerLayer, layer).self_attn.pack(n_frames, dtype)
        for block in estimator.blocks:
            cast(DiTBlock, block).attn.pack(dtype)

    def project_speaker(self, speaker: Tensor) -> Tensor:
        """Map speaker vectors [S, 192] to the estimator's condition [S, bins]."""
        return self.spk_embed_affine_layer(F.normalize(speaker, dim=1))

    @torch.no_grad()
    def make_schedule(self, n_steps: int) -> FlowSchedule:
        """Compute the cosine schedule `t_k = 1 - cos(pi/2 * k/N)` and the estimator's tables.

        The tables depend on the time only, and serve all chunks of all streams.
        """
        if n_steps < 1:
            raise ValueError(f"the flow needs at least one step, got {n_steps}")
        # On the CPU in float32: the time embedding multiplies the last bit by a thousand.
        times = 1.0 - torch.cos(torch.linspace(0.0, 1.0, n_steps + 1) * (0.5 * math.pi))
        estimator = self.decoder.estimator
        linears = [block.get_submodule("adaLN_modulation") for block in estimator.blocks]
        blocks, final = [], []
        for time in times[:-1].to(self.device):
            # One step with its guidance rows: a product's rounding depends on its number of rows.
            embedded = estimator.t_embedder(time.expand(GUIDANCE_ROWS))  # [2, C]
            blocks.append(torch.stack([linear(embedded)[0] for linear in linears]))
            final.append(estimator.final_layer.adaLN_modulation(embedded)[0])
        of_blocks = torch.stack(blocks).unflatten(2, (MODULATION_CHUNKS, -1))  # [N, depth, 9, C]
        of_blocks[:, :, 1::3] += 1  # scales are the middle of each triple
        of_final = torch.stack(final).unflatten(1, (2, -1))  # [N, 2, C]
        of_final[:, 1] += 1
        return FlowSchedule(tuple(times.diff().tolist()), of_blocks, of_final)

    def forward(
        self, batch: ChunkBatch, tails: dict[str, Tensor], new_tails: dict[str, Tensor]
    ) -> Tensor:
        """Convert the codes of a batch to mel and update the streams' state.

        Returns:
            mel, float32 [S, T, bins]; undefined beyond a stream's end.
        """
        embedded = self.input_embedding.weight[batch.table["codes"]]
        mu = self.encoder_proj(self.encoder(embedded, batch, tails, new_tails))
        estimator, rate = self.decoder.estimator, self.config.cfg_rate
        condition = estimator.project_condition(mu, batch.speaker, batch.prompt)
        old, new = tails["convolution"], new_tails["convolution"]
        x = batch.start
        for step, delta in enumerate(batch.schedule.deltas):
            ends = (old[:, step], new[:, step])
            conditional, free = estimator(x, condition, step, batch, ends).unbind(1)
            x = x + delta * ((1.0 + rate) * conditional - rate * free)
        return x
