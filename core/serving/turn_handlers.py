"""Handlers of conversations by turns: chat, streaming and half duplex."""

from __future__ import annotations

from typing import Any, Final

from pybase64 import b64decode

from core.audio import check_pcm, decode_voice, from_pcm
from core.engine import WorkCancelledError
from core.errors import ShuttingDownError
from core.modes import SESSION, ChatMode, StreamingMode
from core.protocols import effects, events
from core.schemas import half_duplex, streaming
from core.schemas.chat import ChatRequest, ChatResponse, ChatSocketRequest
from core.schemas.common import GenerationConfig, ImageConfig, TextContent, TokenStats
from core.schemas.streaming import ReplyEnd, StreamingConfig, StreamingRequest
from core.serving.detection import TurnDetector
from core.serving.session_handler import Emit, SessionHandler, turn_done
from core.serving.slots import Conversation

# Defaults of a half-duplex `prepare`. Source: the published example of one.
VOICE_INSTRUCTION: Final = "Mimic the voice from the audio sample."
DEFAULT_PROMPT: Final = "You are a helpful assistant. Reply naturally."


class ChatHandler(SessionHandler[ChatMode]):
    """Carries out the effects of `/ws/chat`, and `POST /chat`."""

    turn_effects = (effects.Prefill, effects.Generate)

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Answer a request in one call; `release` must follow."""
        self.expect()
        try:
            view = await self._open()
            return await self._call(view.respond(without_paths(request)))
        except WorkCancelledError as error:
            raise ShuttingDownError() from error  # or the client has left, and reads nothing
        finally:
            self._work.ended += 1

    async def _perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        match effect:
            case effects.Prefill(ChatSocketRequest() as request):
                view = await self._open()
                work = view.feed_request(without_paths(request.to_request()))
                await self._feed(view, work, len(request.messages), emit)
            case effects.Generate(ChatSocketRequest() as request):
                view = self._opened
                end = await self._reply(view, view.reply(in_pieces=request.streaming), emit)
                await emit(turn_done(view, end))
            case _:
                raise AssertionError(f"{effect} does not belong to this protocol")

    async def _open(self) -> ChatMode:
        runtime = self._runtime
        if runtime.is_draining:
            raise ShuttingDownError()
        await self._take_slot()
        await runtime.evict_surplus()
        if self._is_interrupted:
            raise WorkCancelledError
        self._view = view = runtime.backend.open_chat(self._threads)
        return view


def without_paths(request: ChatRequest) -> ChatRequest:
    """Drop server paths: a worker opens no file that a client names."""
    if not request.tts.server_paths:
        return request
    tts = request.tts.model_copy(update={"ref_audio_path": None, "output_path": None})
    return request.model_copy(update={"tts": tts})


class StreamingHandler(SessionHandler[StreamingMode]):
    """Carries out the effects of `/ws/streaming`.

    It holds a slot only during a turn; each turn looks up the conversation that it continues.
    """

    turn_effects = (effects.Prefill, effects.Generate)
    _conversation: Conversation | None = None  # during a turn
    _latest_hash: str | None = None  # of this socket's conversation, after its last turn

    async def _perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        match effect:
            case effects.Prefill(streaming.WorkerPrefill() as message, is_first):
                await self._prefill(message, is_first, emit)
            case effects.Generate(streaming.Generate() as request):
                await self._generate(request, emit)
            case effects.Rollback():
                await self._roll_back()
            case effects.Retain():
                await self._retain()
            case _:
                raise AssertionError(f"{effect} does not belong to this protocol")

    async def _prefill(self, message: streaming.WorkerPrefill, is_first: bool, emit: Emit) -> None:
        conversation = await self._find(message, is_first)
        if conversation is None:
            await emit(events.CacheMissed())
            return
        work = self._feed_messages(conversation, message)  # if cancelled, the machine rolls it back
        await self._feed(conversation.view, work, len(message.messages), emit)
        if message.speech:
            self._in_background(self._transcribe_speech(message, emit))

    async def _feed_messages(
        self, conversation: Conversation, message: streaming.WorkerPrefill
    ) -> str:
        await self._threads.run(lambda: conversation.add_messages(message))
        return await conversation.view.feed_request(request_of(message))

    async def _transcribe_speech(self, message: streaming.WorkerPrefill, emit: Emit) -> None:
        # It was fed, so it is valid Base64.
        pcm = await self._threads.run(lambda: b"".join(map(b64decode, message.speech)))
        await self._transcribe(events.Segment(pcm), emit, prefill=message)

    async def _find(self, message: streaming.WorkerPrefill, is_first: bool) -> Conversation | None:
        """Return the conversation that these messages continue; None if it was evicted."""
        if is_first and self._runtime.is_draining:
            raise ShuttingDownError()
        await self._take_slot()
        if message.clear_kv_cache:
            await self.free_view()
        if self._conversation is None:
            self._conversation = found = self._recall(message)
            self._view = None if found is None else found.view
            await self._runtime.evict_surplus()
        conversation = self._conversation
        if conversation is not None and is_first:
            conversation.mark()
            await self._call(conversation.view.mark())
        return conversation

    def _recall(self, message: streaming.WorkerPrefill) -> Conversation | None:
        threads, wanted = self._threads, message.expect_hash or self._latest_hash
        if message.clear_kv_cache or not wanted:
            return Conversation(self._runtime.backend.open_streaming(threads), threads=threads)
        found = self._runtime.store.take(wanted)
        if found is not None and found.threads is not threads:
            found.threads = threads
            found.view.use_threads(threads)
        return found

    async def _generate(self, request: streaming.Generate, emit: Emit) -> None:
        conversation = self._conversation
        assert conversation is not None, "nothing was prefilled"
        view = conversation.view
        try:
            end = await self._reply(view, view.reply(request), emit)
        except WorkCancelledError:
            end = ReplyEnd(stopped=True, is_begun=False)
        if end.is_begun:
            conversation.add_reply(end.text)
        else:
            await self._roll_back()  # without a reply the turn is not part of the history
        await emit(turn_done(view, end))

    async def _roll_back(self) -> None:
        conversation = self._conversation
        if conversation is None or self._is_cancelled:
            return
        conversation.roll_back()
        await self._call(conversation.view.roll_back())

    async def _retain(self) -> None:
        runtime, conversation = self._runtime, self._conversation
        for task in self._transcripts:  # of an interrupted turn
            task.cancel()
        if conversation is not None:
            history_hash = await self._threads.run(conversation.settle)
            conversation.view.clear_rollback_point()
            if history_hash and conversation.view.kv_cache_length:
                self._latest_hash, self._conversation, self._view = history_hash, None, None
                others = len(runtime.slots.owners) - 1
                await runtime.free_all(runtime.store.keep(conversation, others))
            else:
                self._latest_hash = None
                await self.free_view()
        runtime.slots.give_back(self._owner)

    async def free_view(self) -> None:
        self._conversation = None
        await super().free_view()


def request_of(message: streaming.WorkerPrefill) -> StreamingRequest:
    """Return a wire message as a request to a view, without server paths."""
    config = message.streaming or StreamingConfig()
    if message.streaming is None and message.tts is not None:
        config = StreamingConfig(tts_sampling=message.tts.sampling)
    voice = {"ref_audio_path": None, "ref_audio_data": message.voice_base64}
    return StreamingRequest(
        session_id=SESSION,
        messages=message.messages,
        is_last_chunk=message.is_last_chunk,
        generation=message.generation or GenerationConfig(),
        streaming=config.model_copy(update=voice),
        omni_mode=True if message.omni_mode is None else message.omni_mode,
        use_tts_template=True if message.use_tts_template is None else message.use_tts_template,
        enable_thinking=message.enable_thinking,
        image=ImageConfig(max_slice_nums=message.slice_limit),
    )


class HalfDuplexHandler(SessionHandler[StreamingMode]):
    turn_effects = (effects.Generate,)
    _detector: TurnDetector | None = None
    _transcribes = False

    async def _perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        match effect:
            case effects.Prefill(half_duplex.Prepare() as message):
                await self._prepare(message, emit)
            case effects.Generate(events.Segment() as segment, turn_index):
                if self._transcribes:
                    self._in_background(self._transcribe(segment, emit, turn_index))
                await self._answer(segment, emit)
            case effects.Rollback():
                if self._view is not None:
                    await self._call(self._view.roll_back())
            case _:
                raise AssertionError(f"{effect} does not belong to this protocol")

    async def detect(self, effect: effects.DetectorEffect, emit: Emit) -> None:
        detector = self._detector
        assert detector is not None, "prepared sessions have a detector"
        if not isinstance(effect, effects.Detect):
            await self._threads.run(detector.reset, is_short=True)
            return
        samples = effect.samples
        found = await self._threads.run(lambda: detector.detect(check_pcm(samples)), is_short=True)
        await emit(events.Detected(found))

    async def _prepare(self, message: half_duplex.Prepare, emit: Emit) -> None:
        if self._is_interrupted:
            raise WorkCancelledError
        await self._runtime.evict_surplus()
        self._view = view = self._runtime.backend.open_streaming(self._threads)
        self._transcribes = message.transcribe
        self._detector = TurnDetector(message.config.vad, self._runtime.detector)
        await self._feed(view, self._begin(view, message), 1, emit, is_undone=False)

    async def _begin(self, view: StreamingMode, message: half_duplex.Prepare) -> str:
        items = message.system_items(VOICE_INSTRUCTION, DEFAULT_PROMPT)

        def decode() -> tuple[Any, Any]:  # Any: parts of messages, of the view's own types
            voice = decode_voice(message.voice_base64)
            if len(items) == 1 and isinstance(items[0], TextContent):
                return items[0].text, voice
            return view.decode_items(items), voice

        content, voice = await self._threads.run(decode)
        return await view.begin(content, voice=voice, config=message.config)

    async def _answer(self, segment: events.Segment, emit: Emit) -> None:
        view = self._opened
        await self._call(view.mark())
        before = view.kv_cache_length
        await self._call(view.feed_segment(from_pcm(segment.pcm)))
        added = max(0, view.kv_cache_length - before)
        fed = TokenStats(cached_tokens=before, input_tokens=added)
        end = await self._reply(view, view.answer(sets_rollback_point=False), emit)
        view.clear_rollback_point()
        await emit(turn_done(view, end, fed))
