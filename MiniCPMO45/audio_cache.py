"""Keys and values of a stream's past in the audio encoder.

Owned by the session and passed to the encoder; never holds weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import AudioConfig

FIRST_CAPACITY_FRAMES = 100  # two units; doubled as the stream goes on


@dataclass
class AudioCache:
    """Keys and values of every layer; rows past `length` are room to grow.

    Attributes:
        kv: [layers, 2 (keys, values), heads, capacity, head_dim].
        length: encoder frames held, 50 per second.
        max_frames: frames at which the cache stops growing.
    """

    kv: Tensor
    length: int
    max_frames: int

    @property
    def nbytes(self) -> int:
        """Memory of the storage, room to grow included."""
        return self.kv.nbytes

    def keys(self, layer: int) -> Tensor:
        """Cached keys of a layer [heads, length, head_dim]."""
        return self.kv[layer, 0, :, : self.length]

    def values(self, layer: int) -> Tensor:
        """Cached values of a layer [heads, length, head_dim]."""
        return self.kv[layer, 1, :, : self.length]

    def clone(self) -> AudioCache:
        """Return an independent copy of what is held, without room to grow."""
        kept = self.kv[..., : self.length, :].clone(memory_format=torch.contiguous_format)
        return AudioCache(kept, self.length, self.max_frames)

    def truncate(self, length: int) -> None:
        """Forget all frames from `length` on; the storage is kept.

        Args:
            length: frames to keep, 0 ≤ length ≤ self.length.

        Raises:
            ValueError: there are fewer frames.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut {self.length} frames to {length}")
        self.length = length

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put a unit behind the cached frames of one layer; counts only after `advance`.

        Args:
            layer: index of the layer.
            keys: [heads, T, head_dim].
            values: [heads, T, head_dim].

        Returns:
            keys and values of past and unit, views [heads, length + T, head_dim].

        Raises:
            ValueError: the unit does not fit into `max_frames`.
        """
        stop = self.length + keys.shape[1]
        self.reserve(stop)
        self.kv[layer, 0, :, self.length : stop] = keys
        self.kv[layer, 1, :, self.length : stop] = values
        return self.kv[layer, 0, :, :stop], self.kv[layer, 1, :, :stop]

    def advance(self, n_frames: int) -> None:
        """Count frames that `write` put into every layer."""
        self.length += n_frames

    def reserve(self, needed: int) -> None:
        """Make room for `needed` frames in all; what is held stays.

        Args:
            needed: frames, past and to come.

        Raises:
            ValueError: they do not fit into `max_frames`.
        """
        if needed <= self.kv.shape[3]:
            return
        if needed > self.max_frames:
            raise ValueError(f"{needed} frames do not fit into {self.max_frames}")
        capacity = min(self.max_frames, max(needed, 2 * self.kv.shape[3], FIRST_CAPACITY_FRAMES))
        n_layers, two, n_heads, _, head_dim = self.kv.shape
        grown = self.kv.new_empty(n_layers, two, n_heads, capacity, head_dim)
        grown[..., : self.length, :] = self.kv[..., : self.length, :]
        self.kv = grown


def new_audio_cache(
    config: AudioConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    capacity_frames: int = 0,
) -> AudioCache:
    """Make an empty cache.

    Args:
        config: the encoder's shape.
        device: where the cache lives; that of the weights.
        dtype: that of the weights.
        capacity_frames: room taken at once; more is taken as needed, up to the encoder's
            positions.
    """
    heads = config.encoder_attention_heads
    shape = (config.encoder_layers, 2, heads, capacity_frames, config.d_model // heads)
    kv = torch.empty(shape, device=device, dtype=dtype)
    return AudioCache(kv, 0, config.max_source_positions)
