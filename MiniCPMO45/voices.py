"""Voices by content: a recording heard before is not prepared again."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from MiniCPMO45.token2wav.prompt import MAX_VOICE_S, VoiceEncoder, voice_key
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import VoiceBase
from MiniCPMO45.token2wav.voice import VoicePrompt

ONLY_VOICE = "the only voice"


class VoiceLibrary:
    """The vocoder's starting points for the voices used last; the oldest leaves first.

    Attributes:
        max_voices: voices kept; one costs 0.1 to 0.28 GB at the published size on a card.
        has_one_voice: every recording is answered with the same voice.
    """

    def __init__(
        self,
        encoder: VoiceEncoder | VoicePrompt,
        vocoder: Token2Wav,
        *,
        max_voices: int = 8,
    ) -> None:
        """Start empty.

        Args:
            encoder: turns a recording into a voice; or the only voice there is, which then
                answers every recording, whatever it is.
            vocoder: runs the voice's prompt once.
            max_voices: voices kept, at least 1.

        Raises:
            ValueError: `max_voices` is below 1.
        """
        if max_voices < 1:
            raise ValueError(f"a voice library keeps at least one voice; found {max_voices}")
        self.max_voices = max_voices
        self.has_one_voice = isinstance(encoder, VoicePrompt)
        self._encoder = encoder
        self._vocoder = vocoder
        self._bases: OrderedDict[str, VoiceBase] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of voices kept."""
        return len(self._bases)

    @property
    def used_s(self) -> float | None:
        """How much of a recording becomes the voice; None if no recording is used."""
        return None if self.has_one_voice else MAX_VOICE_S

    def base_of(self, audio: np.ndarray) -> VoiceBase:
        """Return the starting point of a voice, preparing it only if it is not kept.

        Args:
            audio: float32 [n] at 16 kHz, from 0.5 s; a voice encoder uses the first 16.88 s.

        Raises:
            VoiceSampleError: the recording cannot serve as a voice.
        """
        only = self._encoder if isinstance(self._encoder, VoicePrompt) else None
        key = ONLY_VOICE if only else voice_key(audio)
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = self._vocoder.set_up(only or self._prepare(audio))
            if len(self._bases) > self.max_voices:
                self._bases.popitem(last=False)
        self._bases.move_to_end(key)
        return base

    def _prepare(self, audio: np.ndarray) -> VoicePrompt:
        assert isinstance(self._encoder, VoiceEncoder)
        return self._encoder.prepare_voice(audio)
