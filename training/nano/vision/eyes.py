"""Vision tower and resampler as one trainable module, with their first weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig, SliceConfig
from MiniCPMO45.image_processing import plan_slices
from MiniCPMO45.modeling_navit_siglip import SiglipVisionTransformer
from MiniCPMO45.resampler import Resampler, sincos_table
from training.nano.vision.pictures import to_patches

CAMERAS = ((640, 480), (1280, 720), (448, 448), (480, 640), (720, 1280))
CAMERA_WEIGHTS = (4, 4, 2, 1, 1)
POSITION_SCALE = 0.3


class Eyes(nn.Module):
    """From pictures to the rows that the language model reads."""

    def __init__(self, config: MiniCPMOConfig) -> None:
        """Make fresh weights.

        Args:
            config: of the nano.
        """
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
        side = torch.from_numpy(sincos_table(buckets, width // 2))
        across, down = side.repeat(buckets, 1), side.repeat_interleave(buckets, 0)
        table = torch.cat((across, down), dim=1) * POSITION_SCALE
        self.vpm.embeddings.position_embedding.weight.data.copy_(table)

    def forward(self, pictures: Tensor) -> Tensor:
        """See pictures of one size.

        Args:
            pictures: float32 [B, 3, H, W] between 0 and 1, both sides multiples of a patch.

        Returns:
            [B, 64, width of the language model].
        """
        size = (pictures.shape[2] // self.patch_side, pictures.shape[3] // self.patch_side)
        sizes = [size] * len(pictures)
        return self.resampler(self.vpm(to_patches(pictures, self.patch_side), sizes), sizes)


def served_size(camera: tuple[int, int], resolution: int) -> tuple[int, int]:
    """Return width and height at which the tower gets a camera's picture.

    Args:
        camera: width and height of its pictures.
        resolution: side of a square with the area of a slice, 448 as served.
    """
    return plan_slices(*camera, 1, SliceConfig(scale_resolution=resolution)).source
