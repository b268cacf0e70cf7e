"""SigLIP tower over slices of any aspect ratio (`vpm.*`), and the resampler behind it.

Patch vectors go in; the tower gives a feature per patch, the resampler a fixed number of vectors
per slice. Pictures of a batch never see each other.

Source: docs/specification/model.md#1.4, #1.5 and #4.2; SigLIP (arXiv:2303.15343), NaViT
(arXiv:2307.06304).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.model.transformer import (
    DenseAttention,
    EncoderLayer,
    SelfAttention,
    linear_tanh_gelu,
    run_layers,
)
from MiniCPMO45.processing.patch_grid import PatchGrid

SUPPORTED_ACTIVATION = "gelu_pytorch_tanh"


class SiglipVisionEmbeddings(nn.Module):
    """Patch vectors plus learned positions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.buckets = config.image_size // config.patch_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, config.hidden_size, config.patch_size, stride=config.patch_size
        )
        self.position_embedding = nn.Embedding(self.buckets**2, config.hidden_size)

    def forward(self, patches: Tensor, ids: Tensor) -> Tensor:
        """Embed `patches` [B, L, 588] at positions `ids` [B, L].

        A convolution whose stride is its kernel is a linear layer on each patch.
        """
        weight = self.patch_embedding.weight
        embedded = F.linear(
            patches.to(weight.dtype), weight.flatten(1), self.patch_embedding.bias
        )  # [B, L, D]
        return embedded + self.position_embedding(ids)


class SiglipMLP(nn.Module):
    """Two linear layers around a tanh-approximated GELU."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` [..., D] to [..., D]."""
        return self.fc2(linear_tanh_gelu(self.fc1, x))


class SiglipEncoderLayer(EncoderLayer):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = SelfAttention(width, config.num_attention_heads, key_bias=True)
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = SiglipMLP(config)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)

    @property
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        return self.layer_norm1, self.layer_norm2

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class SiglipEncoder(nn.Module):
    """Holds the layers under the checkpoint's name."""

    def __init__(self, config: VisionConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(num_layers))


class SiglipVisionTransformer(nn.Module):
    """The vision tower: one feature per patch, no pooling."""

    def __init__(self, config: VisionConfig, *, drop_last_layer: bool = False) -> None:
        super().__init__()
        if config.hidden_act != SUPPORTED_ACTIVATION:
            raise ValueError(f"vision activation {config.hidden_act!r} is not supported")
        num_layers = config.num_hidden_layers - (1 if drop_last_layer else 0)
        self.heads = config.num_attention_heads
        self.embeddings = SiglipVisionEmbeddings(config)
        self.encoder = SiglipEncoder(config, num_layers)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, patches: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode a batch of patches [B, L, 588]: [B, L, D]; rows in the padding mean nothing.

        `ids` [B, L] and `mask` are those of a `PatchGrid`.
        """
        x = self.embeddings(patches, ids)
        attention = DenseAttention(self.heads, mask)
        return run_layers(self.encoder.layers, x, attention, self.post_layernorm)


LAYER_NORM_EPS = 1e-6  # section 1.5


class ResamplerAttention(nn.Module):
    """Multi-head attention with packed input weights, named as in torch's own module."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"{num_heads} heads do not divide width {width}")
        self.head_dim = width // num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from queries [Q, H], the same for every slice, to keys [B, L, H]: [B, Q, H].

        The mask, bool [B, 1, 1, L], is True where a key counts.
        """
        q_weight, k_weight, v_weight = self.in_proj_weight.chunk(3)
        q_bias, k_bias, v_bias = self.in_proj_bias.chunk(3)
        q = self._split(F.linear(query, q_weight, q_bias)[None])  # [1, heads, Q, head_dim]
        mixed = F.scaled_dot_product_attention(
            q.expand(key.shape[0], -1, -1, -1),
            self._split(F.linear(key, k_weight, k_bias)),
            self._split(F.linear(value, v_weight, v_bias)),
            attn_mask=mask,
        )  # [B, heads, Q, head_dim]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # [B, Q, H]

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, heads, L, head_dim]


class Resampler(nn.Module):
    """Learned queries that read one slice each time.

    Args:
        num_queries: vectors per slice.
        embed_dim: width H of the language model, a multiple of 4.
        kv_dim: width of the vision features.
        num_heads: attention heads; divides `embed_dim`.

    Raises:
        ValueError: the widths do not divide as required.
    """

    def __init__(self, num_queries: int, embed_dim: int, kv_dim: int, num_heads: int) -> None:
        super().__init__()
        if embed_dim % 4:  # two axes, sine and cosine each
            raise ValueError(f"resampler width must be a multiple of 4, got {embed_dim}")
        self.query = nn.Parameter(torch.zeros(num_queries, embed_dim))
        self.proj = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.kv_proj = nn.Linear(kv_dim, embed_dim, bias=False)
        self.attn = ResamplerAttention(embed_dim, num_heads)
        self.ln_q = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.ln_kv = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.ln_post = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        nn.init.normal_(self.query, std=0.02)
        nn.init.normal_(self.proj, std=embed_dim**-0.5)

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        """Condense features [B, L, kv_dim], of which padding is ignored, to [B, num_queries, H]."""
        kv = self.ln_kv(self.kv_proj(x))  # [B, L, H]
        place = torch.cat([grid.codes[grid.cols], grid.codes[grid.rows]], dim=-1)  # [B, L, H]
        mixed = self.attn(self.ln_q(self.query), kv + place, kv, grid.mask)
        return self.ln_post(mixed) @ self.proj  # [B, Q, H]
