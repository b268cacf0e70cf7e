"""Turn-based chat: finds the conversation a turn continues, feeds, answers, and keeps it."""

from __future__ import annotations

from functools import partial

from core.engine import WorkCancelledError
from core.errors import OmniError, ShuttingDownError
from core.protocols.effects import Generate, Prefill, Retain, Rollback, WorkEffect
from core.protocols.events import (
    CacheMissed,
    GenerateDone,
    PrefillDone,
    TurnFailed,
)
from core.schemas import streaming
from core.schemas.common import TokenStats
from core.serving.backend import Fed, ReplyEnd, StreamingTalk
from core.serving.lanes import Emit
from core.serving.ownership import Owner
from core.serving.performing import SessionPerformer, emit_fed
from core.serving.sessions import Conversation
from core.serving.workshop import Workshop


class StreamingPerformer(SessionPerformer):
    """Carries out what a worker's `/ws/streaming` asks for; it holds a slot during turns only."""

    def __init__(self, workshop: Workshop, owner: Owner) -> None:
        """Begin between turns; arguments as of `SessionPerformer`."""
        super().__init__(workshop, owner)
        self._conversation: Conversation | None = None  # during a turn
        self._latest: Conversation | None = None  # of this socket; may be kept, or gone

    @property
    def _talk(self) -> StreamingTalk | None:
        return None if self._conversation is None else self._conversation.talk

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
        try:
            conversation = await self._find(message, is_first)
            if conversation is None:
                await emit(CacheMissed())
                return
            fed = await self._feed(partial(_feed_messages, conversation, message))
        except WorkCancelledError:
            await emit(PrefillDone())  # the machine rolls it back
        except OmniError as error:
            talk = self._talk
            await emit(TurnFailed(error, talk is not None and talk.can_roll_back))
        else:
            await emit_fed(fed, len(message.messages), emit)

    async def _find(self, message: streaming.WorkerPrefill, is_first: bool) -> Conversation | None:
        """Return the conversation these messages belong to; None if it is not here any more.

        Raises:
            WorkerBusyError: All slots are taken.
            ShuttingDownError: The worker is about to end.
        """
        workshop = self._workshop
        if is_first and workshop.is_draining:
            raise ShuttingDownError()
        await self._take_slot()
        if message.clear_kv_cache and self._conversation is not None:
            await self._drop()
        if self._conversation is None:
            self._conversation = self._recall(message)
            await workshop.make_room()
        conversation = self._conversation
        if conversation is not None and is_first:
            conversation.mark()
            await workshop.engine.call(conversation.talk.mark)
        return conversation

    def _recall(self, message: streaming.WorkerPrefill) -> Conversation | None:
        """Take the conversation from where it is kept, or begin one."""
        store = self._workshop.store
        if not message.clear_kv_cache:
            if message.expect_hash:
                return store.take(message.expect_hash)
            if self._latest is not None:
                return self._latest if store.take_back(self._latest) else None
        return Conversation(self._workshop.backend.open_streaming())

    # --- answering ---

    async def _generate(self, request: streaming.Generate, emit: Emit) -> None:
        conversation = self._conversation
        assert conversation is not None, "nothing was prefilled"
        if self._is_cut:
            conversation.talk.stop()
        try:
            end = await self._tell(conversation.talk.reply(request), emit)
        except WorkCancelledError:
            end = ReplyEnd("", stopped=True, is_begun=False)
        except OmniError as error:
            await emit(TurnFailed(error, conversation.talk.can_roll_back))
            return
        if end.is_begun:
            conversation.add_reply(end.text)
        else:
            await self._roll_back()  # without a reply the turn is not one of the history
        stats = TokenStats(generated_tokens=end.generated_tokens)
        kv_tokens = conversation.talk.kv_tokens
        await emit(GenerateDone(end.text, end.stopped, stats, kv_tokens))

    # --- the end of a turn ---

    async def _roll_back(self) -> None:
        conversation = self._conversation
        if conversation is None or self._is_halted:
            return
        conversation.talk.signals.give_up.clear()
        conversation.roll_back()
        await self._workshop.engine.call(conversation.talk.roll_back)

    async def _retain(self) -> None:
        workshop, conversation = self._workshop, self._conversation
        if self._is_halted:
            return
        if conversation is not None:
            history_hash = await self._calls.call(conversation.settle)
            conversation.talk.unmark()
            if history_hash and conversation.talk.kv_tokens:
                self._conversation, self._latest = None, conversation
                others = len(workshop.slots.owners) - 1
                await workshop.let_go(workshop.store.keep(conversation, others))
            else:
                self._latest = None
                await self._drop()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.give_back()

    async def _drop(self) -> None:
        """Free the conversation of this turn."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            await self._workshop.free(conversation.talk)


def _feed_messages(conversation: Conversation, message: streaming.WorkerPrefill) -> Fed:
    """Note what is fed, and feed it; blocks."""
    conversation.add_messages(message)
    return conversation.talk.prefill(message)
