"""What a reference recording gives the vocoder: codes, speaker vector and mel of one voice.

Holds tensors only; computing them is the business of `prompt`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MEL_FRAMES_PER_CODE = 2  # 50 mel frames and 25 codes per second


@dataclass(frozen=True)
class VoicePrompt:
    """One voice, ready for `Token2Wav.set_up`.

    Attributes:
        codes: speech codes of the recording, int64 [1, P].
        speaker: speaker vector before normalisation, float [1, 192].
        mel: 80-bin log mel at 24 kHz, hop 480, float [1, 2P, 80].

    Raises:
        ValueError: the shapes do not belong together.

    Source: docs/specification/model.md#7.1.
    """

    codes: Tensor
    speaker: Tensor
    mel: Tensor

    def __post_init__(self) -> None:
        if self.codes.dim() != 2 or self.codes.shape[0] != 1 or self.codes.shape[1] == 0:
            raise ValueError(f"voice codes must be [1, P] with P > 0, got {list(self.codes.shape)}")
        if self.speaker.dim() != 2 or self.speaker.shape[0] != 1:
            raise ValueError(f"speaker vector must be [1, D], got {list(self.speaker.shape)}")
        frames = self.codes.shape[1] * MEL_FRAMES_PER_CODE
        if self.mel.dim() != 3 or tuple(self.mel.shape[:2]) != (1, frames):
            raise ValueError(f"prompt mel must be [1, {frames}, bins], got {list(self.mel.shape)}")

    @property
    def frames(self) -> int:
        """Mel frames of the prompt (2P)."""
        return self.mel.shape[1]

    @property
    def nbytes(self) -> int:
        """Memory of the three tensors."""
        return self.codes.nbytes + self.speaker.nbytes + self.mel.nbytes

    def to(self, device: torch.device | str) -> VoicePrompt:
        """Return the same voice on `device`."""
        return VoicePrompt(self.codes.to(device), self.speaker.to(device), self.mel.to(device))
