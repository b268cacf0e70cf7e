"""Speech codes to mel by flow matching: Euler steps with classifier-free guidance.

Stateless: encoder and estimator caches, noise and time schedule are arguments.
Source: docs/specification/model.md#7.2 and #7.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.token2wav.config import FlowConfig
from MiniCPMO45.token2wav.dit import CONV_KERNEL, GUIDANCE_ROWS, DiT, Modulation
from MiniCPMO45.token2wav.estimator_cache import EstimatorCache
from MiniCPMO45.token2wav.flow_encoder import EncoderCache, FlowEncoder

NOISE_SEED = 0  # of the starting noise; the reference draws it unseeded


@dataclass(frozen=True)
class FlowSchedule:
    """The ODE's time steps and what the estimator derives from them.

    Attributes:
        deltas: length of each Euler step, N values that add up to 1.
        modulation: the estimator's tables for the N times.
    """

    deltas: tuple[float, ...]
    modulation: Modulation


def draw_flow_noise(n_frames: int, n_bins: int, seed: int = NOISE_SEED) -> Tensor:
    """Draw the starting noise of the ODE.

    A longer draw begins with the shorter one of the same seed.

    Args:
        n_frames: mel frames.
        n_bins: mel bins, a multiple of 16 for the property above.
        seed: of a generator of its own.

    Returns:
        Standard normal values, float32 on the CPU [1, n_bins, n_frames].
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_frames, n_bins, generator=generator).T[None].contiguous()


class FlowDecoder(nn.Module):
    """Holds the estimator under the checkpoint's name."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.estimator = DiT(config.estimator)


class Flow(nn.Module):
    """Encoder, estimator and the small projections around them; weights only."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_dim, config.output_size)
        self.encoder = FlowEncoder(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.output_size, config.output_size)
        self.decoder = FlowDecoder(config)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.encoder_proj.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.encoder_proj.weight.device

    def project_speaker(self, speaker: Tensor) -> Tensor:
        """Map speaker vectors [S, 192] to the estimator's condition [S, bins]."""
        return self.spk_embed_affine_layer(F.normalize(speaker.to(self.dtype), dim=1))

    def make_schedule(self, n_steps: int) -> FlowSchedule:
        """Compute the cosine schedule `t_k = 1 - cos(pi/2 * k/N)` and the estimator's tables.

        Raises:
            ValueError: n_steps is not positive.
        """
        if n_steps < 1:
            raise ValueError(f"the flow needs at least one step, got {n_steps}")
        # On the CPU in float32: the time embedding multiplies the last bit by a thousand.
        times = 1.0 - torch.cos(torch.linspace(0.0, 1.0, n_steps + 1) * (0.5 * math.pi))
        modulation = self.decoder.estimator.modulate(times[:-1].to(self.device))
        return FlowSchedule(tuple(times.diff().tolist()), modulation)

    def new_estimator_cache(self, n_steps: int, capacity: int) -> EstimatorCache:
        """Allocate a stream's empty estimator cache beside the weights.

        Args:
            n_steps: ODE steps N.
            capacity: mel frames the attention part can hold.
        """
        config = self.config.estimator
        attention = torch.empty(
            (
                n_steps,
                config.depth,
                GUIDANCE_ROWS,
                config.num_heads,
                capacity,
                2 * config.head_dim,
            ),
            dtype=self.dtype,
            device=self.device,
        )
        convolution = torch.zeros(
            (n_steps, config.depth, GUIDANCE_ROWS, 2 * config.hidden_size, CONV_KERNEL - 1),
            dtype=self.dtype,
            device=self.device,
        )
        return EstimatorCache(attention, convolution)

    def encode(
        self, codes: Tensor, caches: Sequence[EncoderCache], *, is_last: bool
    ) -> tuple[Tensor, list[EncoderCache]]:
        """Encode the next codes of S streams.

        Args:
            codes: int64 [S, t], the last 3 of them look-ahead unless `is_last`.
            caches: one per stream; not changed.
            is_last: nothing follows.

        Returns:
            mu [S, 2t', bins] and the grown caches, see `FlowEncoder.forward`.
        """
        hidden, grown = self.encoder(self.input_embedding(codes), caches, is_last=is_last)
        return self.encoder_proj(hidden), grown

    def integrate(
        self,
        mu: Tensor,
        speaker: Tensor,
        prompt: Tensor | None,
        noise: Tensor,
        schedule: FlowSchedule,
        caches: Sequence[EstimatorCache] | None = None,
        prompt_frames: Sequence[int] = (),
    ) -> Tensor:
        """Solve the flow for one chunk of S streams.

        Args:
            mu: encoder output [S, T, bins].
            speaker: result of `project_speaker` [S, bins].
            prompt: mel given as condition [S, T, bins]; None is zeros.
            noise: starting points [S, T, bins].
            schedule: result of `make_schedule`.
            caches: one per stream, extended and trimmed; None for a run without history.
            prompt_frames: P of each stream, needed with caches.

        Returns:
            mel [S, T, bins].
        """
        estimator, rate = self.decoder.estimator, self.config.cfg_rate
        n_frames = mu.shape[1]
        condition = _condition(mu, speaker, prompt)
        writers = [cache.begin(n_frames) for cache in caches or ()]
        x = noise
        for step, delta in enumerate(schedule.deltas):
            seen = [steps[step] for steps in writers] or None
            velocity = estimator(x, condition, schedule.modulation, step, seen)
            conditional, free = velocity.unbind(1)  # [S, T, bins]
            x = x + delta * ((1.0 + rate) * conditional - rate * free)
        for cache, steps, frames in zip(caches or (), writers, prompt_frames, strict=True):
            cache.commit(steps, n_frames, frames)
        return x


def _condition(mu: Tensor, speaker: Tensor, prompt: Tensor | None) -> Tensor:
    """Join the conditions of both guidance rows [2S, T, 3 * bins]; the second row is zeros."""
    prompt = torch.zeros_like(mu) if prompt is None else prompt
    joined = torch.cat((mu, speaker[:, None].expand_as(mu), prompt), dim=2)
    return torch.stack((joined, torch.zeros_like(joined)), dim=1).flatten(0, 1)
