"""The flow over whole utterances, with the chunk masks of serving; for training.

Uses the modules of `MiniCPMO45.token2wav.flow`, whose forward passes process one chunk of each
stream with caches; both are equal (tested).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.token2wav.config import (
    CONV_KERNEL,
    HISTORY_FRAMES,
    LOOKAHEAD_TAIL,
    UPSAMPLE_TAIL,
    UPSAMPLING,
)
from MiniCPMO45.token2wav.flow import BLOCK_NORM_EPS, MODULATION_CHUNKS, DiT, DiTBlock, Flow
from MiniCPMO45.token2wav.flow_encoder import ConformerLayer, RelativeAttention, relative_positions
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt

CHUNK_CODES = TIMING.codes_per_second
HISTORY_CODES = HISTORY_FRAMES // UPSAMPLING


@dataclass(frozen=True, eq=False)
class Layout:
    """Attention mask and relative positions."""

    sees: Tensor  # attention mask, bool [B, T, T], query by key
    distance: Tensor  # relative position in the stream's cache, int64 [B, T, T]
    is_real: Tensor  # bool [B, T], False in padding
    farthest: tuple[int, int]  # largest distance backward and forward

    @classmethod
    def of(cls, n_prompt: int, place: Tensor, length: Tensor) -> Layout:
        """Return the layout of a prompt followed by rows of utterances, at the rate of codes.

        `place` is the index of each code in its utterance, int64 [B, n]; from `length` on, codes
        are padding.
        """
        n_rows, n_codes = place.shape
        number = (place == 0).cumsum(1)
        before = torch.arange(-n_prompt, 0, device=place.device).expand(n_rows, -1)
        place, number, length = (
            torch.cat(parts, dim=1)
            for parts in (
                (before, place),
                (torch.zeros_like(before), number),
                (torch.zeros_like(before), length),
            )
        )
        # The last three codes, which wait for their look-ahead, form a chunk of their own.
        held = length - TIMING.lookahead_codes
        first = place.clamp(min=0) // CHUNK_CODES * CHUNK_CODES  # first code of the chunk
        is_prompt = place < 0
        start = torch.where(place >= held, torch.maximum(first, held), first)  # [B, T]
        start = torch.where(is_prompt, -n_prompt, start)
        query, key = start[:, :, None], place[:, None]
        is_same = query == start[:, None]
        is_recent = (key < query) & (key >= query - HISTORY_CODES)
        is_own = number[:, :, None] == number[:, None]
        sees = (is_own & (is_same | is_recent)) | is_prompt[:, None]
        is_real = place < length
        sees = (sees & is_real[:, None]) | torch.eye(n_prompt + n_codes, device=sees.device).bool()
        forgotten = (start - HISTORY_CODES).clamp(min=0)[:, :, None]
        distance = place[:, :, None] - key - torch.where(is_prompt[:, None], forgotten, 0)
        ahead = max(n_prompt, CHUNK_CODES) - 1
        farthest = (n_prompt + n_codes - 1, ahead)
        return cls(sees, distance.clamp(-ahead, farthest[0]), is_real, farthest)

    @classmethod
    def apart(cls, n_prompt: int, n_codes: int, lengths: Tensor) -> Layout:
        """Return the layout of a prompt followed by one utterance per row."""
        place = torch.arange(n_codes, device=lengths.device).expand(len(lengths), -1)
        return cls.of(n_prompt, place, lengths[:, None].expand_as(place))

    def upsampled(self) -> Layout:
        """Return the layout at the rate of mel frames [B, 2T, 2T]."""
        inside = torch.arange(self.sees.shape[1] * UPSAMPLING, device=self.sees.device) % UPSAMPLING
        distance = _double(self.distance) * UPSAMPLING + inside[:, None] - inside
        is_real = self.is_real.repeat_interleave(UPSAMPLING, 1)
        past, ahead = (UPSAMPLING * far + UPSAMPLING - 1 for far in self.farthest)
        return Layout(_double(self.sees), distance, is_real, (past, ahead))


def encode(flow: Flow, codes: Tensor, layout: Layout) -> Tensor:
    """Encode prompts and utterances of codes [B, T]: mu [B, 2T, bins]."""
    encoder = flow.encoder
    x = encoder.embed(flow.input_embedding(codes)) * layout.is_real[..., None]
    width = x.shape[2]
    x = F.pad(x, (0, 0, 0, encoder.config.pre_lookahead_len))
    x, _ = encoder.pre_lookahead_layer(x, x.new_zeros(len(x), LOOKAHEAD_TAIL, width))
    x = _run(encoder.encoders, x, layout)
    x, _ = encoder.up_layer(x, x.new_zeros(len(x), UPSAMPLE_TAIL, width))
    x = _run(encoder.up_encoders, encoder.up_embed(x), layout.upsampled())
    return flow.encoder_proj(encoder.after_norm(x))


def estimate(dit: DiT, x: Tensor, condition: Tensor, times: Tensor, sees: Tensor) -> Tensor:
    """Estimate velocities [B, T, bins] at a time per row.

    The condition is mu, speaker and prompt mel, concatenated [B, T, 3 * bins].
    """
    embedded = dit.t_embedder(times)  # [B, C]
    hidden = dit.in_proj(torch.cat((x, condition), dim=2))
    bias = _bias(sees, hidden)
    for block in dit.blocks:
        assert isinstance(block, DiTBlock)
        hidden = _run_block(block, hidden, embedded, bias)
    shift, scale = dit.final_layer.adaLN_modulation(embedded)[:, None].chunk(2, dim=2)
    return dit.final_layer.linear(_modulated(hidden, scale, shift))


def join_condition(flow: Flow, mu: Tensor, speaker: Tensor, prompt: Tensor) -> Tensor:
    """Return the estimator's condition [B, T, 3 * bins]."""
    projected = flow.project_speaker(speaker)[:, None].expand_as(mu)
    return torch.cat((mu, projected, prompt), dim=2)


