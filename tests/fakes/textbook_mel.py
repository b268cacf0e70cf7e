"""The log-mel of a whole signal the textbook way, by torch's own centred transform."""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.processing.mel import mel_filter_bank


def textbook_log_mel(audio: Tensor, *, has_fixed_floor: bool) -> Tensor:
    """Return the frames [80, n // 160] of a signal [n] at 16 kHz; edges are mirrored."""
    spectrum = torch.stft(audio, 400, 160, window=torch.hann_window(400), return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    mel = (mel_filter_bank(16_000, 400, 80, 0.0, 8000.0) @ power).clamp(min=1e-10).log10()
    if not has_fixed_floor:
        mel = torch.maximum(mel, mel.max() - 8.0)
    return (mel + 4.0) / 4.0
