"""Full duplex: maps the machine's effects to calls of a `DuplexMode`, and prefetches pictures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from core.audio import FloatArray, check_pcm, decode_voice, from_pcm, to_pcm
from core.engine import WorkCancelledError
from core.errors import NotPreparedError, OmniError, PictureError, PictureTooLargeError
from core.images import FRAME_LIMITS, SHORT_PIXELS, PictureLimits, decode_wire_picture
from core.modes import DuplexMode, EncodedPicture
from core.protocols import effects, events
from core.protocols.events import MS_PER_S
from core.schemas import duplex, half_duplex
from core.schemas.duplex_calls import DuplexGenerateResult
from core.serving.detection import BargeInDetector, TurnDetector
from core.serving.openai_clients import ReplyWriter
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import Emit, SessionHandler
from core.serving.slots import Owner

Encoded = EncodedPicture | PictureError
"""An encoded picture, or why it cannot be used."""


class PicturePrefetch:
    """Pictures encoded ahead of their units, oldest first."""

    def __init__(self) -> None:
        # By the picture's number: Base64, and its result once its encoding began.
        self._pictures: dict[int, str | asyncio.Future[Encoded | None]] = {}

    def add(self, effect: effects.Prefetch) -> None:
        """Add pictures to encode; drop those that no unit will need.

        A machine that replaces another one numbers its pictures from 1 again.
        """
        for frame in (*effect.dropped, *effect.frames):
            self._pictures.pop(frame.number, None)
        self._pictures |= {frame.number: frame.data for frame in effect.frames}

    async def run(self, encode: Callable[[str], Awaitable[EncodedPicture]]) -> None:
        """Encode all waiting pictures, from Base64, one at a time.

        After a failure that is not the picture's fault, its unit encodes it.
        """
        while waiting := [(n, item) for n, item in self._pictures.items() if isinstance(item, str)]:
            number, data = waiting[0]
            encoded = self._pictures[number] = asyncio.get_running_loop().create_future()
            found: Encoded | None = None
            try:
                found = await encode(data)
            except PictureError as problem:
                found = problem
            except (OmniError, WorkCancelledError):
                continue
            finally:
                encoded.set_result(found)

    async def take(self, frames: Sequence[effects.Frame]) -> list[Encoded | None]:
        """Return the result for each of a unit's pictures, awaiting those under way.

        None for a picture that the unit has to encode itself: it will not be encoded here.
        """
        found = [self._pictures.pop(frame.number, None) for frame in frames]
        return [
            await asyncio.shield(each) if isinstance(each, asyncio.Future) else None
            for each in found
        ]

    def clear(self) -> None:
        self._pictures.clear()


class DuplexHandler(SessionHandler[DuplexMode]):
    _detector: BargeInDetector | None = None
    _turns: TurnDetector | None = None  # segments the user's speech for the transcriber
    _unit_slices: int | None = None  # the last unit's limit, which the next one will share
    _writer: ReplyWriter | None = None  # for the model's turn

    def __init__(
        self, runtime: WorkerRuntime, owner: Owner, frames: PictureLimits = FRAME_LIMITS
    ) -> None:
        super().__init__(runtime, owner)
        self._prefetch, self._frame_limits = PicturePrefetch(), frames

    async def _perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        match effect:
            case effects.Prefill(duplex.Prepare() as message):
                await self._prepare(message, emit)
            case effects.Step():
                await self._unit(effect, emit)
            case effects.Finalize():
                view, began_s = self._opened, time.perf_counter()
                await self._call(view.finish_unit())
                finalize_ms = (time.perf_counter() - began_s) * MS_PER_S
                await emit(events.FinalizeDone(finalize_ms, view.kv_cache_length))
            case _:
                raise AssertionError(f"{effect} does not belong to this protocol")

    def interrupt(self) -> None:
        """Make the next unit listen, whether one is under way or not."""
        super().interrupt()
        if self._view is not None:
            with suppress(NotPreparedError):
                self._view.set_break()

    def cancel(self) -> None:
        super().cancel()
        self._prefetch.clear()

    async def release(self) -> None:
        self._prefetch.clear()
        await super().release()

    # --- units ---

    async def _prepare(self, message: duplex.Prepare, emit: Emit) -> None:
        view, self._writer = self._view, None
        if view is None:  # else the conversation restarts in the same view
            await self._runtime.evict_surplus()
            self._view = view = self._runtime.backend.open_duplex(self._threads)
        if message.barge_in is not None and self._detector is None:
            self._detector = BargeInDetector(message.barge_in, self._runtime.detector)
        if message.transcribe and self._turns is None:
            self._turns = TurnDetector(half_duplex.VadConfig(), self._runtime.detector)
        await self._feed(view, self._begin(view, message), 1, emit, is_undone=False)

    async def _begin(self, view: DuplexMode, message: duplex.Prepare) -> str:
        samples = (message.ref_audio_base64, message.tts_ref_audio_base64)
        prompted, spoken = await self._threads.run(lambda: [decode_voice(each) for each in samples])
        return await view.begin(
            message.prefix_system_prompt,
            ref_audio=prompted,
            tts_audio=spoken,
            suffix_text=message.suffix_system_prompt,
            config=message.config.model_copy(update={"max_slice_nums": message.slice_limit}),
            early_audio=message.early_audio,
        )

    async def _unit(self, effect: effects.Step, emit: Emit) -> None:
        self._unit_slices = effect.chunk.max_slice_nums
        encoded = await self._prefetch.take(effect.frames)
        await emit(await self._call(self._run_unit(effect, encoded, emit)))

    async def _run_unit(
        self, effect: effects.Step, encoded: list[Encoded | None], emit: Emit
    ) -> events.StepDone:
        view, samples = self._opened, check_pcm(effect.chunk.audio)
        pictures = await self._pictures(view, effect, encoded, emit)
        if self._writer is None and effect.client_format is not None:
            self._writer = ReplyWriter(effect.client_format)
        writer = self._writer

        async def emit_audio(sound: FloatArray) -> None:
            written = b"" if writer is None else writer.write(sound)
            await emit(events.AudioReady(to_pcm(sound), written))

        made = await view.unit(
            samples,
            pictures,
            effect.chunk.max_slice_nums,
            force_listen=effect.chunk.force_listen,
            force_speak=effect.must_speak or effect.chunk.force_speak,
            due_s=effect.due_s,
            on_sound=emit_audio,
        )
        if made is not None:
            return events.StepDone(made, client_audio=self._rest_of_unit(made))
        idle = DuplexGenerateResult(is_listen=True, kv_cache_length=view.kv_cache_length)
        return events.StepDone(idle, was_fed=False)

    def _rest_of_unit(self, made: DuplexGenerateResult) -> bytes:
        """Return the unit's audio in the client's format, at a turn's end all that is left."""
        writer = self._writer
        if made.is_listen or made.end_of_turn:
            self._writer = None  # the next turn may have another format
        if writer is None or made.is_listen:
            return b""
        written = writer.write(from_pcm(made.audio_data)) if made.audio_data else b""
        return written + writer.finish() if made.end_of_turn else written

    # --- pictures ---

    def expect_prefetch(self, effect: effects.Prefetch) -> None:
        self._prefetch.add(effect)

    async def prefetch(self, effect: effects.Prefetch, emit: Emit) -> None:
        view = self._view
        if view is not None and not self._is_cancelled:  # None: another engine took over meanwhile
            limit = self._slice_limit(view)

            async def encode(data: str) -> EncodedPicture:
                return await view.encode_ahead(await self._decoded(data), limit)

            await self._prefetch.run(lambda data: self._call(encode(data)))
        await emit(events.Prefetched())

    async def _pictures(
        self, view: DuplexMode, effect: effects.Step, encoded: list[Encoded | None], emit: Emit
    ) -> list[Any]:  # Any: decoded, or of the model's own type
        """Return the model's input for each picture; emit the problems of those left out."""
        limit = self._slice_limit(view)
        pictures: list[Any] = []
        for frame, found in zip(effect.frames, encoded, strict=True):
            try:
                if isinstance(found, PictureError):
                    raise found
                if found is None or found.max_slices != limit:
                    found = await self._decoded(frame.data)
                pictures.append(found)
            except PictureError as error:
                await emit(events.EngineWarning(error))
        return pictures

    def _slice_limit(self, view: DuplexMode) -> int:
        return view.slice_limit if self._unit_slices is None else self._unit_slices

    async def _decoded(self, data: str) -> Any:
        """Decode a picture; a large one delays no other conversation."""
        allowed = self._frame_limits
        small = replace(allowed, max_pixels=min(SHORT_PIXELS, allowed.max_pixels))
        with suppress(PictureTooLargeError):
            decode = partial(decode_wire_picture, data, allowed=small)
            return await self._threads.run(decode, is_short=True)
        return await self._threads.run(partial(decode_wire_picture, data, allowed=allowed))

    # --- detection ---

    async def detect(self, effect: effects.DetectorEffect, emit: Emit) -> None:
        assert isinstance(effect, effects.Detect)
        pcm, detectors = effect.samples, (self._detector, self._turns)

        def detect() -> list[tuple[events.SpeechEvent, ...]]:
            samples = check_pcm(pcm)
            return [() if each is None else each.detect(samples) for each in detectors]

        barge_ins, segments = await self._threads.run(detect, is_short=True)
        for segment in segments:
            if isinstance(segment, events.Segment):
                self._in_background(self._transcribe(segment, emit))
        await emit(events.Detected(barge_ins))