@torch.no_grad()
def integrate(
    flow: Flow, voice: VoicePrompt, codes: Tensor, lengths: Tensor, noise: Tensor, n_steps: int
) -> Tensor:
    """Synthesise whole utterances with classifier-free guidance: mel [B, 2n, bins].

    `noise` [B, 2P + 2n, bins] is the initial noise of prompt and utterance.
    """
    size, rate = len(codes), flow.config.cfg_rate
    layout = Layout.apart(voice.codes.shape[1], codes.shape[1], lengths)
    mu = encode(flow, torch.cat((voice.codes.expand(size, -1), codes), dim=1), layout)
    prompt = torch.zeros_like(mu)
    prompt[:, : voice.frames] = voice.mel
    condition = join_condition(flow, mu, voice.speaker, prompt)
    rows = torch.cat((condition, torch.zeros_like(condition)))
    sees = layout.upsampled().sees.repeat(2, 1, 1)
    marks = 1.0 - torch.cos(torch.linspace(0.0, 1.0, n_steps + 1) * (0.5 * math.pi))
    x = noise
    for time, delta in zip(marks[:-1].tolist(), marks.diff().tolist(), strict=True):
        times = torch.full((2 * size,), time, device=x.device)
        velocity = estimate(flow.decoder.estimator, x.repeat(2, 1, 1), rows, times, sees)
        x = x + delta * ((1 + rate) * velocity[:size] - rate * velocity[size:])
    return x[:, voice.frames :]


def _run(layers: torch.nn.ModuleList, x: Tensor, layout: Layout) -> Tensor:
    past, ahead = layout.farthest
    # Row r of the table is at distance past - r.
    table = relative_positions(1 + ahead, past + 1, x.shape[2], x)
    bias = _bias(layout.sees, x)
    rows = past - layout.distance
    for layer in layers:
        assert isinstance(layer, ConformerLayer)
        x = x + _attend(layer.self_attn, layer.norm_mha(x), table, rows, bias)
        x = x + layer.feed_forward(layer.norm_ff(x))
    return x


def _attend(
    attention: RelativeAttention, x: Tensor, table: Tensor, rows: Tensor, bias: Tensor
) -> Tensor:
    heads, head_dim = attention.pos_bias_u.shape
    split = (heads, head_dim)
    query = attention.linear_q(x).unflatten(2, split)
    scale = 1 / math.sqrt(head_dim)
    key = attention.linear_k(x).unflatten(2, split).transpose(1, 2)  # [B, heads, T, d]
    value = attention.linear_v(x).unflatten(2, split).transpose(1, 2)
    places = attention.linear_pos(table).unflatten(1, split).permute(1, 2, 0)  # [heads, d, R]
    by_row = (scale * (query + attention.pos_bias_v)).transpose(1, 2) @ places  # [B, heads, T, R]
    by_place = by_row.gather(3, rows[:, None].expand(-1, heads, -1, -1))
    by_content = (scale * (query + attention.pos_bias_u)).transpose(1, 2) @ key.transpose(2, 3)
    out = (by_content + by_place + bias).softmax(dim=3).to(value.dtype) @ value
    return attention.linear_out(out.transpose(1, 2).flatten(2))


def _run_block(block: DiTBlock, x: Tensor, embedded: Tensor, bias: Tensor) -> Tensor:
    parts = block.adaLN_modulation(embedded)[:, None].chunk(MODULATION_CHUNKS, dim=2)
    sa, ca, ga, sm, cm, gm, sv, cv, gv = parts
    x = x + ga * _mix(block, _modulated(x, ca, sa), bias)
    x = x + gv * _convolve(block, _modulated(x, cv, sv))
    return x + gm * block.mlp(_modulated(x, cm, sm))


def _convolve(block: DiTBlock, x: Tensor) -> Tensor:
    """Run the causal convolutions over whole utterances, zero-padded at the start."""
    first, norm, second = block.conv.layers
    before = (0, 0, CONV_KERNEL - 1, 0)
    return second(F.pad(F.mish(norm(first(F.pad(x, before)))), before))


def _mix(block: DiTBlock, x: Tensor, bias: Tensor) -> Tensor:
    attention = block.attn
    split = (-1, attention.head_dim)
    query = attention.q_norm(attention.to_q(x).unflatten(2, split)).transpose(1, 2)
    key = attention.k_norm(attention.to_k(x).unflatten(2, split)).transpose(1, 2)
    value = attention.to_v(x).unflatten(2, split).transpose(1, 2)
    # On a CPU faster, forward and backward, than the fused kernel with a mask.
    scores = query / math.sqrt(attention.head_dim) @ key.transpose(2, 3)
    out = (scores + bias).softmax(dim=3).to(value.dtype) @ value
    return attention.proj(out.transpose(1, 2).flatten(2))


def _bias(sees: Tensor, like: Tensor) -> Tensor:
    return torch.where(sees, 0.0, -torch.inf)[:, None].to(like.dtype)


def _modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[2:], eps=BLOCK_NORM_EPS) * (1 + scale) + shift


def _double(square: Tensor) -> Tensor:
    return square.repeat_interleave(UPSAMPLING, 1).repeat_interleave(UPSAMPLING, 2)
