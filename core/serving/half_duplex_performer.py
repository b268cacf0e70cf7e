"""Voice chat by turns: listens on a thread, answers each segment, undoes a turn that broke."""

from __future__ import annotations

import numpy as np

from core.engine import WorkCancelledError
from core.errors import OmniError
from core.protocols.effects import (
    Detect,
    DetectorEffect,
    Generate,
    Prefill,
    Rollback,
    WorkEffect,
)
from core.protocols.events import (
    Detected,
    GenerateDone,
    Segment,
    TurnFailed,
)
from core.schemas import half_duplex
from core.schemas.common import TokenStats
from core.serving.backend import Fed, HalfDuplexTalk, ReplyEnd
from core.serving.detection import TurnListener
from core.serving.lanes import Emit
from core.serving.ownership import Lease, Owner
from core.serving.performing import SessionPerformer, emit_fed
from core.serving.workshop import Workshop


class HalfDuplexPerformer(SessionPerformer):
    """Carries out what a `/ws/half_duplex` session asks for."""

    def __init__(self, workshop: Workshop, owner: Owner, lease: Lease) -> None:
        """Begin deaf, without a conversation; arguments as of `SessionPerformer`."""
        super().__init__(workshop, owner, lease)
        self._conversation: HalfDuplexTalk | None = None
        self._listener: TurnListener | None = None

    @property
    def _talk(self) -> HalfDuplexTalk | None:
        return self._conversation

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Prefill(half_duplex.Prepare() as message):
                await self._prepare(message, emit)
            case Generate(Segment() as segment):
                await self._answer(segment, emit)
            case Rollback():
                await self._roll_back()
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        """Listen to a chunk, or forget what was heard."""
        listener = self._listener
        assert listener is not None, "prepared sessions have an ear"
        if isinstance(effect, Detect):
            happenings = await self._calls.hear(lambda: listener.hear(effect))
            await emit(Detected(happenings))
        else:
            await self._calls.hear(listener.reset)

    async def _prepare(self, message: half_duplex.Prepare, emit: Emit) -> None:
        workshop = self._workshop
        fed = Fed()
        if not self._is_cut:
            await workshop.make_room()
            talk = self._conversation = workshop.backend.open_half_duplex()
            self._listener = TurnListener(message.config.vad, workshop.detector)
            try:
                fed = await self._calls.call(lambda: talk.prepare(message))
            except WorkCancelledError:
                fed = Fed()  # halted: nobody looks at it
        await emit_fed(fed, 1, emit)

    async def _answer(self, segment: Segment, emit: Emit) -> None:
        talk = self._conversation
        assert talk is not None, "the session is prepared"
        try:
            fed, end = await self._take_turn(talk, segment, emit)
        except WorkCancelledError:
            await emit(GenerateDone(stopped=True, kv_tokens=talk.kv_tokens))
            return
        except OmniError as error:
            await emit(TurnFailed(error, talk.can_roll_back))
            return
        talk.unmark()
        stats = TokenStats(
            cached_tokens=fed.cached_tokens,
            input_tokens=fed.input_tokens,
            generated_tokens=end.generated_tokens,
            total_tokens=talk.kv_tokens,
        )
        await emit(GenerateDone(end.text, end.stopped, stats, talk.kv_tokens))

    async def _take_turn(
        self, talk: HalfDuplexTalk, segment: Segment, emit: Emit
    ) -> tuple[Fed, ReplyEnd]:
        """Hear the segment and answer it.

        Raises:
            OmniError: Something failed.
            WorkCancelledError: The session was halted.
        """
        if self._is_halted:
            raise WorkCancelledError
        await self._workshop.engine.call(talk.mark)
        samples = np.frombuffer(segment.pcm, dtype="<f4").astype(np.float32)
        fed = await self._calls.call(lambda: talk.hear(samples))
        if self._is_cut:
            talk.stop()  # hearing has cleared an earlier one
        return fed, await self._tell(talk.reply(), emit)

    async def _roll_back(self) -> None:
        if self._conversation is not None and not self._is_halted:
            await self._workshop.engine.call(self._conversation.roll_back)
