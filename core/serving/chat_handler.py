"""One-shot chat, over a socket and over HTTP: maps effects to calls of a `ChatView`."""

from __future__ import annotations

from core.engine import WorkCancelledError
from core.errors import NoWorkerError, ShuttingDownError
from core.modes import ChatMode
from core.protocols.effects import Generate, Prefill, WorkEffect
from core.protocols.events import GenerateDone
from core.schemas.chat import ChatRequest, ChatResponse, ChatSocketRequest
from core.schemas.common import TokenStats
from core.serving.queues import Emit
from core.serving.session_handler import SessionHandler

SESSION = "chat"  # inside the view


class ChatHandler(SessionHandler[ChatMode]):
    """Carries out the effects of a `/ws/chat` connection, or a `POST /chat`."""

    turn_effects = (Prefill, Generate)

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Answer a request at once; `cancel` ends it, and `release` must follow.

        Raises:
            WorkerBusyError: All slots are taken.
            ShuttingDownError: The worker is about to end.
            OmniError: The request cannot be answered.
        """
        self.expect()
        try:
            view = await self._open()
            return await self._call(view.respond(without_paths(request)))
        except WorkCancelledError as error:
            raise NoWorkerError("The request was cancelled.") from error
        finally:
            self._work.ended += 1

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Prefill(ChatSocketRequest() as request):
                await self._prefill(request, emit)
            case Generate(ChatSocketRequest() as request):
                await self._generate(request, emit)
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    async def _open(self) -> ChatMode:
        runtime = self._runtime
        if runtime.is_draining:
            raise ShuttingDownError()
        await self._take_slot()
        await runtime.make_room()
        if self._is_cut:
            raise WorkCancelledError
        self._view = view = runtime.backend.open_chat(self._threads)
        return view

    async def _prefill(self, request: ChatSocketRequest, emit: Emit) -> None:
        view = await self._open()
        work = view.feed_request(SESSION, without_paths(request.to_request()))
        await self._feed(view, work, len(request.messages), emit)

    async def _generate(self, request: ChatSocketRequest, emit: Emit) -> None:
        view = self._view
        assert view is not None, "the request was fed"
        if self._is_cut:
            view.stop()
        end = await self._reply(view, view.reply(SESSION, in_pieces=request.streaming), emit)
        stats = TokenStats(generated_tokens=end.generated_tokens)
        await emit(GenerateDone(end.text, end.stopped, stats, view.kv_cache_length))


def without_paths(request: ChatRequest) -> ChatRequest:
    """Drop what names a file of the server: a worker opens none that a client names."""
    if not request.tts.server_paths:
        return request
    tts = request.tts.model_copy(update={"ref_audio_path": None, "output_path": None})
    return request.model_copy(update={"tts": tts})
