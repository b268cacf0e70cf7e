"""One-shot chat: over a socket, in pieces or as a whole, and over HTTP."""

from __future__ import annotations

from core.engine import WorkCancelledError
from core.errors import NoWorkerError, OmniError, ShuttingDownError
from core.protocols.effects import Generate, Prefill, WorkEffect
from core.protocols.events import GenerateDone, PrefillDone, TurnFailed
from core.schemas.chat import ChatRequest, ChatResponse, ChatSocketRequest
from core.schemas.common import TokenStats
from core.serving.backend import ChatTalk, ReplyEnd
from core.serving.lanes import Emit
from core.serving.ownership import Owner
from core.serving.performing import SessionPerformer, emit_fed
from core.serving.workshop import Workshop


class ChatPerformer(SessionPerformer):
    """Carries out what a `/ws/chat` connection or a `POST /chat` asks for."""

    def __init__(self, workshop: Workshop, owner: Owner) -> None:
        """Begin without a slot; arguments as of `SessionPerformer`."""
        super().__init__(workshop, owner)
        self._conversation: ChatTalk | None = None

    @property
    def _talk(self) -> ChatTalk | None:
        return self._conversation

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Answer a request at once; `halt` ends it, and `release` must follow.

        Raises:
            WorkerBusyError: All slots are taken.
            ShuttingDownError: The worker is about to end.
            OmniError: The request cannot be answered.
        """
        self.expect()
        try:
            talk = await self._begin()
            return await self._calls.call(lambda: talk.respond(request))
        except WorkCancelledError as error:
            raise NoWorkerError("The request was given up.") from error
        finally:
            self._ended += 1

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Prefill(ChatSocketRequest() as request):
                await self._prefill(request, emit)
            case Generate(ChatSocketRequest() as request):
                await self._generate(request, emit)
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    async def _begin(self) -> ChatTalk:
        workshop = self._workshop
        if workshop.is_draining:
            raise ShuttingDownError()
        await self._take_slot()
        await workshop.make_room()
        if self._is_cut:
            raise WorkCancelledError
        self._conversation = workshop.backend.open_chat()
        return self._conversation

    async def _prefill(self, request: ChatSocketRequest, emit: Emit) -> None:
        try:
            talk = await self._begin()
            fed = await self._feed(lambda: talk.prefill(request.to_request()))
        except WorkCancelledError:
            await emit(PrefillDone())
        except OmniError as error:
            await emit(TurnFailed(error))
        else:
            await emit_fed(fed, len(request.messages), emit)

    async def _generate(self, request: ChatSocketRequest, emit: Emit) -> None:
        talk = self._conversation
        assert talk is not None, "the request was fed"
        if self._is_cut:
            talk.stop()
        try:
            end = await self._tell(talk.reply(in_pieces=request.streaming), emit)
        except WorkCancelledError:
            end = ReplyEnd("", stopped=True)
        except OmniError as error:
            await emit(TurnFailed(error))
            return
        stats = TokenStats(generated_tokens=end.generated_tokens)
        await emit(GenerateDone(end.text, end.stopped, stats, talk.kv_tokens))
