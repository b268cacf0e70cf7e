"""The requests that a capability yields, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import TIMING
from MiniCPMO45.engine.kv_cache import KvHandle, Rows
from MiniCPMO45.engine.policies import CodeRule, UnitPolicy
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.processing.pictures import Slice
from MiniCPMO45.settings import DuplexSettings
from MiniCPMO45.token2wav.vocoder_state import Vocode

CODES_PER_UNIT = TIMING.codes_per_second
CODES_PER_REQUEST = CODES_PER_UNIT + 1  # at most, so that a stop takes effect within a second

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TextDecision:
    """Parameters of the next decision in a duplex unit; `history`, oldest first, is extended."""

    policy: UnitPolicy
    history: list[int]
    settings: DuplexSettings
    generator: torch.Generator


@dataclass(frozen=True, eq=False)
class LlmForward:
    """Feed rows to the language model, extending `kv`.

    Answer: `LlmOutput`, with the logits after the last row if requested, and the decided token.
    """

    kv: KvHandle
    rows: Rows
    wants_logits: bool = True
    decision: TextDecision | None = None


@dataclass(frozen=True, eq=False)
class LlmOutput:
    """Answer to `LlmForward`; None for what was not requested.

    `logits` [vocabulary] are in the model's dtype; `hidden` [n, hidden] is after the final norm.
    """

    logits: Tensor | None
    hidden: Tensor
    token: int | None = None


@dataclass(frozen=True, eq=False)
class ChooseToken:
    """Decide a token from logits [vocabulary] of an earlier answer. Answer: int."""

    logits: Tensor
    decision: TextDecision


@dataclass(frozen=True, eq=False)
class EncodeClips:
    """Encode clips, log-mels [80, frames], with full attention or in blocks of encoder frames.

    With `is_voice` they are a voice sample, whose answer is cached: many conversations begin with
    the same one. Answer: one Tensor [t, hidden] per clip, which the caller must not change.
    """

    mels: tuple[Tensor, ...]
    block_frames: int | None
    is_voice: bool = False


@dataclass(frozen=True, eq=False)
class EncodeImages:
    """Encode picture slices. Answer: one Tensor [64, hidden] per slice."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, eq=False)
class DrawCodes:
    """Feed rows to the speech decoder, then draw codes and feed back each but the last.

    Answer: `DrawnCodes`.
    """

    kv: KvHandle  # the turn's; grows by the rows and by every code but the last
    rows: Rows  # that start the run, or the last code of an earlier call
    rule: CodeRule
    recent: tuple[int, ...]  # codes to penalise, oldest first; the last 16, if there are as many
    eos: int  # the code that ends speech
    generator: torch.Generator
    count: int  # most codes to draw
    least: int  # codes of this call before `eos` may be drawn


@dataclass(frozen=True)
class DrawnCodes:
    """Answer to `DrawCodes`: codes without the end of speech."""

    codes: tuple[int, ...]
    has_ended: bool


@dataclass(frozen=True, eq=False)
class OpenVoice:
    """Prepare a voice or take it from the cache, and open a vocoder stream with it.

    `audio` is float32 [n] at 16 kHz. Without a generator the excitation has no noise.
    Answer: `SpeechStream` at the start of a turn.
    """

    audio: np.ndarray
    generator: torch.Generator | None


@dataclass(frozen=True, eq=False)
class Emit:
    """Not a request: passes `value` to the caller of a streaming capability."""

    value: Any


Encoding = EncodeClips | EncodeStream | EncodeImages
Request = LlmForward | ChooseToken | Encoding | DrawCodes | Vocode | OpenVoice
Steps = Generator[Request | Emit, Any, T]


Collect = Callable[[], list[Any]]
"""Waits for the answers to requests and returns them in order.

The answer to a request that failed alone is its exception.
"""


class Answers(Protocol):
    def submit(self, requests: Sequence[Request]) -> Collect:
        """Enqueue the work of requests of one kind on the device."""
