"""Turn-based chat: finds the conversation that a turn continues, and maps effects to its view."""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from core.engine import WorkCancelledError
from core.errors import ShuttingDownError
from core.modes import StreamingMode
from core.protocols.effects import Generate, Prefill, Retain, Rollback, WorkEffect
from core.protocols.events import CacheMissed, GenerateDone, Segment
from core.schemas import streaming
from core.schemas.common import GenerationConfig, ImageConfig, TokenStats
from core.schemas.limits import SAMPLE_BYTES
from core.schemas.streaming import ReplyEnd, StreamingConfig, StreamingRequest
from core.serving.queues import Emit
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionHandler
from core.serving.sessions import Conversation
from core.serving.slots import Owner

SESSION: Final = "streaming"  # inside the view; conversations differ by the hash of their history


class StreamingHandler(SessionHandler[StreamingMode]):
    """Carries out the effects of a worker's `/ws/streaming`; holds a slot during turns only."""

    turn_effects = (Prefill, Generate)

    def __init__(self, runtime: WorkerRuntime, owner: Owner) -> None:
        super().__init__(runtime, owner)
        self._conversation: Conversation | None = None  # during a turn
        self._latest: Conversation | None = None  # of this socket; may be kept, or gone

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Prefill(streaming.WorkerPrefill() as message, is_first):
                await self._prefill(message, is_first, emit)
            case Generate(streaming.Generate() as request):
                await self._generate(request, emit)
            case Rollback():
                await self._roll_back()
            case Retain():
                await self._retain()
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    # --- feeding ---

    async def _prefill(self, message: streaming.WorkerPrefill, is_first: bool, emit: Emit) -> None:
        conversation = await self._find(message, is_first)
        if conversation is None:
            await emit(CacheMissed())
            return
        work = self._feed_messages(conversation, message)  # cancelled, the machine rolls it back
        await self._feed(conversation.view, work, len(message.messages), emit)
        if message.speech:
            self._beside(self._transcribe_speech(message.speech, emit))

    async def _feed_messages(
        self, conversation: Conversation, message: streaming.WorkerPrefill
    ) -> str:
        await self._threads.run(lambda: conversation.add_messages(message))
        return await conversation.view.feed_request(request_of(message))

    async def _transcribe_speech(self, speech: list[str], emit: Emit) -> None:
        def join() -> bytes:  # it was fed, so it can be decoded
            return b"".join(map(b64decode, speech))

        pcm = await self._threads.run(join)
        segment = Segment(pcm, 0, len(pcm) // SAMPLE_BYTES)
        await self._transcribe(segment, emit, None)

    async def _find(self, message: streaming.WorkerPrefill, is_first: bool) -> Conversation | None:
        """Return the conversation these messages belong to; None if it is not here any more.

        Raises:
            WorkerBusyError: All slots are taken.
            ShuttingDownError: The worker is about to end.
        """
        runtime = self._runtime
        if is_first and runtime.is_draining:
            raise ShuttingDownError()
        await self._take_slot()
        if message.clear_kv_cache and self._conversation is not None:
            await self._drop()
        if self._conversation is None:
            self._use(self._recall(message))
            await runtime.make_room()
        conversation = self._conversation
        if conversation is not None and is_first:
            conversation.mark()
            await self._call(conversation.view.mark(SESSION))
        return conversation

    def _recall(self, message: streaming.WorkerPrefill) -> Conversation | None:
        """Take the conversation from where it is kept, or begin one."""
        store = self._runtime.store
        if not message.clear_kv_cache:
            if message.expect_hash:
                return store.take(message.expect_hash)
            if self._latest is not None:
                return self._latest if store.take_back(self._latest) else None
        return Conversation(self._runtime.backend.open_streaming(self._threads))

    def _use(self, conversation: Conversation | None) -> None:
        self._conversation = conversation
        self._view = None if conversation is None else conversation.view
        if self._view is not None:
            self._view.use_threads(self._threads)

    # --- answering ---

    async def _generate(self, request: streaming.Generate, emit: Emit) -> None:
        conversation = self._conversation
        assert conversation is not None, "nothing was prefilled"
        view = conversation.view
        if self._is_cut:
            view.stop()
        try:
            end = await self._reply(view, view.reply(SESSION, request), emit)
        except WorkCancelledError:
            end = ReplyEnd(stopped=True, is_begun=False)
        if end.is_begun:
            conversation.add_reply(end.text)
        else:
            await self._roll_back()  # without a reply the turn is not one of the history
        stats = TokenStats(generated_tokens=end.generated_tokens)
        await emit(GenerateDone(end.text, end.stopped, stats, view.kv_cache_length))

    # --- the end of a turn ---

    async def _roll_back(self) -> None:
        conversation = self._conversation
        if conversation is None or self._is_cancelled:
            return
        self._threads.cancelled.clear()
        conversation.roll_back()
        await self._call(conversation.view.roll_back())

    async def _retain(self) -> None:
        runtime, conversation = self._runtime, self._conversation
        for task in self._transcripts:  # of a turn that was cut short
            task.cancel()
        if conversation is not None:
            history_hash = await self._threads.run(conversation.settle)
            conversation.view.clear_rollback_point()
            if history_hash and conversation.view.kv_cache_length:
                self._latest = conversation
                self._use(None)
                others = len(runtime.slots.owners) - 1
                await runtime.free_all(runtime.store.keep(conversation, others))
            else:
                self._latest = None
                await self._drop()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.give_back()

    async def _drop(self) -> None:
        """Free the conversation of this turn."""
        conversation = self._conversation
        self._use(None)
        if conversation is not None:
            await self._runtime.free(conversation.view)


def request_of(message: streaming.WorkerPrefill) -> StreamingRequest:
    """Return a wire message as a request to a view; a worker opens no file that a client names."""
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
