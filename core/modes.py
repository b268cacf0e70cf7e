"""What a worker drives: one interface per mode, and the backend that opens them.

The model (`core/processors`), the cascade (`core/cascade`) and the fake offer the same. Coroutines
run on the event loop; whatever else a method says, it is cheap and may be called there. A failure
is an `OmniError`, a cancelled call a `WorkCancelledError`. Imports no tensor library.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from core.audio import FloatArray
from core.engine.engine import Engine
from core.errors import OmniError
from core.media import Media, MediaContent
from core.media_process import MediaProcesses
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import ContentItem
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.half_duplex import HalfDuplexConfig
from core.schemas.streaming import Generate, ReplyEnd, StreamingChunk, StreamingRequest
from core.schemas.worker import ModelFacts
from core.transcription import Transcriber

T = TypeVar("T")

Report = Callable[[str, float | None], None]
"""Takes what loading does now, and how much of it is done, 0 to 1, if that is known."""

OnSound = Callable[[FloatArray], Awaitable[None]]
"""Takes sound that comes before its unit is complete, [T] float32 at 24 kHz."""

Chunks = AsyncGenerator[StreamingChunk, None]
"""A reply piece by piece; closed early, it is stopped in order."""


class Threads(Protocol):
    """Runs blocking work that needs no engine: decoding and slicing of pictures."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` where it does not hold up the event loop."""

    def read_media(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks. Raises as `core.media`."""


class EncodedPicture(Protocol):
    """A picture that was encoded ahead of its unit; each backend has a type of its own."""

    @property
    def max_slices(self) -> int:
        """The limit that it was sliced by."""


class Mode(Protocol):
    """A conversation."""

    @property
    def kv_cache_length(self) -> int:
        """Tokens in its cache."""

    def stop(self) -> None:
        """End the reply under way at the next forward pass, in order."""

    def can_rollback(self) -> bool:
        """Return whether there is a point to roll back to."""

    def take_notices(self) -> list[OmniError]:
        """Return, once, what of the caller's input is not used, or not as a whole."""

    def cleanup(self) -> None:
        """Free the caches; once, on the engine's thread, when nothing else is under way."""


class DuplexMode(Mode, Protocol):
    """Full duplex: `begin`, then `unit` and `finish_unit` once a second."""

    @property
    def slice_limit(self) -> int:
        """Most slices per picture where a unit does not say otherwise."""

    async def begin(
        self,
        system_prompt: str | None = None,
        *,
        ref_audio: FloatArray | None = None,
        tts_audio: FloatArray | None = None,
        suffix_text: str | None = None,
        config: DuplexConfig,
        early_audio: bool = False,
    ) -> str:
        """Begin a fresh conversation and return the text of its prompt."""

    async def unit(
        self,
        audio: FloatArray,
        frames: Sequence[Any],  # Any: pictures, or each backend's own `EncodedPicture`
        max_slice_nums: int | None = None,
        *,
        force_listen: bool,
        force_speak: bool,
        due_s: float | None,
        on_sound: OnSound,
    ) -> DuplexGenerateResult | None:
        """Hear a second, [T] float32 at 16 kHz, and listen or speak; None for too little sound."""

    async def finish_unit(self) -> None:
        """Close the unit; may run while its sound plays."""

    async def encode_ahead(self, picture: Any, max_slice_nums: int) -> EncodedPicture:
        """Encode an RGB picture ahead of its unit, beside the unit under way."""

    def set_break(self) -> None:
        """Make the next unit listen; raises `NotPreparedError` before `begin`."""


class TurnMode(Mode, Protocol):
    """A conversation by turns."""

    @property
    def reply_end(self) -> ReplyEnd | None:
        """What the last reply came to."""


class ChatMode(TurnMode, Protocol):
    """Requests that bring their whole history."""

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Answer a request at once."""

    async def feed_request(self, session_id: str, request: ChatRequest) -> str:
        """Feed a whole history and return its text."""

    def reply(self, session_id: str, *, in_pieces: bool) -> Chunks:
        """Answer what was fed: piece by piece, or in one chunk."""


class KeptMode(TurnMode, Protocol):
    """A conversation of which a turn can be undone."""

    async def mark(self, session_id: str) -> None:
        """Keep the present point to roll back to, instead of one kept before."""

    async def roll_back(self) -> None:
        """Return to the point kept; without one, begin afresh."""

    def clear_rollback_point(self) -> None:
        """Drop the rollback point."""


class StreamingMode(KeptMode, Protocol):
    """Turns over a kept cache."""

    def use_threads(self, threads: Threads) -> None:
        """Run blocking work there from now on: another socket continues the conversation."""

    async def feed_request(self, request: StreamingRequest) -> str:
        """Feed messages behind what the cache holds and return their text."""

    def reply(self, session_id: str, wanted: Generate) -> Chunks:
        """Answer what was fed."""


class HalfDuplexMode(KeptMode, Protocol):
    """A voice chat by turns: `begin`, then `feed_segment` and `answer` for each segment."""

    def decode_items(self, items: Sequence[ContentItem]) -> list[Any]:
        """Decode the parts of the system content to what `begin` takes; blocks."""

    async def begin(
        self,
        system_content: Any,  # a text, or what `decode_items` returned
        *,
        voice: FloatArray | None,
        config: HalfDuplexConfig,
        session_id: str,
    ) -> str:
        """Begin a fresh conversation and return the text of its prompt."""

    async def feed_segment(self, segment: FloatArray) -> None:
        """Feed one segment, [T] float32 at 16 kHz, as the user's turn."""

    def answer(self, *, sets_rollback_point: bool) -> Chunks:
        """Answer the user's turn."""


class Backend(Protocol):
    """Opens conversations, once it is loaded."""

    @property
    def context_tokens(self) -> int | None:
        """Longest conversation there is room for; None without a limit."""

    @property
    def own_transcriber(self) -> Transcriber | None:
        """A transcriber of its own, if it has one."""

    @property
    def media(self) -> MediaProcesses | None:
        """What decodes pictures and videos; None decodes on the thread that asks."""

    @property
    def unit_s_by_sessions(self) -> dict[int, float]:
        """How long a unit of so many sessions together took at the start; may be empty."""

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has."""

    def load(self, engine: Engine, report: Report) -> None:
        """Load everything; blocks, on the engine's thread."""

    def open_streaming(self, threads: Threads) -> StreamingMode:
        """Return a fresh conversation; here and below cheap, from any thread."""

    def open_half_duplex(self, threads: Threads) -> HalfDuplexMode: ...

    def open_duplex(self, threads: Threads) -> DuplexMode: ...

    def open_chat(self, threads: Threads) -> ChatMode: ...

    def tidy(self) -> None:
        """Release the memory that no conversation holds any more; on the engine's thread."""

    def check(self) -> None:
        """Compute something small; raises `ModelError` if the device does not work any more."""

    def memory_mb(self) -> tuple[float, float] | None:
        """Return used and total memory of the GPU; None on a CPU."""

    def facts(self) -> ModelFacts:
        """Describe the model that new conversations get."""

    def close(self) -> None:
        """End the processes beside the model."""
