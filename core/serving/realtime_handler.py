"""OpenAI's Realtime protocol: the units of a `DuplexMode`, or the turns of a `StreamingMode`.

A session has one of the two at a time; a reply outside the conversation has its own. The streaming
cache is reused as far as its turns, compared by key, are a prefix of the request. A rollback point
before each reply lets an interrupted one be fed again as far as it was played, and nothing else.
"""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from core.audio import encode_wire_audio, from_pcm, to_pcm
from core.engine import WorkCancelledError
from core.errors import OmniError, PictureError
from core.modes import SESSION, Mode, StreamingMode
from core.protocols import effects, events
from core.protocols.realtime_items import AudioClip, Content
from core.protocols.realtime_session import Key, RealtimeStart, Turn, TurnRequest
from core.schemas import half_duplex, realtime
from core.schemas.common import (
    AudioContent,
    ContentItem,
    GenerationConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
    TokenStats,
)
from core.schemas.openai_errors import FieldError
from core.schemas.realtime_session import InputItem, MessageItem, PicturePart
from core.schemas.streaming import ReplyEnd, ReplyRequest, StreamingConfig, StreamingRequest
from core.serving.detection import WindowDetector
from core.serving.duplex_handler import DuplexHandler
from core.serving.openai_clients import ReplyWriter, model_samples
from core.serving.session_handler import Emit, SessionThreads, turn_done
from core.serving.transcribers import transcribe_or_error
from core.serving.turn_handlers import DEFAULT_PROMPT, VOICE_INSTRUCTION
from core.transcription import TranscriptionOptions

SYSTEM: Final = "system"
ID_CHARS: Final = 21  # random characters of an id
# A letter or digit for each byte value. 256 is no multiple of 62, so the first eight characters are
# slightly more likely; an id still has more than 120 bits of entropy.
LETTERS: Final = ((string.ascii_letters + string.digits) * 5).encode()[:256]


