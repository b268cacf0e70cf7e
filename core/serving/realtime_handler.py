"""OpenAI's Realtime protocol: maps the machine's effects to a `StreamingView`.

The view's cache is used again as far as it holds what is asked for: turn by turn, by their keys.
A point to roll back to lies before each reply, so that one cut short is fed again as far as it was
heard, and nothing before it.
"""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Sequence
from typing import Final

from core.audio import decode_wire_audio, encode_wire_audio
from core.engine import WorkCancelledError
from core.errors import OmniError
from core.protocols.effects import DetectorEffect, Generate, Hear, Transcribe, WorkEffect
from core.protocols.events import (
    ChunkReady,
    Event,
    GenerateDone,
    Heard,
    ItemTranscribed,
    PrefillDone,
    TurnFailed,
)
from core.protocols.realtime_items import Content, Sound
from core.protocols.realtime_responses import RealtimeStart
from core.protocols.realtime_turns import Key, Turn, TurnRequest
from core.schemas import half_duplex
from core.schemas.common import (
    AudioContent,
    ContentItem,
    GenerationConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
    TokenStats,
)
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, ReplyRequest, StreamingConfig, StreamingRequest
from core.serving.half_duplex_handler import DEFAULT_PROMPT, VOICE_INSTRUCTION
from core.serving.queues import Emit
from core.serving.realtime_sound import ReplyWriter, WindowListener, model_samples
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionHandler
from core.serving.sessions import AnyStreamingView
from core.serving.slots import Lease, Owner
from core.serving.transcribers import transcribe_or_error
from core.transcription import TranscriptionOptions

SESSION: Final = "realtime"  # inside the view
PIECE_MAX_S: Final = 600.0  # far above what a view says at once
SYSTEM: Final = "system"
ALPHABET: Final = string.ascii_letters + string.digits
ID_CHARS: Final = 21  # of chance in a name


class RealtimeHandler(SessionHandler["AnyStreamingView"]):
    """Carries out the effects of a worker's `/ws/realtime`."""

    def __init__(self, runtime: WorkerRuntime, owner: Owner, lease: Lease) -> None:
        """Create a handler without a conversation; arguments as of `SessionHandler`."""
        super().__init__(runtime, owner, lease)
        self._listener: WindowListener | None = None
        self._fed: list[Key] = []  # what the cache holds
        self._marked: int | None = None  # how much of it lies before the last reply

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        """Judge sound on a thread; write down items beside it."""
        if isinstance(effect, Transcribe):
            self._beside(self._transcribe_item(effect, emit))
            return
        assert isinstance(effect, Hear), "no other detection is part of this protocol"
        if self._listener is None:
            self._listener = WindowListener(self._runtime.detector)
        listener = self._listener
        probabilities = await self._threads.hear(lambda: listener.hear(effect))
        await emit(Heard(probabilities))

    async def _transcribe_item(self, effect: Transcribe, emit: Emit) -> None:
        sound = Sound.of(effect.pcm, effect.format)
        samples = await self._threads.hear(lambda: model_samples(sound).astype("<f4").tobytes())
        wanted = TranscriptionOptions(effect.wanted.language, effect.wanted.prompt or "")
        found = await transcribe_or_error(self._runtime.transcriber, samples, wanted)
        if isinstance(found, OmniError):
            await emit(ItemTranscribed(effect.item_id, problem=found))
        else:
            await emit(ItemTranscribed(effect.item_id, found.text))

    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        match effect:
            case Generate(TurnRequest(is_outside=True) as request):
                await self._answer_outside(request, emit)
            case Generate(TurnRequest() as request):
                await self._answer(request, emit)
            case _:
                raise AssertionError(f"{effect} is no part of this protocol")

    # --- answering ---

    async def _answer(self, request: TurnRequest, emit: Emit) -> None:
        try:
            if self._is_cut:
                raise WorkCancelledError
            view, missing = await self._continued(request)
            fed = await self._feed_turns(view, request, missing, emit)
            self._fed += [turn.key for turn in missing]
            await self._call(view.mark(SESSION))
            self._marked = len(self._fed)
            end = await self._say(view, request, emit)
        except WorkCancelledError:
            await self._drop_cache()
            await emit(GenerateDone(stopped=True))
            return
        except OmniError as error:
            await self._drop_cache()
            await emit(TurnFailed(error, can_rollback=True))
            return
        if end.is_begun:
            self._fed.append(request.reply_key)
        await emit(_done(view, fed, end))

    async def _answer_outside(self, request: TurnRequest, emit: Emit) -> None:
        """Answer in a conversation of its own, which ends with the reply."""
        kept = self._view
        try:
            if self._is_cut:
                raise WorkCancelledError
            await self._runtime.make_room()
            self._view = view = self._runtime.backend.open_streaming(self._threads)
            fed = await self._feed_turns(view, request, _all_turns(request), emit)
            end = await self._say(view, request, emit)
            done: Event = GenerateDone(end.text, end.stopped, _stats(view, fed, end))
        except WorkCancelledError:
            done = GenerateDone(stopped=True)
        except OmniError as error:
            done = TurnFailed(error, can_rollback=True)
        finally:
            outside, self._view = self._view, kept
            if outside is not None and outside is not kept:
                await self._runtime.free(outside)
        await emit(done)

    async def _say(self, view: AnyStreamingView, request: TurnRequest, emit: Emit) -> ReplyEnd:
        """Make the reply; emit its pieces with their sound as the client reads it."""
        if self._is_cut:
            view.stop()  # feeding has cleared an earlier one
        writer, output = ReplyWriter(request.output.format), request.output

        async def emit_written(event: Event) -> None:
            assert isinstance(event, ChunkReady)
            chunk = event.chunk
            sound = b""
            if chunk.audio_data:
                samples = decode_wire_audio(
                    chunk.audio_data,
                    max_duration_s=PIECE_MAX_S,
                    sample_rate_hz=OUTPUT_SAMPLE_RATE_HZ,
                )
                sound = writer.write(samples)
            if chunk.is_final and output.speaks:
                sound += writer.finish()
            await emit(ChunkReady(chunk, sound))

        wanted = ReplyRequest(
            generate_audio=output.speaks,
            max_new_tokens=request.max_tokens,
            reply_start=request.reply_start,
            **_drawn(request),
        )
        return await self._reply(view, view.reply(SESSION, wanted), emit_written)

    # --- the cache ---

    async def _continued(self, request: TurnRequest) -> tuple[AnyStreamingView, Sequence[Turn]]:
        """Return the conversation, and the turns that its cache does not hold."""
        turns = _all_turns(request)
        wanted = [turn.key for turn in turns]
        view = self._view
        if view is not None and self._fed and wanted[: len(self._fed)] == self._fed:
            return view, turns[len(self._fed) :]
        marked = self._marked or 0
        if view is not None and marked and wanted[:marked] == self._fed[:marked]:
            if view.can_rollback():
                await self._call(view.roll_back())
                self._fed = self._fed[:marked]
                return view, turns[marked:]
        await self._drop_cache()
        await self._runtime.make_room()
        self._view = view = self._runtime.backend.open_streaming(self._threads)
        return view, turns

    async def _feed_turns(
        self, view: AnyStreamingView, request: TurnRequest, turns: Sequence[Turn], emit: Emit
    ) -> PrefillDone:
        """Feed turns behind what the cache holds; tell what of the client's is not used."""
        messages = await self._threads.run(lambda: [_message(turn, request) for turn in turns])
        if not messages:
            return PrefillDone(view.kv_cache_length, kv_tokens=view.kv_cache_length)
        asked = StreamingRequest(
            session_id=SESSION,
            messages=messages,
            generation=GenerationConfig(max_new_tokens=request.max_tokens, **_drawn(request)),
            streaming=StreamingConfig(ref_audio_data=request.output.voice_sample),
            omni_mode=True,
            use_tts_template=request.output.speaks,
        )
        work = view.feed_request(asked)
        fed, *notices = await self._feed(view, work, len(messages))
        for notice in notices:
            await emit(notice)
        assert isinstance(fed, PrefillDone)
        return fed

    async def _drop_cache(self) -> None:
        """Forget the instructions that were fed: they are fed again."""
        view, self._view = self._view, None
        self._fed, self._marked = [], None
        self._threads.cancelled.clear()
        if view is not None:
            await self._runtime.free(view)


