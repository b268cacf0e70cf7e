"""Vision tower and resampler as one trainable module, with their initialisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig, SliceConfig
from MiniCPMO45.model.vision import (
    PatchGrid,
    Resampler,
    SiglipVisionTransformer,
    patch_grid,
    side_codes,
)
from MiniCPMO45.processing.pictures import plan_slices
from training.nano import shapes
from training.nano.vision.pictures import to_patches

CAMERAS = ((640, 480), (1280, 720), (448, 448), (480, 640), (720, 1280))
CAMERA_WEIGHTS = (4, 4, 2, 1, 1)
POSITION_SCALE = 0.3
LEAST_POWER = 0.01  # of a principal component; weaker ones are mostly noise
SERVED_RESOLUTION = shapes.config().slice_config.scale_resolution


class VisionEncoder(nn.Module):
    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__()
        width = config.vision_config.hidden_size
        self.patch_side = config.vision_config.patch_size
        self.vpm = SiglipVisionTransformer(
            config.vision_config, drop_last_layer=config.drop_vision_last_layer
        )
        self.resampler = Resampler(
            config.query_num, config.hidden_size, width, config.resampler_heads
        )
        for module in self.vpm.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.vpm.embeddings.patch_embedding.weight.data.flatten(1))
        nn.init.normal_(self.resampler.query)
        buckets = self.vpm.embeddings.buckets
        side = side_codes(buckets, width, self.resampler.query)[:buckets]
        across, down = side.repeat(buckets, 1), side.repeat_interleave(buckets, 0)
        table = torch.cat((across, down), dim=1) * POSITION_SCALE
        self.vpm.embeddings.position_embedding.weight.data.copy_(table)

    def forward(self, pictures: Tensor) -> Tensor:
        """Encode pictures [B, 3, H, W] in 0..1, multiples of the patch size: [B, 64, width]."""
        size = self.patches(pictures)
        return self.resample(self.features(pictures, self.positions(size, size)), size)

    def features(self, pictures: Tensor, positions: Tensor) -> Tensor:
        """Return the tower's feature of every patch: [B, L, width of the tower]."""
        patches = to_patches(pictures, self.patch_side)
        return self.vpm(patches, positions.expand(len(patches), -1))

    def positions(
        self, size: tuple[int, int], whole: tuple[int, int], start: tuple[int, int] = (0, 0)
    ) -> Tensor:
        """Return indices into the position table for a window: int64 [rows * columns].

        `size` of the window, `whole` picture and `start` are rows and columns of patches.
        """
        ids = self._grid(whole, 1).ids.view(whole)
        return ids[start[0] : start[0] + size[0], start[1] : start[1] + size[1]].flatten()

    @torch.no_grad()
    def begin(self, pictures: Tensor) -> None:
        """Initialise the patch embedding with whitened principal components of pictures."""
        patches = to_patches(pictures, self.patch_side).flatten(0, 1).double()
        centre = patches.mean(0)
        powers, components = torch.linalg.eigh((patches - centre).T.cov())
        embedding = self.vpm.embeddings.patch_embedding
        n_inputs = embedding.weight.shape[0]
        scale = (powers[-n_inputs:] + LEAST_POWER).rsqrt()
        weight = components[:, -n_inputs:].T * scale[:, None]  # [width, 588]
        embedding.weight.copy_(weight.view_as(embedding.weight))
        assert embedding.bias is not None
        embedding.bias.copy_(-weight @ centre)

    def resample(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Resample features of pictures of one size: [B, 64, width]."""
        return self.resampler(features, self._grid(size, len(features)))

    def _grid(self, size: tuple[int, int], count: int) -> PatchGrid:
        embeddings, width = self.vpm.embeddings, self.resampler.query.shape[1]
        like = embeddings.position_embedding.weight
        length = size[0] * size[1]
        return patch_grid(
            [size] * count, length, buckets=embeddings.buckets, width=width, like=like
        )

    def patches(self, pictures: Tensor) -> tuple[int, int]:
        return pictures.shape[2] // self.patch_side, pictures.shape[3] // self.patch_side


def served_size(camera: tuple[int, int], resolution: int) -> tuple[int, int]:
    """Return the size of a camera's picture at a slice resolution."""
    return plan_slices(*camera, 1, SliceConfig(scale_resolution=resolution)).source