class RealtimeHandler(DuplexHandler):
    turn_effects = (effects.Prefill, effects.Generate)

    _talk: StreamingMode | None = None  # the conversation by turns
    _windows: WindowDetector | None = None
    _fed: tuple[Key, ...] = ()  # keys of the turns in the cache
    _marked = 0  # number of those before the rollback point
    # Of the pictures being checked; an interruption of the work does not cancel them.
    _checks: SessionThreads | None = None

    async def check(self, message: events.ClientMessage) -> None:
        """Raise `FieldError` for an item's picture that cannot be decoded.

        Once stored it would fail every response.
        """
        if not isinstance(message, realtime.ItemCreate | realtime.ResponseCreate):
            return
        items: dict[str, InputItem] = {}  # by their paths
        if isinstance(message, realtime.ItemCreate):
            items = {"item": message.item}
        elif message.response is not None:
            given = enumerate(message.response.input or ())
            items = {f"response.input[{index}]": item for index, item in given}
        for path, item in items.items():
            for index, part in enumerate(item.content if isinstance(item, MessageItem) else ()):
                if isinstance(part, PicturePart):
                    try:
                        await self._check_picture(ImageContent(data=part.base64))
                    except PictureError as error:
                        param = f"{path}.content[{index}].image_url"
                        raise FieldError(
                            "invalid_value", error.message, param, message.event_id
                        ) from error

    async def _check_picture(self, picture: ImageContent) -> None:
        if self._checks is None:
            self._checks = SessionThreads(self._runtime.threads, self._runtime.backend.media)
        threads = self._checks
        with suppress(WorkCancelledError):  # the session ends
            await threads.run(lambda: threads.read_media([picture]))

    async def release(self) -> None:
        if self._checks is not None:
            self._checks.cancelled.set()
        await super().release()

    def transcribe(self, effect: effects.Transcribe, emit: Emit) -> None:
        self._in_background(self._transcribe_item(effect, emit))

    async def detect(self, effect: effects.DetectorEffect, emit: Emit) -> None:
        assert isinstance(effect, effects.ScoreSpeech), "no other belongs to this protocol"
        if self._windows is None:
            self._windows = WindowDetector(self._runtime.detector)
        detector = self._windows
        await emit(await self._threads.run(lambda: detector.detect(effect), is_short=True))

    async def _transcribe_item(self, effect: effects.Transcribe, emit: Emit) -> None:
        sound = AudioClip.of(effect.pcm, effect.format)
        samples = await self._threads.run(lambda: to_pcm(model_samples(sound)), is_short=True)
        options = TranscriptionOptions(effect.wanted.language, effect.wanted.prompt or "")
        runtime = self._runtime
        found, problem = await transcribe_or_error(
            runtime.transcriber, samples, runtime.threads.failed, options
        )
        await emit(events.ItemTranscribed(effect.item_id, found.text, problem))

    # --- the turn engine ---

    def _views(self) -> list[Mode]:
        return [*super()._views(), *([] if self._talk is None else [self._talk])]

    async def _perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        match effect:
            case effects.Generate(TurnRequest() as request):
                if request.has_own_view:
                    await self._answer_outside(request, emit)
                else:
                    await self.free_view()
                    await emit(await self._answer(request, emit))
            case _:
                await self._drop_cache()
                await super()._perform(effect, emit)

    def _cancelled(self, effect: effects.WorkEffect) -> events.Event | None:
        if isinstance(effect, effects.Generate):
            return events.GenerateDone(stopped=True)  # whose cache, if any, was dropped
        return super()._cancelled(effect)

    async def _answer(self, request: TurnRequest, emit: Emit) -> events.GenerateDone:
        try:
            if self._is_interrupted:
                raise WorkCancelledError
            view, missing = await self._continued(request)
            fed = await self._feed_turns(view, request, missing, emit)
            self._fed += tuple(turn.key for turn in missing)
            if not request.has_own_view:
                await self._call(view.mark())
                self._marked = len(self._fed)
            end = await self._say(view, request, emit)
        except (WorkCancelledError, OmniError):
            await self._drop_cache()
            raise
        if end.is_begun:
            self._fed += (request.reply_key,)
        return turn_done(view, end, fed)

    async def _answer_outside(self, request: TurnRequest, emit: Emit) -> None:
        """Answer in a separate conversation, which ends with the reply."""
        kept, self._talk = (self._talk, self._fed, self._marked), None
        try:
            done = await self._answer(request, emit)
        finally:
            outside = self._talk
            self._talk, self._fed, self._marked = kept
            if outside is not None:
                await self._runtime.free(outside)
        await emit(replace(done, kv_tokens=0))

    async def _say(self, view: StreamingMode, request: TurnRequest, emit: Emit) -> ReplyEnd:
        writer, output = ReplyWriter(request.output.format), request.output

        async def emit_written(event: events.Event) -> None:
            assert isinstance(event, events.ChunkReady)
            chunk = event.chunk
            sound = writer.write(from_pcm(chunk.audio_data)) if chunk.audio_data else b""
            if chunk.is_final and output.speaks:
                sound += writer.finish()
            await emit(events.ChunkReady(chunk, sound))

        reply_request = ReplyRequest(
            generate_audio=output.speaks,
            max_new_tokens=request.max_tokens,
            reply_start=request.reply_start,
            **_drawn(request),
        )
        return await self._reply(view, view.reply(reply_request), emit_written)

    # --- the cache ---

    async def _continued(self, request: TurnRequest) -> tuple[StreamingMode, Sequence[Turn]]:
        """Return the conversation, and the turns that its cache lacks."""
        key = (f"{SYSTEM}\n{request.output.voice_sample or ''}\n{request.system}", 0)
        system = Turn(key, SYSTEM, (Content("input_text", request.system),))
        turns = [system, *request.turns]
        keys = tuple(turn.key for turn in turns)
        view, fed, marked = self._talk, self._fed, self._marked
        if view is not None and fed and keys[: len(fed)] == fed:
            return view, turns[len(fed) :]
        if view is not None and marked and keys[:marked] == fed[:marked] and view.can_rollback():
            await self._call(view.roll_back())
            self._fed = fed[:marked]
            return view, turns[marked:]
        await self._drop_cache()
        await self._runtime.evict_surplus()
        self._talk = view = self._runtime.backend.open_streaming(self._threads)
        return view, turns

    async def _feed_turns(
        self, view: StreamingMode, request: TurnRequest, turns: Sequence[Turn], emit: Emit
    ) -> TokenStats:
        """Feed turns after those in the cache; return the token counts."""
        before = view.kv_cache_length
        if not turns:
            return TokenStats(cached_tokens=before)
        messages = await self._threads.run(lambda: [_message(turn, request) for turn in turns])
        feed = StreamingRequest(
            session_id=SESSION,
            messages=messages,
            generation=GenerationConfig(max_new_tokens=request.max_tokens, **_drawn(request)),
            streaming=StreamingConfig(ref_audio_data=request.output.voice_sample),
            omni_mode=True,
            use_tts_template=request.output.speaks,
        )
        await self._call(view.feed_request(feed), feeds=True)
        for problem in view.take_notices():
            await emit(events.EngineWarning(problem))
        fed = max(0, view.kv_cache_length - before)
        return TokenStats(cached_tokens=before, input_tokens=fed)

    async def _drop_cache(self) -> None:
        """Free the conversation; its turns will be fed again."""
        self._fed, self._marked = (), 0
        talk, self._talk = self._talk, None
        if talk is not None:
            await self._runtime.free(talk)


def realtime_start(model: str, *, is_beta: bool, can_transcribe: bool) -> RealtimeStart:
    """Return the initial state of a session; `model` is the id to echo."""
    return RealtimeStart(
        model=model,
        instructions=DEFAULT_PROMPT,
        new_id=random_name,
        session_id=random_name("sess"),
        conversation_id=random_name("conv"),
        is_beta=is_beta,
        can_transcribe=can_transcribe,
        unix_time_s=int(time.time()),
    )


def random_name(kind: str) -> str:
    return f"{kind}_{secrets.token_bytes(ID_CHARS).translate(LETTERS).decode()}"


def _message(turn: Turn, request: TurnRequest) -> Message:
    if turn.role == SYSTEM:
        prompt = half_duplex.Prepare(
            system_prompt=request.system, ref_audio_base64=request.output.voice_sample
        )
        return Message(
            role=Role.SYSTEM, content=prompt.system_items(VOICE_INSTRUCTION, DEFAULT_PROMPT)
        )
    items = [item for part in turn.content if (item := _item(part)) is not None]
    return Message(role=Role(turn.role), content=items or "")


def _item(part: Content) -> ContentItem | None:
    """Convert a part; dropped audio is replaced by its transcript or its length."""
    if part.picture is not None:
        return ImageContent(data=part.picture)
    if part.audio is not None and part.type == "input_audio":
        if part.audio.pcm:
            return AudioContent(data=encode_wire_audio(model_samples(part.audio)))
        seconds = part.audio.duration_ms / 1_000
        return TextContent(text=part.text or f"[the user spoke for {seconds:.1f} s]")
    return TextContent(text=part.text) if part.text else None


def _drawn(request: TurnRequest) -> dict[str, float | bool]:
    temperature = request.output.temperature
    return {} if temperature is None else {"temperature": temperature, "do_sample": temperature > 0}
