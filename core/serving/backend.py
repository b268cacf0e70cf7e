"""What a worker needs of whatever makes conversations: the real model, or a fake for tests.

The methods of a talk block: they run on call threads, never on the event loop, unless they say
otherwise. Nothing here knows a socket or a machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from PIL import Image

from core.audio import FloatArray
from core.engine.engine import Engine
from core.errors import ErrorCode, OmniError
from core.protocols.events import StepDone
from core.schemas import duplex, half_duplex, streaming
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.streaming import StreamingChunk
from core.schemas.worker import ModelFacts

Report = Callable[[str, float | None], None]
"""Told what loading does now, and how much of it is done, 0 to 1, if that is known."""


@dataclass
class Signals:
    """What the event loop tells a session's work under way.

    Attributes:
        give_up: the work ends at its next forward pass, wherever that is.
        due_s: when the work must be done, monotonic; None if nobody listens live.
    """

    give_up: threading.Event = field(default_factory=threading.Event)
    due_s: float | None = None


@dataclass(frozen=True)
class Fed:
    """What was put into the cache, and what of the request was left out."""

    cached_tokens: int = 0
    input_tokens: int = 0
    prompt_length: int = 0  # characters
    kv_tokens: int = 0
    left_out: tuple[OmniError, ...] = ()


class OneVoiceError(OmniError):
    """This model has one voice; the voice that was sent is not used."""

    code = ErrorCode.ONE_VOICE


class VoiceCutError(OmniError):
    """The voice sample is longer than the model uses; it speaks with the beginning."""

    code = ErrorCode.VOICE_CUT


@dataclass(frozen=True)
class ReplyEnd:
    """A finished reply.

    Attributes:
        text: all of it, exactly as its pieces were handed out.
        generated_tokens: its tokens.
        kv_tokens: tokens in the cache.
        stopped: it was cut short.
        is_begun: something of it is in the cache; otherwise the user's turn is still open.
    """

    text: str
    generated_tokens: int = 0
    kv_tokens: int = 0
    stopped: bool = False
    is_begun: bool = True


@dataclass(frozen=True)
class EarlySound:
    """The beginning of a unit's sound, before the unit is complete.

    Attributes:
        audio_data: wire audio; the rest is in the unit's result.
    """

    audio_data: str


class SeenPicture(Protocol):
    """A picture that was looked at ahead of its unit; what was made of it is the talk's own.

    Attributes:
        max_slices: limit that it was sliced by.
    """

    @property
    def max_slices(self) -> int: ...


UnitPicture = Image.Image | SeenPicture
"""A picture of a unit, looked at already or not."""

Unit = Generator[EarlySound, None, StepDone]
"""A unit in the making; `next` blocks until there is sound or it is complete."""

Reply = Generator[StreamingChunk, None, ReplyEnd]
"""A reply in the making; `next` blocks until there is another piece."""


class Talk(Protocol):
    """One conversation with the model."""

    @property
    def signals(self) -> Signals:
        """What the loop may tell it."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens in its cache; any thread may ask."""
        ...

    def stop(self) -> None:
        """End the reply under way, the cache well-formed; from any thread, without waiting."""
        ...

    def close(self) -> None:
        """Free everything; on the engine's thread."""
        ...


class TurnTalk(Talk, Protocol):
    """A conversation of turns that can be undone."""

    def mark(self) -> None:
        """Remember this point instead of an earlier one; on the engine's thread."""
        ...

    @property
    def can_roll_back(self) -> bool:
        """Whether the marked point can still be returned to."""
        ...

    def unmark(self) -> None:
        """Give the marked point up."""
        ...

    def roll_back(self) -> None:
        """Return to the marked point, or forget everything; on the engine's thread."""
        ...


