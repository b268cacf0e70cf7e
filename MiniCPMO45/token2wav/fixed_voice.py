"""The one voice of a checkpoint that cannot imitate others, kept ready beside the vocoder.

A folder with this file needs no speech tokenizer and no speaker encoder.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from MiniCPMO45.checkpoint_error import CheckpointError
from MiniCPMO45.token2wav.voice import VoicePrompt

FIXED_VOICE_FILE = "fixed_voice.safetensors"


def read_fixed_voice(folder: Path) -> VoicePrompt | None:
    """Read the checkpoint's only voice.

    Args:
        folder: `assets/token2wav` of the checkpoint.

    Returns:
        The voice on the CPU; None when the checkpoint takes any voice.

    Raises:
        CheckpointError: the file is damaged or holds something else.
    """
    path = folder / FIXED_VOICE_FILE
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        return VoicePrompt(
            tensors["codes"].to(torch.int64), tensors["speaker"].float(), tensors["mel"].float()
        )
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} holds no voice: {error}") from error


def write_fixed_voice(voice: VoicePrompt, folder: Path) -> None:
    """Write the only voice of a checkpoint into its `assets/token2wav`."""
    tensors = {
        "codes": voice.codes.to(torch.int32),
        "speaker": voice.speaker.half(),
        "mel": voice.mel.half(),
    }
    held = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    save_file(held, folder / FIXED_VOICE_FILE)
