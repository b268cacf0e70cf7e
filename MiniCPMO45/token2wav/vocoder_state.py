"""What the vocoder remembers: of a voice (shared, read only) and of one stream (owned)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from MiniCPMO45.token2wav.estimator_cache import EstimatorCache
from MiniCPMO45.token2wav.flow import FlowSchedule
from MiniCPMO45.token2wav.flow_encoder import EncoderCache
from MiniCPMO45.token2wav.hift import Overlap


@dataclass(frozen=True)
class VoiceBase:
    """Caches right after a voice prompt; every turn of every stream starts from a copy.

    Attributes:
        frames: P, mel frames of the prompt.
        speaker: the estimator's speaker condition [1, bins].
        noise: starting noise of the flow [1, bins, N].
        schedule: time steps of the flow.
        encoder: the encoder's caches.
        estimator: the estimator's caches, exactly P columns.
    """

    frames: int
    speaker: Tensor
    noise: Tensor
    schedule: FlowSchedule
    encoder: EncoderCache
    estimator: EstimatorCache

    @property
    def n_steps(self) -> int:
        """ODE steps the caches were made for."""
        return len(self.schedule.deltas)

    @property
    def nbytes(self) -> int:
        """Memory of everything held."""
        tensors = self.speaker.nbytes + self.noise.nbytes + self.schedule.modulation.nbytes
        return tensors + self.encoder.nbytes + self.estimator.nbytes


class SpeechStream(Protocol):
    """One stream of speech, whoever vocodes it; all that a conversation knows of it.

    Attributes:
        chunks: how many calls have changed it.
    """

    chunks: int

    @property
    def nbytes(self) -> int:
        """Memory this stream owns; the voice is not counted."""
        ...

    def reset(self) -> None:
        """Start a new turn with the same voice."""
        ...


@dataclass
class VocoderState:
    """One stream of speech of `Token2Wav`.

    Attributes:
        base: the voice it speaks with.
        encoder: caches of the flow encoder.
        estimator: caches of the estimator, this stream's own memory.
        hift: overlap of the waveform generator; None at the start of a turn.
        generator: source of the excitation's noise; None leaves the noise out.
        chunks: how many calls have changed it.
    """

    base: VoiceBase
    encoder: EncoderCache
    estimator: EstimatorCache
    hift: Overlap | None = None
    generator: torch.Generator | None = field(default=None, repr=False)
    chunks: int = 0

    @property
    def noise_offset(self) -> int:
        """Mel frame at which the next chunk's slice of the flow noise starts."""
        return self.estimator.length

    @property
    def nbytes(self) -> int:
        """Memory this stream owns; the base is not counted."""
        return (
            self.encoder.nbytes
            + self.estimator.nbytes
            + (self.hift.nbytes if self.hift is not None else 0)
        )

    def clone(self) -> VocoderState:
        """Return a snapshot that goes on exactly like this state; the base is shared."""
        generator = None
        if self.generator is not None:
            generator = torch.Generator(device=self.generator.device)
            generator.set_state(self.generator.get_state())
        return VocoderState(self.base, self.encoder, self.estimator.clone(), self.hift, generator)

    def reset(self) -> None:
        """Start a new turn with the same voice; copies the prompt's columns only.

        The generator goes on where it is.
        """
        self.encoder = self.base.encoder
        self.estimator.load(self.base.estimator)
        self.hift = None
