"""A backend without a model: fixed sentences and a tone, after configurable delays.

For page development and load tests (`worker.py --backend fake`); equal requests get equal replies.
Never imports the tensor library.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

import numpy as np

from core import transcription
from core.audio import FloatArray, to_pcm
from core.engine.engine import Engine
from core.modes import Backend, Chunks, OnSound, Report, Threads
from core.protocols.events import MS_PER_S
from core.schemas import half_duplex, streaming
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import ContentItem, Message, TextContent
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, ReplyRequest, StreamingChunk, StreamingRequest
from core.schemas.worker import ModelFacts, ModelKind, TranscriptPassage
from core.serving.lines import LinesMode, answer_at_once

TONE_HZ: Final = 440.0
TONE_PEAK: Final = 0.2
TONE_S: Final = 1.0  # as long as a duplex unit


class FakeTranscriber(transcription.Transcriber):
    kind: ClassVar[transcription.TranscriberKind] = "whisper"

    async def transcribe(
        self,
        samples: FloatArray,
        options: transcription.TranscriptionOptions = transcription.DEFAULT_OPTIONS,
    ) -> transcription.Transcript:
        length_s = transcription.duration_s(samples)
        text = f"I speak for {length_s:.1f} s."
        passage = TranscriptPassage(start_s=0.0, end_s=length_s, text=text)
        return transcription.Transcript(text, options.language or "en", (passage,))


@dataclass(frozen=True)
class FakeEncodedPicture:
    TOKENS: ClassVar[int] = 64

    max_slices: int


@cache
def tone() -> FloatArray:
    """Return the audio of one chunk, [T] at 24 kHz."""
    times_s = np.arange(int(TONE_S * OUTPUT_SAMPLE_RATE_HZ)) / OUTPUT_SAMPLE_RATE_HZ
    return (TONE_PEAK * np.sin(2 * np.pi * TONE_HZ * times_s)).astype(np.float32)


def line_of(message: Message) -> str:
    """Return a message as one line, with the type of each item that is not text."""
    content = message.content
    items = [TextContent(text=content)] if isinstance(content, str) else content
    words = [item.text if isinstance(item, TextContent) else item.type for item in items]
    return f"{message.role.value}: {' '.join(words)}"


def count_words(text: str) -> int:
    return len(text.split())


SPEAK_UNITS: Final = 3  # of a duplex turn
LISTEN_UNITS: Final = 2  # between two turns
TOKENS_PER_UNIT: Final = 14
LOAD_STEPS: Final = 10
DIGEST_CHARS: Final = 6
TONE_TOKENS: Final = 25  # of speech; source: docs/specification/model.md#7.4


@dataclass(frozen=True)
class FakeTimes:
    load_ms: float = 0.0
    prefill_ms: float = 2.0  # of a prompt or segment
    unit_ms: float = 20.0  # of a duplex unit
    look_ms: float = 0.0  # of each picture
    finalize_ms: float = 5.0
    piece_ms: float = 10.0  # of each chunk of a reply


class FakeBackend(Backend):
    context_tokens: ClassVar[int | None] = None
    media: ClassVar[None] = None
    own_transcriber: ClassVar[None] = None
    unit_s_by_sessions: dict[int, float] = {}  # nothing is measured
    count_tokens = staticmethod(count_words)

    def __init__(self, times: FakeTimes | None = None) -> None:
        self.times = times or FakeTimes()

    def load(self, engine: Engine, report: Report) -> None:
        for step in range(LOAD_STEPS):
            report("pretending to load", step / LOAD_STEPS)
            time.sleep(self.times.load_ms / LOAD_STEPS / MS_PER_S)

    def open_streaming(self, threads: Threads) -> FakeStreamingView:
        return FakeStreamingView(self.times, threads)

    def open_duplex(self, threads: Threads) -> FakeDuplexView:
        return FakeDuplexView(self.times, threads)

    def open_chat(self, threads: Threads) -> FakeChatView:
        return FakeChatView(self.times, threads)

    def facts(self) -> ModelFacts:
        return ModelFacts(name="Fixed replies", kind=ModelKind.FAKE, device="cpu")


class FakeView(LinesMode[str]):
    """Base of the fake views: the lines of the conversation, and delays."""

    def __init__(self, times: FakeTimes, threads: Threads) -> None:
        super().__init__(threads)
        self.times = times
        self._speaks = True

    @property
    def kv_cache_length(self) -> int:
        return sum(count_words(line) + 1 for line in self._lines)

    async def _feed_lines(self, *texts: str) -> str:
        self._stopped.clear()
        await asyncio.sleep(self.times.prefill_ms / MS_PER_S)
        self._lines.extend(texts)
        return "".join(texts)

    async def _say(self, sentence: str, max_words: int) -> Chunks:
        words: list[str] = []
        for word in sentence.split()[:max_words]:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.times.piece_ms / MS_PER_S):
                    await self._stopped.wait()
            if self._stopped.is_set():
                break
            words.append(f"{word} ")
            yield StreamingChunk(
                chunk_index=len(words) - 1,
                text_delta=words[-1],
                audio_data=to_pcm(tone()) if self._speaks else None,
                duration_ms=self.times.piece_ms,
            )
        text, was_stopped = "".join(words), self._stopped.is_set()
        self._stopped.clear()
        if words:
            self._lines.append(f"assistant: {text}")
        self.reply_end = ReplyEnd(
            text=text, generated_tokens=len(words), stopped=was_stopped, is_begun=bool(words)
        )
        yield StreamingChunk(chunk_index=len(words), is_final=True)

    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest()[:DIGEST_CHARS]


class FakeStreamingView(FakeView):
    _max_words = 0  # of an answer

    async def feed_request(self, request: StreamingRequest) -> str:
        return await self._feed_lines(*map(line_of, request.messages))

    def reply(self, wanted: streaming.Generate) -> Chunks:
        self._speaks = wanted.generate_audio
        text = f"This is a fixed reply, number {self._digest()}, and nothing more."
        begun = f"{wanted.reply_start} " if isinstance(wanted, ReplyRequest) else ""
        return self._say(begun + text, wanted.max_new_tokens)

    def decode_items(self, items: Sequence[ContentItem]) -> list[str]:
        return [item.text for item in items if isinstance(item, TextContent)]

    async def begin(
        self,
        system_content: str | list[str],
        *,
        config: half_duplex.HalfDuplexConfig,
        **unused: object,
    ) -> str:
        self._speaks = config.tts.enabled
        self._max_words = config.generation.max_new_tokens
        return await self._feed_lines(f"system: {''.join(system_content)}")

    async def feed_segment(self, segment: FloatArray) -> None:
        length_ms = len(segment) * MS_PER_S // INPUT_SAMPLE_RATE_HZ
        await self._feed_lines(f"user: {length_ms} ms of speech")

    def answer(self, *, sets_rollback_point: bool) -> Chunks:
        heard = self._lines[-1].removeprefix("user: ")
        return self._say(f"I have heard {heard}.", self._max_words)


class FakeDuplexView(FakeView):
    """Full duplex: listens, speaks three units, listens two, and so on."""

    slice_limit = 1
    _listens_for = _turns = 0
    _has_break = _has_early_sound = False
    _spoken = 0  # units of the turn under way
    _units = 0

    @property
    def kv_cache_length(self) -> int:
        units = self._units if self._lines else 0
        return super().kv_cache_length + TOKENS_PER_UNIT * units

    async def begin(
        self,
        system_prompt: str | None = None,
        *,
        config: DuplexConfig,
        early_audio: bool = False,
        **unused: object,
    ) -> str:
        self._speaks = config.generate_audio
        self._has_early_sound = early_audio
        self.slice_limit = config.max_slice_nums
        self._listens_for = config.force_listen_count
        return await self._feed_lines(f"system: {system_prompt or 'talk'}")

    async def encode_ahead(self, picture: Any, max_slice_nums: int) -> FakeEncodedPicture:
        await asyncio.sleep(self.times.look_ms / MS_PER_S)
        return FakeEncodedPicture(max_slice_nums)

    async def unit(
        self,
        audio: FloatArray,
        frames: Sequence[Any],
        max_slice_nums: int | None = None,
        *,
        force_listen: bool,
        force_speak: bool,
        on_sound: OnSound,
        **unused: object,
    ) -> DuplexGenerateResult | None:
        not_encoded = sum(not isinstance(frame, FakeEncodedPicture) for frame in frames)
        unit_ms = self.times.unit_ms + not_encoded * self.times.look_ms
        await asyncio.sleep(unit_ms / MS_PER_S)
        self._units += 1
        must_listen, self._has_break = force_listen or self._has_break, False
        if must_listen or (self._listens_for > 0 and not force_speak):
            self._listens_for = max(0, self._listens_for - 1)
            self._turns, self._spoken = self._turns + bool(self._spoken), 0
            return DuplexGenerateResult(is_listen=True, n_tokens=1, **self._costs(len(frames)))
        sound = tone()
        if self._has_early_sound and self._speaks:
            early, sound = np.split(sound, 2)
            await on_sound(early)
        self._spoken += 1
        made = DuplexGenerateResult(
            is_listen=False,
            text=f"Part {self._spoken} of turn {self._turns}. ",
            audio_data=to_pcm(sound) if self._speaks else None,
            end_of_turn=self._spoken >= SPEAK_UNITS,
            n_tokens=TOKENS_PER_UNIT,
            n_tts_tokens=TONE_TOKENS if self._speaks else 0,
            **self._costs(len(frames)),
        )
        if made.end_of_turn:
            self._turns, self._spoken, self._listens_for = self._turns + 1, 0, LISTEN_UNITS
        return made

    async def finish_unit(self) -> None:
        await asyncio.sleep(self.times.finalize_ms / MS_PER_S)

    def set_break(self) -> None:
        self._has_break = True

    def _costs(self, pictures: int) -> dict[str, Any]:
        unit_ms = self.times.unit_ms
        return {
            "cost_llm_ms": unit_ms / 2,
            "cost_read_ms": unit_ms / 8,
            "cost_tts_ms": unit_ms / 4,
            "cost_all_ms": unit_ms,
            "prefill_ms": self.times.prefill_ms,
            "kv_cache_length": self.kv_cache_length,
            "vision_slices": pictures,
            "vision_tokens": FakeEncodedPicture.TOKENS * pictures,
        }


class FakeChatView(FakeView):
    _max_words, _start = 0, ""

    async def feed_request(self, request: ChatRequest) -> str:
        self._speaks = request.tts.enabled
        self._max_words = request.generation.max_new_tokens
        self._start = request.reply_start
        return await self._feed_lines(*map(line_of, request.messages))

    def reply(self, *, in_pieces: bool) -> Chunks:
        sentence = f"{self._start} This is a fixed answer, number {self._digest()}."
        pieces = self._say(sentence, max(self._max_words, len(self._start.split())))
        return pieces if in_pieces else self._whole(pieces)

    async def respond(self, request: ChatRequest) -> ChatResponse:
        return await answer_at_once(self, request)

    async def _whole(self, pieces: Chunks) -> Chunks:
        text = "".join([chunk.text_delta or "" async for chunk in pieces])
        sound = to_pcm(tone()) if self._speaks else None
        yield StreamingChunk(chunk_index=0, text_delta=text, audio_data=sound)
