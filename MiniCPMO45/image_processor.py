"""The image processor of `transformers` over our slicing: settings and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from transformers import BatchFeature, ImageProcessingMixin

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.image_processing import PATCH_SIDE, to_strip
from MiniCPMO45.picture_slices import patches_of, slice_image


class MiniCPMOImageProcessor(ImageProcessingMixin):
    """Cuts pictures into slices, as `preprocessor_config.json` says."""

    model_input_names: ClassVar[list[str]] = ["pixel_values", "tgt_sizes"]

    def __init__(
        self,
        max_slice_nums: int = 9,
        scale_resolution: int = 448,
        patch_size: int = PATCH_SIDE,
        use_image_id: bool = True,
        image_feature_size: int = 64,
        **options: Any,
    ) -> None:
        """Remember the rules.

        Args:
            max_slice_nums: most cells beside the overview.
            scale_resolution: side of the square whose area one slice has, pixels.
            patch_size: side of a patch, pixels.
            use_image_id: number the pictures of a prompt.
            image_feature_size: slots per slice.
            options: what else the file holds.
        """
        super().__init__(**options)
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution
        self.patch_size = patch_size
        self.use_image_id = use_image_id
        self.image_feature_size = image_feature_size

    @property
    def slicing(self) -> SliceConfig:
        """The rules as the geometry takes them."""
        return SliceConfig(
            max_slice_nums=self.max_slice_nums,
            scale_resolution=self.scale_resolution,
            patch_size=self.patch_size,
        )

    def __call__(
        self, images: Sequence[Image.Image], max_slice_nums: int | None = None, **_: object
    ) -> BatchFeature:
        """Cut pictures and normalise the pixels of their slices.

        Args:
            images: RGB pictures.
            max_slice_nums: most cells beside the overview; None for the default.

        Returns:
            For each picture `pixel_values`, a list of float32 [3, p, p * L] with the L patches of
            a slice side by side, and `tgt_sizes`, int64 [slices, 2]: rows and columns of patches.
        """
        limit = max_slice_nums or self.max_slice_nums
        pixels, sizes = [], []
        for image in images:
            patches = patches_of(slice_image(image, limit, self.slicing).slices)
            pixels.append([to_strip(each) for each in patches])
            sizes.append(np.array([each.size for each in patches]))
        return BatchFeature({"pixel_values": pixels, "tgt_sizes": sizes})
