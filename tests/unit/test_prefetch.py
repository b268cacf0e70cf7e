"""Pictures are prefetched once, never lost, and freed."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from PIL import Image

from config import Settings
from core.audio import FloatArray
from core.errors import PictureError
from core.images import FRAME_LIMITS, PictureLimits
from core.modes import Threads
from core.protocols.duplex_units import DuplexLimits, UnitInput
from core.protocols.effects import Frame, Prefetch, Prefill, Step
from core.protocols.events import EngineWarning, Event, Prefetched, StepDone
from core.schemas.duplex import AudioChunk, Prepare
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.queue import RequestType
from core.serving.duplex_handler import DuplexHandler, PicturePrefetch
from core.serving.fake_backend import FakeBackend, FakeDuplexView, FakeEncodedPicture, FakeTimes
from core.serving.runtime import WorkerRuntime
from core.serving.session_kinds import frame_limits
from core.serving.slots import Owner
from tests.fakes.duplex_scenes import CHUNK
from tests.system.loops import in_loop
from tests.unit.test_session_handlers import soon

INSTANT = FakeTimes(prefill_ms=0, unit_ms=0, finalize_ms=0)
ROUND_S = 0.002


def picture(side_px: int) -> str:
    """Base64 of a grey picture."""
    file = io.BytesIO()
    Image.new("RGB", (side_px, side_px), "grey").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


A, B = Frame(1, picture(20)), Frame(2, picture(30))
BROKEN = Frame(3, base64.b64encode(b"no picture").decode())


class Uncompared(str):
    """A picture's data, which must not be compared."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the data of pictures was compared")


class Watched(FakeDuplexView):
    """Records prefetches and units; a prefetch may be made to wait or to fail."""

    def __init__(self, threads: Threads) -> None:
        super().__init__(INSTANT, threads)
        self.prefetched: list[int] = []  # sides of the pictures
        self.got: list[list[Any]] = []
        self.may_prefetch = asyncio.Event()
        self.may_prefetch.set()
        self.fails = False

    async def encode_ahead(self, picture: Image.Image, max_slice_nums: int) -> FakeEncodedPicture:
        """Prefetch once the test allows it."""
        self.prefetched.append(picture.width)
        await self.may_prefetch.wait()
        if self.fails:
            raise RuntimeError("the device has hiccups")
        return await super().encode_ahead(picture, max_slice_nums)

    async def unit(
        self, audio: FloatArray, frames: Sequence[Any], *args: Any, **kwargs: Any
    ) -> DuplexGenerateResult | None:
        self.got.append(list(frames))
        return await super().unit(audio, frames, *args, **kwargs)


class WatchedBackend(FakeBackend):
    """Opens one recorded conversation."""

    talk: Watched

    def open_duplex(self, threads: Threads) -> Watched:
        self.talk = Watched(threads)
        return self.talk


class Bench:
    """A handler with its two queues and emitted events."""

    def __init__(self, handler: DuplexHandler, backend: WatchedBackend) -> None:
        self.handler, self._backend = handler, backend
        self.emitted: list[Event] = []

    @property
    def talk(self) -> Watched:
        return self._backend.talk

    async def emit(self, event: Event) -> None:
        self.emitted.append(event)

    def ask(self, *frames: Frame, dropped: Sequence[Frame] = ()) -> Prefetch:
        """Request a prefetch as the serve loop does; it begins later."""
        effect = Prefetch(frames, tuple(dropped))
        self.handler.expect_prefetch(effect)
        return effect

    async def encode_ahead(self, *frames: Frame, dropped: Sequence[Frame] = ()) -> None:
        await self.handler.prefetch(self.ask(*frames, dropped=dropped), self.emit)

    async def step(self, *frames: Frame, max_slices: int | None = None) -> list[Any]:
        """Run a unit; return the pictures that the model was given."""
        chunk = AudioChunk(audio=CHUNK, max_slice_nums=max_slices)
        self.handler.expect()
        await self.handler.perform(Step(chunk, frames, 0, due_s=1.0), self.emit)
        return self.talk.got[-1]

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.emitted]


