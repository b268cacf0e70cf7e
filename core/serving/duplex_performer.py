"""Full duplex: each unit is fed, answered and closed; a listener may break the model off.

A unit's pictures may have been looked at before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from PIL import Image

from core.engine import WorkCancelledError
from core.errors import PictureError
from core.images import FRAME_LIMITS, PictureLimits
from core.protocols.effects import (
    Detect,
    DetectorEffect,
    Finalize,
    Frame,
    Look,
    Prefill,
    Step,
    WorkEffect,
)
from core.protocols.events import (
    Detected,
    FinalizeDone,
    Looked,
    Noticed,
    SoundReady,
    StepDone,
)
from core.schemas import duplex
from core.schemas.duplex_calls import DuplexGenerateResult
from core.serving.backend import DuplexTalk, EarlySound, Fed, Unit, UnitPicture
from core.serving.detection import BargeInListener, decode_chunk
from core.serving.lanes import Emit
from core.serving.looking import Looks, Seen
from core.serving.ownership import Lease, Owner
from core.serving.performing import SessionPerformer, emit_fed
from core.serving.workshop import Workshop

MS_PER_S: Final = 1_000


class DuplexPerformer(SessionPerformer):
    """Carries out what a `/ws/duplex` session asks for."""

    def __init__(
        self,
        workshop: Workshop,
        owner: Owner,
        lease: Lease,
        frames: PictureLimits = FRAME_LIMITS,
    ) -> None:
        """Begin without a conversation; other arguments as of `SessionPerformer`.

        Args:
            workshop: The model and everything around it.
            owner: The session.
            lease: Its slot.
            frames: What a picture may be.
        """
        super().__init__(workshop, owner, lease)
        self._conversation: DuplexTalk | None = None
        self._listener: BargeInListener | None = None
        self._looks = Looks(frames)
        self._asked_slices: int | None = None  # by the last unit: the next one will ask the same

    @property
    def _talk(self) -> DuplexTalk | None:
        return self._conversation

    def interrupt(self) -> None:
        """Let the next unit listen, whether one is under way or not."""
        if self._conversation is not None:
            self._conversation.set_break()

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Prefill(duplex.Prepare() as message):
                await self._prepare(message, emit)
            case Step():
                await self._step(effect, emit)
            case Finalize():
                await self._finalize(emit)
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    def expect_look(self, effect: Look) -> None:
        """Note the pictures; forget those that were dropped."""
        self._looks.ask(effect)

    async def look(self, effect: Look, emit: Emit) -> None:
        """Look at the pictures that still wait for their unit."""
        talk = self._conversation
        assert talk is not None, "the session is prepared"
        if not self._is_halted:
            limit = _slice_limit(talk, self._asked_slices)
            await self._looks.run(self._calls, talk, limit)
        await emit(Looked())

    def halt(self) -> None:
        """End running work; nobody needs the pictures that wait any more."""
        super().halt()
        self._looks.clear()

    async def release(self) -> None:
        """Free what was seen, the conversation, then the slot."""
        self._looks.clear()
        await super().release()

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        """Listen whether the user begins to speak."""
        listener = self._listener
        assert listener is not None and isinstance(effect, Detect), "asked for with barge-in alone"
        await emit(Detected(await self._calls.hear(lambda: listener.hear(effect))))

    async def _prepare(self, message: duplex.Prepare, emit: Emit) -> None:
        workshop = self._workshop
        fed = Fed()
        if not self._is_halted:
            await workshop.make_room()
            talk = self._conversation = workshop.backend.open_duplex()
            if message.barge_in is not None:
                self._listener = BargeInListener(message.barge_in, workshop.detector)
            try:
                fed = await self._calls.call(lambda: talk.prepare(message))
            except WorkCancelledError:
                fed = Fed()  # halted: nobody looks at it
        await emit_fed(fed, 1, emit)

    async def _step(self, effect: Step, emit: Emit) -> None:
        talk = self._conversation
        assert talk is not None, "the session is prepared"
        done = StepDone(DuplexGenerateResult(is_listen=True), was_fed=False)
        self._asked_slices = effect.chunk.max_slice_nums
        if not self._is_halted:
            talk.signals.due_s = effect.due_s
            try:
                done = await self._run_unit(talk, effect, emit)
            except WorkCancelledError:
                done = StepDone(DuplexGenerateResult(is_listen=True), was_fed=False)
        await emit(done)

    async def _run_unit(self, talk: DuplexTalk, effect: Step, emit: Emit) -> StepDone:
        """Emit what comes before a unit's end, and return the end.

        Raises:
            OmniError: It failed.
            WorkCancelledError: The session was halted: nobody looks at the result.
        """
        seen = await self._looks.take(effect.frames)
        unit, made, problems = await self._calls.call(
            partial(_begin_unit, talk, effect, seen, self._looks.decode)
        )
        for problem in problems:
            await emit(Noticed(problem))
        while isinstance(made, EarlySound):
            await emit(SoundReady(made.audio_data))
            made = await self._calls.call(partial(_go_on, unit))
        return made

    async def _finalize(self, emit: Emit) -> None:
        talk = self._conversation
        assert talk is not None, "the session is prepared"
        began_s = time.perf_counter()
        if not self._is_halted:
            try:
                await self._calls.call(talk.finalize)
            except WorkCancelledError:
                began_s = time.perf_counter()  # halted: nobody looks at the time
        finalize_ms = (time.perf_counter() - began_s) * MS_PER_S
        await emit(FinalizeDone(finalize_ms, talk.kv_tokens))


def _begin_unit(
    talk: DuplexTalk,
    effect: Step,
    seen: Sequence[Seen | None],
    decode: Callable[[str], Image.Image],
) -> tuple[Unit, EarlySound | StepDone, list[PictureError]]:
    """Decode one unit's input and let the model have it; blocks.

    Args:
        talk: The conversation.
        effect: The unit.
        seen: What came of looking at each of its pictures ahead.
        decode: Decodes the others.

    Returns:
        The unit, what came of it first, and what is wrong with pictures that were left out.
    """
    samples = decode_chunk(effect.chunk)
    slices = effect.chunk.max_slice_nums
    pictures, problems = _pictures(effect.frames, seen, _slice_limit(talk, slices), decode)
    unit = talk.step(samples, pictures, slices, effect.is_forced_to_listen)
    return unit, _go_on(unit), problems


def _slice_limit(talk: DuplexTalk, asked: int | None) -> int:
    """Return how many slices a picture of a unit may have."""
    return talk.slice_limit if asked is None else asked


def _go_on(unit: Unit) -> EarlySound | StepDone:
    """Return what comes of a unit next; blocks."""
    try:
        return next(unit)
    except StopIteration as end:
        done: StepDone = end.value
        return done


def _pictures(
    frames: Sequence[Frame],
    seen: Sequence[Seen | None],
    limit: int,
    decode: Callable[[str], Image.Image],
) -> tuple[list[UnitPicture], list[PictureError]]:
    """Return what the model needs of each picture, and what is wrong with those left out."""
    pictures: list[UnitPicture] = []
    problems: list[PictureError] = []
    for frame, found in zip(frames, seen, strict=True):
        if isinstance(found, PictureError):
            problems.append(found)
        elif found is not None and found.max_slices == limit:
            pictures.append(found)
        else:
            try:
                pictures.append(decode(frame.data))
            except PictureError as error:
                problems.append(error)
    return pictures, problems
