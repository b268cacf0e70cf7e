"""Voices: codes, speaker and mel of a recording, cached by content.

A folder with a fixed voice needs neither speech tokenizer nor speaker encoder; that voice replaces
every recording's.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.token2wav.config import UPSAMPLING
from MiniCPMO45.token2wav.speech_tokenizer import SpeechTokenizer, load_speech_tokenizer
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import LARGEST_VOICE_FRAMES, VoiceBase, VoicePrompt
from MiniCPMO45.token2wav.voice_features import (
    SAMPLE_RATE_HZ,
    VOICE_RATE_HZ,
    SpeakerEncoder,
    resample,
    speaker_filter_bank,
    tokenizer_log_mel,
    voice_log_mel,
)

TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_FILE = "campplus.onnx"

SAMPLES_PER_CODE = SAMPLE_RATE_HZ // 25
MIN_VOICE_S = 0.5
MAX_VOICE_CODES = LARGEST_VOICE_FRAMES // UPSAMPLING
MAX_VOICE_SAMPLES = MAX_VOICE_CODES * SAMPLES_PER_CODE
MAX_VOICE_S = MAX_VOICE_SAMPLES / SAMPLE_RATE_HZ  # the rest of a recording is ignored


class VoiceSampleError(ValueError):
    """A recording is not usable as a voice; the message names the limit and the value."""


class VoiceEncoder:
    """Converts recordings to voices on the speech tokenizer's device."""

    def __init__(self, tokenizer: SpeechTokenizer, speaker: SpeakerEncoder) -> None:
        self.tokenizer = tokenizer
        self.speaker = speaker

    @classmethod
    def from_folder(cls, folder: Path, device: torch.device) -> VoiceEncoder:
        """Load both models from the checkpoint's `assets/token2wav`.

        Raises:
            FileNotFoundError: one of the two files is missing.
            CheckpointError: the tokenizer's file is of another form.
        """
        speaker = SpeakerEncoder(folder / SPEAKER_FILE)
        return cls(load_speech_tokenizer(folder / TOKENIZER_FILE, device), speaker)

    @torch.no_grad()
    def prepare_voice(self, audio: NDArray[np.float32]) -> VoicePrompt:
        """Convert a recording to a voice.

        Args:
            audio: float32 [n] at 16 kHz in -1 ... 1, from 0.5 s; its first 16.88 s are used.

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
        mel = fit_frames(voice_log_mel(upsampled), UPSAMPLING * codes.shape[1])
        return VoicePrompt(codes, speaker.to(device), mel.T[None].contiguous().to(device))


def check_voice_sample(audio: NDArray[np.float32]) -> None:
    """Validate a recording, float32 [n] at 16 kHz.

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
    """Crop a spectrogram [80, T] to `n_frames`, or pad it with its last frame."""
    missing = n_frames - mel.shape[1]
    return mel[:, :n_frames] if missing <= 0 else F.pad(mel, (0, missing), mode="replicate")


def voice_key(audio: NDArray[np.float32]) -> str:
    """Return a cache key of the recording's content."""
    return hashlib.sha256(audio.astype("<f4").tobytes()).hexdigest()


FIXED_VOICE_FILE = "fixed_voice.safetensors"


def read_fixed_voice(folder: Path) -> VoicePrompt | None:
    """Read a checkpoint's fixed voice; None if it accepts any voice.

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


ONLY_VOICE = "the only voice"


class VoiceLibrary:
    """LRU cache of the vocoder's starting points by voice.

    A voice takes 0.1 to 0.28 GB on a card at the published size. A `VoicePrompt` in place of the
    encoder is used for every recording.
    """

    def __init__(
        self, encoder: VoiceEncoder | VoicePrompt, vocoder: Token2Wav, *, max_voices: int = 8
    ) -> None:
        if max_voices < 1:
            raise ValueError(f"a voice library keeps at least one voice; found {max_voices}")
        self.max_voices = max_voices
        self.has_one_voice = isinstance(encoder, VoicePrompt)
        self._encoder = encoder
        self._vocoder = vocoder
        self._bases: OrderedDict[str, VoiceBase] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def used_s(self) -> float | None:
        """Seconds of a recording that are used; None if recordings are ignored."""
        return None if self.has_one_voice else MAX_VOICE_S

    def base_of(self, audio: np.ndarray) -> VoiceBase:
        """Return the starting point of a voice, computed if it is not cached.

        Args:
            audio: float32 [n] at 16 kHz, from 0.5 s; a voice encoder uses the first 16.88 s.

        Raises:
            VoiceSampleError: the recording is not usable as a voice.
        """
        encoder = self._encoder
        key = ONLY_VOICE if isinstance(encoder, VoicePrompt) else voice_key(audio)
        base = self._bases.get(key)
        if base is None:
            voice = encoder if isinstance(encoder, VoicePrompt) else encoder.prepare_voice(audio)
            base = self._bases[key] = self._vocoder.set_up(voice)
            if len(self._bases) > self.max_voices:
                self._bases.popitem(last=False)
        self._bases.move_to_end(key)
        return base
