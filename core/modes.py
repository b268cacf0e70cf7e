"""Interfaces of the modes that a worker drives, and of the backend that opens them.

The model (`core/processors`), the cascade (`core/cascade`) and the fake implement them. All methods
may be called on the event loop unless they say otherwise. A failure is an `OmniError`, a cancelled
call a `WorkCancelledError`. Imports no tensor library.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from core.audio import FloatArray
from core.engine.engine import Engine
from core.errors import OmniError
from core.media import Media, MediaContent, read_media
from core.media_process import MediaProcesses
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import ContentItem
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.half_duplex import HalfDuplexConfig
from core.schemas.streaming import Generate, ReplyEnd, StreamingChunk, StreamingRequest
from core.schemas.worker import ModelFacts
from core.transcription import Transcriber

T = TypeVar("T")

SESSION: Final = "session"
"""Id of a view's session where nothing else names one."""

Report = Callable[[str, float | None], None]
"""Receives the stage of loading and the share done, 0 to 1, or None if that is unknown."""

OnSound = Callable[[FloatArray], Awaitable[None]]
"""Receives audio before its unit is complete, [T] float32 at 24 kHz."""

Chunks = AsyncGenerator[StreamingChunk, None]
"""A streamed reply; closing it early stops the reply in order."""


class Threads(Protocol):
    """Runs blocking work that needs no engine, such as decoding and slicing pictures."""

    async def run(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        """Run `work` without blocking the event loop; short work takes some milliseconds."""

    def read_media(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks. Raises as `core.media`."""
        return read_media(items)


class EncodedPicture(Protocol):
    """A picture that was encoded ahead of its unit; each backend has its own type."""

    @property
    def max_slices(self) -> int: ...  # the limit that was used


class Mode(Protocol):
    @property
    def kv_cache_length(self) -> int: ...

    def stop(self) -> None:
        """End the reply under way, in order, at the next forward pass."""

    def can_rollback(self) -> bool: ...

    def take_notices(self) -> list[OmniError]:
        """Return the problems of input that is not or only partly used; each is returned once."""

    async def close(self) -> None:
        """Free the caches, and end what runs beside the calls; called when no call is under way."""


class DuplexMode(Mode, Protocol):
    """Full duplex: `begin`, then `unit` and `finish_unit` every second."""

    @property
    def slice_limit(self) -> int: ...  # of each picture, by default

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
        """Feed a second, [T] float32 at 16 kHz, and listen or speak; None for too little audio."""

    async def finish_unit(self) -> None:
        """Close the unit; may run while its audio plays."""

    async def encode_ahead(self, picture: Any, max_slice_nums: int) -> EncodedPicture:
        """Encode an RGB picture for a later unit, concurrently with one under way."""

    def set_break(self) -> None:
        """Make the next unit listen; raises `NotPreparedError` before `begin`."""


class TurnMode(Mode, Protocol):
    @property
    def reply_end(self) -> ReplyEnd | None: ...  # of the last reply


class ChatMode(TurnMode, Protocol):
    """One-shot chat: each request brings its whole history."""

    async def respond(self, request: ChatRequest) -> ChatResponse: ...

    async def feed_request(self, request: ChatRequest) -> str:
        """Feed a whole history and return its text."""

    def reply(self, *, in_pieces: bool) -> Chunks:
        """Answer what was fed, streamed or in one chunk."""


class StreamingMode(TurnMode, Protocol):
    """Conversation by turns over a retained cache, whose last turn can be undone.

    Streaming feeds messages with `feed_request` and gets a `reply`; half duplex begins with
    `begin`, and feeds a segment of speech with `feed_segment` for each `answer`.
    """

    async def mark(self) -> None:
        """Set the rollback point here, replacing an earlier one."""

    async def roll_back(self) -> None:
        """Return to the rollback point; without one, begin afresh."""

    def clear_rollback_point(self) -> None: ...

    def use_threads(self, threads: Threads) -> None:
        """Use these threads from now on: another socket, with its own voice, continues."""

    async def feed_request(self, request: StreamingRequest) -> str:
        """Feed messages after those in the cache, and return their text."""

    def reply(self, wanted: Generate) -> Chunks: ...

    def decode_items(self, items: Sequence[ContentItem]) -> list[Any]:
        """Decode the parts of the system content for `begin`; blocks."""

    async def begin(
        self,
        system_content: Any,  # a text, or what `decode_items` returned
        *,
        voice: FloatArray | None,
        config: HalfDuplexConfig,
    ) -> str:
        """Begin a fresh conversation and return the text of its prompt."""

    async def feed_segment(self, segment: FloatArray) -> None:
        """Feed one segment, [T] float32 at 16 kHz, as the user's turn."""

    def answer(self, *, sets_rollback_point: bool) -> Chunks: ...


class Backend(Protocol):
    """Opens conversations once it is loaded; by default without a device or processes."""

    @property
    def context_tokens(self) -> int | None: ...  # None without a limit

    @property
    def own_transcriber(self) -> Transcriber | None: ...

    @property
    def media(self) -> MediaProcesses | None:
        """Processes that decode pictures and videos; None decodes on the calling thread."""

    @property
    def unit_s_by_sessions(self) -> dict[int, float]:
        """Measured duration of a unit by number of concurrent sessions; may be empty."""

    def count_tokens(self, text: str) -> int: ...

    def load(self, engine: Engine, report: Report) -> None:
        """Load everything; blocks, on the engine's thread."""

    def open_streaming(self, threads: Threads) -> StreamingMode:
        """Return a fresh conversation; this and the next two are cheap, from any thread."""

    def open_duplex(self, threads: Threads) -> DuplexMode: ...

    def open_chat(self, threads: Threads) -> ChatMode: ...

    def limit_windows(self, tokens: int | None) -> None:
        """Limit each conversation's cached tokens, None for no limit; from any thread."""
        return

    def tidy(self) -> None:
        """Release unused memory; on the engine's thread."""
        return

    def check(self) -> None:
        """Run a small computation; raises `ModelError` if the device has failed."""
        return

    def memory_mb(self) -> tuple[float, float] | None:
        """Return used and total memory of the GPU; None on a CPU."""
        return None

    def facts(self) -> ModelFacts: ...  # of the model that serves new conversations

    def close(self) -> None:
        """End the processes that it started."""
        return