@asynccontextmanager
async def bench(frames: PictureLimits = FRAME_LIMITS) -> AsyncIterator[Bench]:
    """Yield a prepared handler; it holds nothing at the end."""
    backend = WatchedBackend(INSTANT)
    runtime = WorkerRuntime(lambda: backend, 1)
    await runtime.load()
    owner = Owner("s", RequestType.OMNI_DUPLEX)
    await runtime.slots.take(owner, 1.0)
    handler = DuplexHandler(runtime, owner, frames)
    made = Bench(handler, backend)
    try:
        handler.expect()
        await handler.perform(Prefill(Prepare()), made.emit)
        made.emitted.clear()
        yield made
        await handler.release()
        assert not held(handler._prefetch) and not runtime.slots.owners
    finally:
        runtime.close()


def held(prefetch: PicturePrefetch) -> dict[int, Any]:
    return prefetch._pictures


@in_loop
async def test_pictures_are_compared_by_number_not_by_data() -> None:
    units, prefetch = UnitInput(DuplexLimits(max_backlog_chunks=1)), PicturePrefetch()

    def add(inline: int, separate: int) -> None:
        pictures: list[str] = [Uncompared("inline") for _ in range(inline)]
        chunk = AudioChunk.model_construct(audio=b"", frame_base64_list=pictures)
        units.add_chunk(chunk, 0.0, is_detected=True)
        for _ in range(separate):
            units.add_frame(Uncompared("separate"), 0.0)
        for effect in units.prefetch():
            assert isinstance(effect, Prefetch)
            prefetch.add(effect)
            units.prefetch_plan.is_prefetching = False

    add(inline=1, separate=2)
    add(inline=1, separate=3)
    assert len(held(prefetch)) == 2, "those of the dropped chunk are dropped, the budget is used up"
    _, unit = units.take(0.0)
    assert unit is not None and len(unit.frames) == 4
    assert await prefetch.take(unit.frames) == [None] * 4
    assert not held(prefetch)


@in_loop
async def test_a_unit_uses_prefetched_pictures() -> None:
    async with bench() as made:
        await made.encode_ahead(A)
        assert made.emitted == [Prefetched()]
        assert await made.step(A) == [FakeEncodedPicture(1)]
        assert made.talk.prefetched == [20]
        assert not held(made.handler._prefetch), "a unit takes it along"


@pytest.mark.parametrize(
    ("limit", "told"),
    [({"frame_max_side_px": 25}, "longer than 25"), ({"frame_max_bytes": 90}, "90 bytes")],
)
@in_loop
async def test_configured_picture_limits_apply(limit: dict[str, int], told: str) -> None:
    settings = Settings.model_validate({"limits": limit})
    async with bench(frame_limits(settings.limits)) as made:
        await made.encode_ahead(B)
        assert made.talk.prefetched == []
        assert len(await made.step(A, B, Frame(4, B.data))) == 1, "looked at before or not"
        problems = [each.problem for each in made.emitted if isinstance(each, EngineWarning)]
        assert [told in problem.message for problem in problems] == [True, True]


@in_loop
async def test_pictures_keep_their_order_prefetched_or_not() -> None:
    async with bench() as made:
        await made.encode_ahead(B)
        first, second = await made.step(A, B)
        assert isinstance(first, Image.Image) and first.width == 20
        assert second == FakeEncodedPicture(1)


@in_loop
async def test_a_unit_waits_for_a_prefetch_under_way() -> None:
    async with bench() as made:
        made.talk.may_prefetch.clear()
        looking = asyncio.create_task(made.encode_ahead(A))
        await soon(lambda: made.talk.prefetched == [20])
        step = asyncio.create_task(made.step(A))
        await asyncio.sleep(5 * ROUND_S)
        assert not step.done() and not made.talk.got
        made.talk.may_prefetch.set()
        assert await step == [FakeEncodedPicture(1)]
        await looking
        assert made.talk.prefetched == [20], "not twice"


@in_loop
async def test_a_unit_encodes_pictures_whose_prefetch_has_not_begun() -> None:
    async with bench() as made:
        effect = made.ask(A)
        [got] = await made.step(A)
        assert isinstance(got, Image.Image)
        await made.handler.prefetch(effect, made.emit)
        assert made.talk.prefetched == [], "not twice"
        assert made.kinds == ["StepDone", "Prefetched"]


@in_loop
async def test_a_unit_without_the_picture_does_not_wait_for_its_prefetch() -> None:
    async with bench() as made:
        made.talk.may_prefetch.clear()
        looking = asyncio.create_task(made.encode_ahead(A))
        await soon(lambda: made.talk.prefetched == [20])
        assert await made.step() == []
        made.talk.may_prefetch.set()
        await looking
        assert await made.step(A) == [FakeEncodedPicture(1)]


