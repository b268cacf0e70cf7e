"""The flow's estimator on padded chunks: all Euler steps of many streams without a host's help.

Functions of packed weights, a plan and tensors; never remembers a stream. The residual stream,
norms and the flow's state are float32; only products run in the given type.
Source: docs/specification/model.md#7.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from MiniCPMO45.device import stream_ops
from MiniCPMO45.device.packed_linear import Affine, PackedLinear, all_of, pack_norm
from MiniCPMO45.device.vocoder_plan import ChunkPlan
from MiniCPMO45.token2wav.dit import (
    BLOCK_NORM_EPS,
    CONV_NORM_EPS,
    GUIDANCE_ROWS,
    QK_NORM_EPS,
    DiTBlock,
)
from MiniCPMO45.token2wav.flow import Flow, FlowSchedule
from MiniCPMO45.token2wav.layers import CausalConv1d


@dataclass(frozen=True)
class PackedBlock:
    """Weights of one block.

    Attributes:
        qkv: queries, keys and values.
        head_norms: scale and shift of queries and of keys, float32 [2, 2, d].
        out: output projection of the attention.
        first: first convolution over its taps side by side.
        between: scale and shift of the norm between the convolutions.
        second: second convolution.
        up: first layer of the MLP.
        down: second layer.
    """

    qkv: PackedLinear
    head_norms: Tensor
    out: PackedLinear
    first: PackedLinear
    between: Affine
    second: PackedLinear
    up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, block: DiTBlock, dtype: torch.dtype) -> PackedBlock:
        """Pack a block to compute in `dtype`."""
        attention, layers = block.attn, block.conv.block
        first, second = all_of(CausalConv1d, (layers["1"], layers["6"]))
        [between] = all_of(nn.LayerNorm, (layers["3"],))
        parts = (attention.to_q, attention.to_k, attention.to_v)
        norms = (attention.q_norm, attention.k_norm)
        return cls(
            PackedLinear.of(
                torch.cat([part.weight for part in parts]),
                torch.cat([part.bias for part in parts]),
                dtype,
            ),
            torch.stack([torch.stack((norm.weight, norm.bias)) for norm in norms]).float(),
            PackedLinear.of(attention.proj.weight, attention.proj.bias, dtype),
            PackedLinear.of_convolution(first, dtype),
            pack_norm(between),
            PackedLinear.of_convolution(second, dtype),
            PackedLinear.of(block.mlp.fc1.weight, block.mlp.fc1.bias, dtype),
            PackedLinear.of(block.mlp.fc2.weight, block.mlp.fc2.bias, dtype),
        )


class PackedEstimator:
    """The estimator and its solver; weights only."""

    def __init__(self, flow: Flow, dtype: torch.dtype) -> None:
        """Pack the weights.

        Args:
            flow: the checkpoint's flow.
            dtype: to compute products in.
        """
        estimator = flow.decoder.estimator
        self.dtype, self.rate = dtype, flow.config.cfg_rate
        self.bins = flow.config.output_size
        self.heads = estimator.config.num_heads
        self.blocks = [PackedBlock.of(block, dtype) for block in all_of(DiTBlock, estimator.blocks)]
        self.project_in = estimator.in_proj
        self.project_out = estimator.final_layer.linear

    def solve(
        self,
        mu: Tensor,
        speaker: Tensor,
        noise: Tensor,
        schedule: FlowSchedule,
        plan: ChunkPlan,
        tails: Tensor,
        new_tails: Tensor,
    ) -> Tensor:
        """Integrate one chunk and remember it in the streams.

        Args:
            mu: encoder output, float32 [S, T, bins].
            speaker: the estimator's speaker condition, float32 [S, bins].
            noise: starting points, float32 [S, T, bins].
            schedule: the ODE's N steps.
            plan: the chunk.
            tails: ends of the convolutions before it [S, N, depth, 2, 2, 2, C].
            new_tails: receives those at its end.

        Returns:
            mel, float32 [S, T, bins]; frames behind a stream's end mean nothing.
        """
        condition = self._project_condition(mu, speaker)
        x = noise
        for step, delta in enumerate(schedule.deltas):
            hidden = self._start(x, condition)
            ends = (tails[:, step], new_tails[:, step])
            velocity = self._step(hidden, schedule, step, plan, ends)
            conditional, free = velocity.unflatten(0, (-1, GUIDANCE_ROWS)).unbind(1)
            x = x + delta * ((1.0 + self.rate) * conditional - self.rate * free)
        return x

    def _project_condition(self, mu: Tensor, speaker: Tensor) -> Tensor:
        """The part of the input projection that all steps share [S, 2, T, C]."""
        weight, bias = self.project_in.weight, self.project_in.bias
        of_mu, of_speaker = weight[:, self.bins : 3 * self.bins].split(self.bins, dim=1)
        conditional = mu @ of_mu.T + (speaker @ of_speaker.T)[:, None] + bias
        return torch.stack((conditional, bias.expand_as(conditional)), dim=1)

    def _start(self, x: Tensor, condition: Tensor) -> Tensor:
        """First hidden states [2S, T, C] of the flow's state x [S, T, bins]."""
        rows = x @ self.project_in.weight[:, : self.bins].T
        return (rows[:, None] + condition).flatten(0, 1)

    def _step(
        self,
        x: Tensor,
        schedule: FlowSchedule,
        step: int,
        plan: ChunkPlan,
        ends: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Velocity [2S, T, bins] at one step."""
        depth, heads, dtype = len(self.blocks), self.heads, self.dtype
        seen = torch.empty((depth, *x.shape[:2], 3 * x.shape[2]), dtype=dtype, device=x.device)
        change: Tensor | None = None
        gate: Tensor | None = None
        n_frames = plan["n_frames"][:, 0]
        for index, block in enumerate(self.blocks):
            modulation = schedule.modulation.blocks[step, index]
            sa, ca, ga, sm, cm, gm, sv, cv, gv = modulation.unbind(0)
            tails = [(ends[0][:, index, i], ends[1][:, index, i]) for i in range(2)]
            y = stream_ops.gated_norm(x, change, gate, (ca, sa), BLOCK_NORM_EPS, dtype)
            qkv = block.qkv.into(y, seen[index])
            stream_ops.norm_heads(qkv, block.head_norms, QK_NORM_EPS, heads)
            layer = step * depth + index
            mixed = stream_ops.attend(qkv, None, plan.estimator, layer)
            y = stream_ops.gated_norm_unfold(
                x, block.out(mixed), ga, (cv, sv), BLOCK_NORM_EPS, tails[0], n_frames, dtype
            )
            y = stream_ops.norm_mish_unfold(
                block.first(y), block.between, CONV_NORM_EPS, tails[1], n_frames
            )
            y = stream_ops.gated_norm(x, block.second(y), gv, (cm, sm), BLOCK_NORM_EPS, dtype)
            change, gate = block.down(block.up.gelu(y)), gm
        stream_ops.store_columns(seen, plan.estimator, step * depth)
        shift, scale = schedule.modulation.final[step].unbind(0)
        y = stream_ops.gated_norm(x, change, gate, (scale, shift), BLOCK_NORM_EPS, torch.float32)
        return self.project_out(y)
