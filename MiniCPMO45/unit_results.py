"""What the duplex methods return."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class UnitOrderError(RuntimeError):
    """prefill, generate and finalize were called out of order."""


@dataclass(frozen=True)
class PrefillResult:
    """Outcome of feeding one unit's input; costs in seconds.

    Attributes:
        success: the unit is in the cache and can be generated.
        reason: why nothing was fed.
        vision_slices: picture slices fed.
    """

    success: bool
    reason: str = ""
    vision_slices: int = 0
    cost_vision_process: float = 0.0
    cost_vision_embed: float = 0.0
    cost_vision_feed: float = 0.0
    cost_audio_process: float = 0.0
    cost_audio_embed: float = 0.0
    cost_audio_feed: float = 0.0
    cost_all: float = 0.0

    @property
    def cost_feed(self) -> float:
        """Time of the language model's pass over the input."""
        return self.cost_vision_feed + self.cost_audio_feed


@dataclass(frozen=True, eq=False)
class EarlyAudio:
    """The first part of a unit's sound, handed out while the rest is made.

    Attributes:
        text: what the whole unit says.
        waveform: float32 [samples] at 24 kHz.
    """

    text: str
    waveform: np.ndarray


@dataclass(frozen=True, eq=False)
class UnitResult:
    """What the model did in one unit; costs in seconds.

    Attributes:
        is_listen: it stayed silent.
        text: what it said in this unit.
        audio_waveform: float32 [samples] at 24 kHz; silence when listening; without the part that
            was handed out early.
        end_of_turn: its speaking turn ended.
        current_time: units heard so far.
        cost_llm: deciding and decoding text.
        cost_tts_prep: building the speech condition and its first step.
        cost_tts: drawing speech codes.
        cost_token2wav: codes to waveform.
        cost_all: the whole call.
        n_tokens: text tokens.
        n_tts_tokens: speech codes.
        vision_slices: picture slices fed in this unit.
        vision_tokens: their embeddings.
        barge_in: a running turn was cut by this unit.
        early_samples: samples that were handed out early.
    """

    is_listen: bool
    text: str = ""
    audio_waveform: np.ndarray | None = None
    end_of_turn: bool = False
    current_time: int = 0
    cost_llm: float = 0.0
    cost_tts_prep: float = 0.0
    cost_tts: float = 0.0
    cost_token2wav: float = 0.0
    cost_all: float = 0.0
    n_tokens: int = 0
    n_tts_tokens: int = 0
    vision_slices: int = 0
    vision_tokens: int = 0
    barge_in: bool = False
    early_samples: int = 0
