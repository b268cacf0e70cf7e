"""Voice chat by turns: detects speech, and maps the machine's effects to a `HalfDuplexView`."""

from __future__ import annotations

from typing import Any, Final

from core.audio import check_pcm, decode_voice, from_pcm
from core.engine import WorkCancelledError
from core.modes import HalfDuplexMode
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
    Happening,
    Segment,
)
from core.schemas import half_duplex
from core.schemas.common import TextContent, TokenStats
from core.serving.detection import TurnListener
from core.serving.queues import Emit
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionHandler, turn_done
from core.serving.slots import Lease, Owner

SESSION: Final = "half_duplex"  # inside the view
# What a half-duplex client gets that says nothing about the model's part. Source: the published
# example of a `prepare`.
VOICE_INSTRUCTION: Final = "Mimic the voice from the audio sample."
DEFAULT_PROMPT: Final = "You are a helpful assistant. Reply naturally."


class HalfDuplexHandler(SessionHandler[HalfDuplexMode]):
    """Carries out the effects of a `/ws/half_duplex` session."""

    turn_effects = (Generate,)

    def __init__(self, runtime: WorkerRuntime, owner: Owner, lease: Lease) -> None:
        super().__init__(runtime, owner, lease)
        self._detector: TurnListener | None = None
        self._transcribes = False

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Prefill(half_duplex.Prepare() as message):
                await self._prepare(message, emit)
            case Generate(Segment() as segment, turn_index):
                if self._transcribes:
                    self._write_down(segment, emit, turn_index)
                await self._answer(segment, emit)
            case Rollback():
                await self._roll_back()
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        detector = self._detector
        assert detector is not None, "prepared sessions have a detector"
        if isinstance(effect, Detect):
            chunk, skipped = effect.chunk, effect.skip_samples
            assert isinstance(chunk, half_duplex.AudioChunk), "the only chunks of this protocol"

            def hear() -> tuple[Happening, ...]:
                return detector.hear(check_pcm(chunk.audio_base64)[skipped:])

            await emit(Detected(await self._threads.hear(hear)))
        else:
            await self._threads.hear(detector.reset)

    async def _prepare(self, message: half_duplex.Prepare, emit: Emit) -> None:
        if self._is_cut:
            raise WorkCancelledError
        await self._runtime.make_room()
        self._view = view = self._runtime.backend.open_half_duplex(self._threads)
        self._transcribes = message.transcribe
        self._detector = TurnListener(message.config.vad, self._runtime.detector)
        await self._feed(view, self._begin(view, message), 1, emit, is_undone=False)

    async def _begin(self, view: HalfDuplexMode, message: half_duplex.Prepare) -> str:
        items = message.system_items(VOICE_INSTRUCTION, DEFAULT_PROMPT)

        def decode() -> tuple[Any, Any]:  # Any: parts of messages, of the view's own types
            voice = decode_voice(message.voice_base64)
            if len(items) == 1 and isinstance(items[0], TextContent):
                return items[0].text, voice
            return view.decode_items(items), voice

        content, voice = await self._threads.run(decode)
        return await view.begin(content, voice=voice, config=message.config, session_id=SESSION)

    async def _answer(self, segment: Segment, emit: Emit) -> None:
        view = self._view
        assert view is not None, "the session is prepared"
        await self._call(view.mark(SESSION))
        before = view.kv_cache_length
        await self._call(view.hear(from_pcm(segment.pcm)))
        added = max(0, view.kv_cache_length - before)
        fed = TokenStats(cached_tokens=before, input_tokens=added)
        if self._is_cut:
            view.stop()  # feeding has cleared an earlier one
        end = await self._reply(view, view.answer(sets_rollback_point=False), emit)
        view.clear_rollback_point()
        await emit(turn_done(view, fed, end))

    async def _roll_back(self) -> None:
        if self._view is not None:
            await self._call(self._view.roll_back())
