"""Small pieces the flow encoder and the estimator share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CausalConv1d(nn.Conv1d):
    """One-dimensional convolution that sees only the present and the past.

    What lies before the first frame is an argument, so that a stream can be cut anywhere.
    """

    @property
    def context_frames(self) -> int:
        """Frames of the past one output needs."""
        return self.kernel_size[0] - 1

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve one piece of a stream.

        Args:
            x: [B, C, T].
            context: the frames before x, [B, C, kernel - 1]; zeros at the start of a stream.

        Returns:
            Output [B, C_out, T] and the context of the next piece [B, C, kernel - 1].
        """
        joined = torch.cat((context, x), dim=2)  # [B, C, kernel - 1 + T]
        return super().forward(joined), joined[:, :, joined.shape[2] - self.context_frames :]