class StreamingTalk(TurnTalk, Protocol):
    """Turn-based chat over a kept cache."""

    def prefill(self, message: streaming.WorkerPrefill) -> Fed:
        """Feed messages behind what the cache holds; fed counts this call alone.

        Raises:
            OmniError: They cannot be used, or are too long.
            WorkCancelledError: `signals.give_up` was set.
        """
        ...

    def reply(self, request: streaming.Generate) -> Reply:
        """Answer what was prefilled; raises as `prefill`."""
        ...


class HalfDuplexTalk(TurnTalk, Protocol):
    """Voice chat by turns."""

    def prepare(self, message: half_duplex.Prepare) -> Fed:
        """Begin with the system content and the voice; raises as `StreamingTalk.prefill`."""
        ...

    def hear(self, segment: FloatArray) -> Fed:
        """Take in one segment of speech, [T] at 16 kHz, as the user's turn."""
        ...

    def reply(self) -> Reply:
        """Answer it."""
        ...


class DuplexTalk(Talk, Protocol):
    """Full duplex, unit by unit."""

    def prepare(self, message: duplex.Prepare) -> Fed:
        """Begin with the system prompt and the voice; raises as `StreamingTalk.prefill`."""
        ...

    @property
    def slice_limit(self) -> int:
        """Slices per picture where a unit does not ask for another number."""
        ...

    def look(self, picture: Image.Image, max_slices: int) -> SeenPicture:
        """Look at a picture ahead of its unit, beside a unit that may be under way.

        It changes nothing of the conversation.

        Args:
            picture: RGB.
            max_slices: What its unit will probably ask for.

        Raises:
            OmniError: It cannot be looked at.
            WorkCancelledError: `signals.give_up` was set.
        """
        ...

    def step(
        self,
        audio: FloatArray,
        frames: Sequence[UnitPicture],
        max_slices: int | None,
        is_forced_to_listen: bool,
    ) -> Unit:
        """Feed one unit's sound, [T] at 16 kHz, and pictures; let the model listen or speak.

        Some of its sound comes early if `prepare` asked for it.
        """
        ...

    def finalize(self) -> None:
        """Close the unit."""
        ...

    def set_break(self) -> None:
        """Let the next unit listen; from any thread, without waiting."""
        ...


class ChatTalk(Talk, Protocol):
    """One request, one reply."""

    def prefill(self, request: ChatRequest) -> Fed:
        """Feed the whole history; raises as `StreamingTalk.prefill`."""
        ...

    def reply(self, *, in_pieces: bool) -> Reply:
        """Answer it; as a whole it comes in one piece."""
        ...

    def respond(self, request: ChatRequest) -> ChatResponse:
        """Feed and answer at once, sound as a WAV file; raises as `prefill`."""
        ...


class Backend(Protocol):
    """Makes conversations."""

    @property
    def context_tokens(self) -> int | None:
        """Longest conversation, if there is a limit; known once loaded."""
        ...

    def load(self, engine: Engine, report: Report) -> None:
        """Get ready; on the engine's thread.

        Raises:
            OmniError: It cannot; the text says why.
        """
        ...

    def open_streaming(self) -> StreamingTalk:
        """Return a fresh conversation, here and below; cheap, from any thread."""
        ...

    def open_half_duplex(self) -> HalfDuplexTalk:
        """See `open_streaming`."""
        ...

    def open_duplex(self) -> DuplexTalk:
        """See `open_streaming`."""
        ...

    def open_chat(self) -> ChatTalk:
        """See `open_streaming`."""
        ...

    @property
    def cache_room(self) -> float:
        """How much of the memory for conversations is free, 0 to 1; on the engine's thread."""
        ...

    def tidy(self) -> None:
        """Give unused memory back; on the engine's thread, when nobody talks."""
        ...

    def check(self) -> None:
        """Raise if the device cannot go on; on the engine's thread."""
        ...

    def close(self) -> None:
        """End what runs beside the model; from any thread, once, at the end."""
        ...

    def memory_mb(self) -> tuple[float, float] | None:
        """Return used and total memory of the GPU, if there is one; on the engine's thread."""
        ...

    def facts(self) -> ModelFacts:
        """Say what is loaded; on the engine's thread."""
        ...
