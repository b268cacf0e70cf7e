"""A reference recording becomes a voice: speech tokens, speaker embedding and prompt mel.

Runs once per recording. Must never read files or decode audio: samples come in as an array.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.token2wav.campplus import SpeakerEncoder
from MiniCPMO45.token2wav.features import (
    SAMPLE_RATE_HZ,
    VOICE_RATE_HZ,
    speaker_filter_bank,
    tokenizer_log_mel,
    voice_log_mel,
)
from MiniCPMO45.token2wav.resample import resample
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer
from MiniCPMO45.token2wav.speech_tokenizer_onnx import load_speech_tokenizer
from MiniCPMO45.token2wav.voice import MEL_FRAMES_PER_CODE, VoicePrompt

TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_FILE = "campplus.onnx"

SAMPLES_PER_CODE = SAMPLE_RATE_HZ // 25
MIN_VOICE_S = 0.5
# The flow attends to prompt, kept history and the chunk at hand, all within one position table.
# Source: docs/specification/model.md#7.1.
POSITION_MEL_FRAMES = 1_000
HISTORY_MEL_FRAMES = 100
CHUNK_MEL_FRAMES = 56
MAX_VOICE_CODES = (
    POSITION_MEL_FRAMES - HISTORY_MEL_FRAMES - CHUNK_MEL_FRAMES
) // MEL_FRAMES_PER_CODE
MAX_VOICE_SAMPLES = MAX_VOICE_CODES * SAMPLES_PER_CODE
MAX_VOICE_S = MAX_VOICE_SAMPLES / SAMPLE_RATE_HZ  # what follows in a recording is not used


class VoiceSampleError(ValueError):
    """A recording cannot serve as a voice; the text names the limit and the value found."""


class VoiceEncoder:
    """Everything that turns a recording into a voice.

    Attributes:
        tokenizer: recording to speech tokens.
        speaker: recording to speaker embedding.
    """

    def __init__(self, tokenizer: SpeechTokenizer, speaker: SpeakerEncoder) -> None:
        """Join the two models.

        Args:
            tokenizer: on the device the voice is wanted on, float32.
            speaker: runs on the CPU.
        """
        self.tokenizer = tokenizer
        self.speaker = speaker

    @classmethod
    def from_folder(cls, folder: Path, device: torch.device) -> VoiceEncoder:
        """Load both models from the checkpoint's `assets/token2wav`.

        Args:
            folder: holds the speech tokenizer and the speaker encoder as ONNX graphs.
            device: where the tokenizer runs and where voices are put.

        Raises:
            FileNotFoundError: one of the two files is missing.
            SpeechTokenizerFileError: the tokenizer's file is of another form.
        """
        speaker = SpeakerEncoder(folder / SPEAKER_FILE)
        return cls(load_speech_tokenizer(folder / TOKENIZER_FILE, device), speaker)

    @torch.no_grad()
    def prepare_voice(self, audio: NDArray[np.float32]) -> VoicePrompt:
        """Turn a recording into a voice.

        Args:
            audio: float32 [n] at 16 kHz in -1 ... 1, from 0.5 s; its first 16.88 s are used.

        Returns:
            The voice, on the tokenizer's device.

        Raises:
            VoiceSampleError: the recording is too short or not a finite waveform.
        """
        check_voice_sample(audio)
        audio = audio[:MAX_VOICE_SAMPLES]
        device = self.tokenizer.encoder.conv1.weight.device
        wave = torch.from_numpy(np.ascontiguousarray(audio, dtype=np.float32))
        codes = self.tokenizer.encode(tokenizer_log_mel(wave).to(device))[None]  # [1, P]
        speaker = torch.from_numpy(self.speaker.embed(speaker_filter_bank(wave).numpy()))
        upsampled = torch.from_numpy(resample(wave.numpy(), SAMPLE_RATE_HZ, VOICE_RATE_HZ))
        mel = fit_frames(voice_log_mel(upsampled), MEL_FRAMES_PER_CODE * codes.shape[1])
        return VoicePrompt(codes, speaker.to(device), mel.T[None].contiguous().to(device))


def check_voice_sample(audio: NDArray[np.float32]) -> None:
    """Refuse what cannot become a voice.

    Args:
        audio: float32 [n] at 16 kHz.

    Raises:
        VoiceSampleError: wrong shape, a value that is not finite, or too short.
    """
    if audio.ndim != 1:
        raise VoiceSampleError(f"a voice sample has one channel; found shape {audio.shape}")
    duration_s = audio.size / SAMPLE_RATE_HZ
    if duration_s < MIN_VOICE_S:
        raise VoiceSampleError(
            f"a voice sample lasts at least {MIN_VOICE_S} s; found {duration_s:.2f} s"
        )
    if not np.isfinite(audio).all():
        raise VoiceSampleError("a voice sample holds finite numbers; found NaN or infinity")


def fit_frames(mel: Tensor, n_frames: int) -> Tensor:
    """Crop a spectrogram [80, T] to `n_frames`, or repeat its last mel frame up to there."""
    missing = n_frames - mel.shape[1]
    return mel[:, :n_frames] if missing <= 0 else F.pad(mel, (0, missing), mode="replicate")


def voice_key(audio: NDArray[np.float32]) -> str:
    """Return a name for the voice a recording gives; equal recordings give equal names.

    Args:
        audio: float32 [n] at 16 kHz.
    """
    return hashlib.sha256(audio.astype("<f4").tobytes()).hexdigest()