def realtime_start(model: str, *, is_beta: bool, can_transcribe: bool) -> RealtimeStart:
    """Return what a session begins with.

    Args:
        model: The id to echo.
        is_beta: The client speaks the protocol's beta.
        can_transcribe: The server has a transcriber.
    """
    return RealtimeStart(
        model=model,
        instructions=DEFAULT_PROMPT,
        new_id=random_name,
        session_id=random_name("sess"),
        conversation_id=random_name("conv"),
        is_beta=is_beta,
        can_transcribe=can_transcribe,
        unix_time_s=int(time.time()),
    )


def random_name(kind: str) -> str:
    """Return a name that cannot be guessed, such as `item_` and 21 letters and digits."""
    return f"{kind}_{''.join(secrets.choice(ALPHABET) for _ in range(ID_CHARS))}"


def _all_turns(request: TurnRequest) -> list[Turn]:
    """Return all that is fed: the system's message first."""
    voice = request.output.voice_sample or ""
    key = (f"{SYSTEM}\n{voice}\n{request.system}", 0)
    system = Turn(key, "system", (Content("input_text", request.system),))
    return [system, *request.turns]


def _message(turn: Turn, request: TurnRequest) -> Message:
    if turn.role == SYSTEM:
        prompt = half_duplex.Prepare(
            system_prompt=request.system, ref_audio_base64=request.output.voice_sample
        )
        return Message(
            role=Role.SYSTEM, content=prompt.system_items(VOICE_INSTRUCTION, DEFAULT_PROMPT)
        )
    items = [item for part in turn.content if (item := _item(part)) is not None]
    return Message(role=Role(turn.role), content=items or "")


def _item(part: Content) -> ContentItem | None:
    """Return a part for the model; of sound that was dropped, its words or how long it was."""
    if part.picture is not None:
        return ImageContent(data=part.picture)
    if part.sound is not None and part.type == "input_audio":
        if part.sound.pcm:
            return AudioContent(data=encode_wire_audio(model_samples(part.sound)))
        seconds = part.sound.duration_ms / 1_000
        return TextContent(text=part.text or f"[the user spoke for {seconds:.1f} s]")
    return TextContent(text=part.text) if part.text else None


def _drawn(request: TurnRequest) -> dict[str, float | bool]:
    temperature = request.output.temperature
    if temperature is None:
        return {}
    return {"temperature": temperature, "do_sample": temperature > 0}


def _stats(view: AnyStreamingView, fed: PrefillDone, end: ReplyEnd) -> TokenStats:
    return TokenStats(
        cached_tokens=fed.cached_tokens,
        input_tokens=fed.input_tokens,
        generated_tokens=end.generated_tokens,
        total_tokens=view.kv_cache_length,
    )


def _done(view: AnyStreamingView, fed: PrefillDone, end: ReplyEnd) -> GenerateDone:
    return GenerateDone(end.text, end.stopped, _stats(view, fed, end), view.kv_cache_length)