@in_loop
async def test_an_undecodable_picture_is_reported_once_and_the_unit_runs() -> None:
    async with bench() as made:
        await made.encode_ahead(BROKEN, A)
        assert made.kinds == ["Prefetched"]
        assert await made.step(BROKEN, A) == [FakeEncodedPicture(1)]
        assert made.kinds == ["Prefetched", "EngineWarning", "StepDone"]
        [noticed] = [event for event in made.emitted if isinstance(event, EngineWarning)]
        assert isinstance(noticed.problem, PictureError)


@in_loop
async def test_a_unit_with_another_slice_limit_is_given_the_picture() -> None:
    async with bench() as made:
        await made.encode_ahead(A, B)
        [got] = await made.step(A, max_slices=4)
        assert isinstance(got, Image.Image)
        assert await made.step(B, max_slices=1) == [FakeEncodedPicture(1)]


@in_loop
async def test_a_change_of_the_slice_limit_wastes_one_prefetch() -> None:
    async with bench() as made:
        await made.encode_ahead(A)
        [got] = await made.step(A, max_slices=4)
        assert isinstance(got, Image.Image), "nobody knew"
        await made.encode_ahead(A)
        assert await made.step(A, max_slices=4) == [FakeEncodedPicture(4)]
        await made.encode_ahead(A)
        [got] = await made.step(A)
        assert isinstance(got, Image.Image), "and back to what `prepare` said"
        await made.encode_ahead(A)
        assert await made.step(A) == [FakeEncodedPicture(1)]


@in_loop
async def test_dropped_pictures_are_freed_encoded_or_not() -> None:
    async with bench() as made:
        await made.encode_ahead(A)
        await made.encode_ahead(B, dropped=[A])
        effect = made.ask(A)
        await made.encode_ahead(dropped=[A, B])
        await made.handler.prefetch(effect, made.emit)
        assert not held(made.handler._prefetch)
        assert made.talk.prefetched == [20, 30], "what was dropped in time is not encoded"


@in_loop
async def test_a_picture_replaces_an_earlier_one_of_the_same_number() -> None:
    """A Realtime session that returns to units has a new machine, which counts from 1 again."""
    async with bench() as made:
        await made.encode_ahead(A)
        effect = made.ask(Frame(A.number, B.data))
        [got] = await made.step(Frame(A.number, B.data))
        assert isinstance(got, Image.Image) and got.width == 30
        await made.handler.prefetch(effect, made.emit)


@in_loop
async def test_a_prefetch_after_the_conversation_was_freed_ends_without_a_result() -> None:
    """A Realtime session frees it when the other engine answers."""
    async with bench() as made:
        effect = made.ask(A)
        await made.handler.free_view()
        await made.handler.prefetch(effect, made.emit)
        assert made.kinds == ["Prefetched"]
        made.ask(dropped=[A])


@in_loop
async def test_equal_pictures_are_encoded_separately() -> None:
    async with bench() as made:
        again = Frame(4, A.data)
        await made.encode_ahead(A, again)
        assert await made.step(again) == [FakeEncodedPicture(1)]
        assert await made.step(A) == [FakeEncodedPicture(1)]
        assert made.talk.prefetched == [20, 20]


@in_loop
async def test_after_a_failed_prefetch_the_unit_encodes() -> None:
    async with bench() as made:
        made.talk.fails = True
        await made.encode_ahead(A)
        [got] = await made.step(A)
        assert isinstance(got, Image.Image)
        assert made.kinds == ["Prefetched", "StepDone"]


@in_loop
async def test_a_cancelled_session_ends_its_prefetch_and_the_waiting_unit() -> None:
    async with bench() as made:
        made.talk.may_prefetch.clear()
        looking = asyncio.create_task(made.encode_ahead(A, B))
        await soon(lambda: made.talk.prefetched == [20])
        made.handler.expect()
        unit = Step(AudioChunk(audio=CHUNK), (A,), 0, due_s=1.0)
        step = asyncio.create_task(made.handler.perform(unit, made.emit))
        await asyncio.sleep(ROUND_S)
        made.handler.cancel()
        await asyncio.gather(looking, step)
        assert made.talk.prefetched == [20], "the next one is not begun"
        assert sorted(made.kinds) == ["Prefetched", "StepDone"]
        [done] = [event for event in made.emitted if isinstance(event, StepDone)]
        assert not done.was_fed
