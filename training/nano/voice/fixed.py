"""The one voice the nano speaks with: two seconds of the target voice."""

from __future__ import annotations

import torch

from MiniCPMO45.token2wav.config import UPSAMPLING
from MiniCPMO45.token2wav.vocoder_state import VoicePrompt
from MiniCPMO45.token2wav.voice_features import SPEAKER_SIZE
from training.nano.voice.alphabet import SILENCE
from training.nano.voice.pronunciation import LEAD_CODES
from training.nano.voice.recordings import Recordings
from training.nano.voice.sizes import PROMPT_CODES

PROMPT_TEXT = "I am glad that you are here, and I like to talk with you."


def fixed_voice(recordings: Recordings) -> VoicePrompt:
    """Cut the prompt out of a set that holds `PROMPT_TEXT`, spoken once.

    Args:
        recordings: its codes and mel are taken from behind the lead.
    """
    index = recordings.texts.index(PROMPT_TEXT)
    first = int(recordings.starts[index]) + LEAD_CODES
    stop = first + PROMPT_CODES
    frames = slice(first * UPSAMPLING, stop * UPSAMPLING)
    codes = recordings.codes[first:stop]
    assert stop <= int(recordings.starts[index + 1]) and bool((codes != SILENCE).any())
    # A speaker is a direction; with one speaker any will do.
    speaker = torch.ones(1, SPEAKER_SIZE, device=codes.device)
    return VoicePrompt(codes[None], speaker, recordings.mel[frames].float()[None])
