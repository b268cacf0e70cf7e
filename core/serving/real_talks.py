"""The real model's conversations: each method is a call of the view of its mode.

Validated messages in, records out; no socket, no machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from PIL import Image

from core.audio import FloatArray, encode_wire_audio
from core.errors import OmniError
from core.processors import (
    ChatView,
    DuplexView,
    HalfDuplexView,
    SeenPicture,
    StreamingView,
    View,
    ViewContext,
)
from core.processors.content import decode_voice, model_items
from core.processors.results import MS_PER_S, SpokenPiece
from core.protocols.events import StepDone
from core.schemas import duplex, half_duplex, streaming
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import GenerationConfig, ImageConfig, TextContent
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingChunk, StreamingConfig, StreamingRequest
from core.serving.backend import (
    EarlySound,
    Fed,
    OneVoiceError,
    Reply,
    ReplyEnd,
    Signals,
    Unit,
    UnitPicture,
    VoiceCutError,
)

# A session's id inside the model; the talk around it is what tells sessions apart.
STREAMING_SESSION: Final = "streaming"
HALF_DUPLEX_SESSION: Final = "half_duplex"
DUPLEX_SESSION: Final = "duplex"
CHAT_SESSION: Final = "chat"

# What a half-duplex client gets that says nothing about the model's part. Source: the published
# example of a `prepare`.
VOICE_INSTRUCTION: Final = "Mimic the voice from the audio sample."
DEFAULT_PROMPT: Final = "You are a helpful assistant. Reply naturally."

PieceT = TypeVar("PieceT")
ViewT = TypeVar("ViewT", bound=View)
TurnViewT = TypeVar("TurnViewT", StreamingView, HalfDuplexView)


class _ViewTalk(Generic[ViewT]):
    """What all talks are."""

    def __init__(self, view: ViewT, signals: Signals) -> None:
        """Talk through a view of its own."""
        self._view = view
        self._signals = signals
        self._has_told_of_voice = False

    @property
    def signals(self) -> Signals:
        """What the loop may tell it."""
        return self._signals

    @property
    def kv_tokens(self) -> int:
        """Tokens in its cache."""
        return self._view.kv_cache_length

    def stop(self) -> None:
        """End the reply under way."""
        self._view.stop()

    def close(self) -> None:
        """Free everything."""
        self._view.cleanup()

    def _fed(self, feed: Callable[[], str | None], voice: str | None = None) -> Fed:
        """Feed something and count what it put into the cache.

        Args:
            feed: Does it; returns the text that was fed.
            voice: Of the client, Base64, if it sent one.
        """
        before = self._view.kv_cache_length
        prompt = feed() or ""
        after = self._view.kv_cache_length
        return Fed(before, max(0, after - before), len(prompt), after, self._unused(voice))

    def _unused(self, *voices: str | None) -> tuple[OmniError, ...]:
        """Return, once a conversation, that voices of the client are not used, or not whole."""
        context = self._view.context
        if self._has_told_of_voice:
            return ()
        given = [decode_voice(voice) for voice in voices if voice]
        others = [each for each in given if not _is_same(each, context.default_voice)]
        problem = _voice_problem(context, others)
        self._has_told_of_voice = problem is not None
        return () if problem is None else (problem,)

    # Any: what the model layer returns at the end, which this layer does not import.
    def _told(
        self, pieces: Generator[PieceT, None, Any], to_chunk: Callable[[PieceT], StreamingChunk]
    ) -> Reply:
        """Hand out a reply's pieces and say at its end what it came to."""
        before = self._view.kv_cache_length
        texts: list[str] = []
        while True:
            try:
                chunk = to_chunk(next(pieces))
            except StopIteration as end:
                after, done = self._view.kv_cache_length, end.value
                n_tokens, is_begun = len(done.ids), after != before
                return ReplyEnd("".join(texts), n_tokens, after, done.was_stopped, is_begun)
            texts.append(chunk.text_delta or "")
            yield chunk


class _TurnTalk(_ViewTalk[TurnViewT]):
    """What can be undone."""

    _session_id = STREAMING_SESSION

    def mark(self) -> None:
        """Remember this point."""
        if not self._view.has_session:
            self._view.reset_session(self._session_id)
        self._view.set_rollback_point()

    @property
    def can_roll_back(self) -> bool:
        """Whether the marked point can still be returned to."""
        return self._view.can_rollback()

    def unmark(self) -> None:
        """Give the marked point up."""
        self._view.clear_rollback_point()

    def roll_back(self) -> None:
        """Return to the marked point, or forget everything."""
        if not self._view.rollback().success:
            self._view.reset_session(self._session_id)


class RealStreamingTalk(_TurnTalk[StreamingView]):
    """Turn-based chat over a kept cache."""

    def prefill(self, message: streaming.WorkerPrefill) -> Fed:
        """Feed messages."""
        request = StreamingRequest(
            session_id=STREAMING_SESSION,
            messages=message.messages,
            is_last_chunk=message.is_last_chunk,
            generation=message.generation or GenerationConfig(),
            streaming=self._speech_config(message),
            omni_mode=True if message.omni_mode is None else message.omni_mode,
            use_tts_template=True if message.use_tts_template is None else message.use_tts_template,
            enable_thinking=message.enable_thinking,
            image=ImageConfig(max_slice_nums=message.slice_limit),
        )
        return self._fed(lambda: self._view.prefill(request), message.voice_base64)

    def reply(self, request: streaming.Generate) -> Reply:
        """Answer what was prefilled."""
        return self._told(
            self._view.generate(
                STREAMING_SESSION,
                request.generate_audio,
                request.max_new_tokens,
                request.do_sample,
                length_penalty=request.length_penalty,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
            ),
            _as_it_is,
        )

    def _speech_config(self, message: streaming.WorkerPrefill) -> StreamingConfig:
        config = message.streaming or StreamingConfig()
        if message.streaming is None and message.tts is not None:
            config = StreamingConfig(tts_sampling=message.tts.sampling)
        # A worker opens no file that a client names; and without a vocoder no voice is of use.
        voice = message.voice_base64 if self._view.context.model.can_speak else None
        return config.model_copy(update={"ref_audio_path": None, "ref_audio_data": voice})


class RealHalfDuplexTalk(_TurnTalk[HalfDuplexView]):
    """Voice chat by turns."""

    _session_id = HALF_DUPLEX_SESSION

    def prepare(self, message: half_duplex.Prepare) -> Fed:
        """Begin with the system content and the voice."""
        items = message.system_items(VOICE_INSTRUCTION, DEFAULT_PROMPT)
        is_text = len(items) == 1 and isinstance(items[0], TextContent)
        content = items[0].text if isinstance(items[0], TextContent) and is_text else None
        voice = decode_voice(message.voice_base64) if message.voice_base64 else None
        return self._fed(
            lambda: self._view.prepare(
                model_items(items, self._view.context.read_media) if content is None else content,
                voice=voice,
                config=message.config,
                session_id=HALF_DUPLEX_SESSION,
            ),
            message.voice_base64,
        )

    def hear(self, segment: FloatArray) -> Fed:
        """Take in one segment of speech."""
        return self._fed(lambda: self._view.hear(segment))

    def reply(self) -> Reply:
        """Answer it."""
        return self._told(self._view.answer(sets_rollback_point=False), SpokenPiece.to_chunk)


class RealDuplexTalk(_ViewTalk[DuplexView]):
    """Full duplex, unit by unit."""

    def prepare(self, message: duplex.Prepare) -> Fed:
        """Begin with the system prompt and the voice."""
        heard, spoken = message.ref_audio_base64, message.tts_ref_audio_base64
        config = message.config.model_copy(update={"max_slice_nums": message.slice_limit})
        prompt = self._view.prepare(
            message.prefix_system_prompt,
            ref_audio=decode_voice(heard) if heard else None,
            tts_audio=decode_voice(spoken) if spoken else None,
            suffix_text=message.suffix_system_prompt,
            config=config,
            early_audio=message.early_audio,
            session_id=DUPLEX_SESSION,
        )
        tokens = self._view.prompt_tokens
        left_out = self._unused(heard, spoken)
        return Fed(0, tokens, len(prompt), self._view.kv_cache_length, left_out)

    @property
    def slice_limit(self) -> int:
        """Slices per picture where a unit does not ask for another number."""
        return self._view.settings.max_slice_nums

    def look(self, picture: Image.Image, max_slices: int) -> SeenPicture:
        """Look at a picture ahead of its unit."""
        return self._view.look(picture, max_slices)

    def step(
        self,
        audio: FloatArray,
        frames: Sequence[UnitPicture],
        max_slices: int | None,
        is_forced_to_listen: bool,
    ) -> Unit:
        """Feed one unit, let the model listen or speak."""
        view = self._view
        pictures: list[Image.Image | SeenPicture] = []
        for each in frames:
            assert isinstance(each, Image.Image | SeenPicture), "another model looked at it"
            pictures.append(each)
        unit = view.stream_unit(audio, pictures, max_slices, is_forced_to_listen)
        while True:
            try:
                sound = next(unit)
            except StopIteration as end:
                fed, done = end.value
                break
            yield EarlySound(encode_wire_audio(sound))
        feed_ms = fed.cost_feed * MS_PER_S
        prefill_ms = fed.cost_all * MS_PER_S - feed_ms
        if done is None:
            silence = DuplexGenerateResult(is_listen=True, cost_all_ms=prefill_ms)
            return StepDone(silence, prefill_ms, view.kv_cache_length, was_fed=False)
        made = view.to_record(done)
        costs = {
            "cost_llm_ms": feed_ms + made.cost_llm_ms,
            "cost_all_ms": prefill_ms + feed_ms + made.cost_all_ms,
        }
        whole = made.model_copy(update=costs)
        kv_tokens, tokens = view.kv_cache_length, done.vision_tokens
        return StepDone(whole, prefill_ms, kv_tokens, fed.vision_slices, tokens)

    def finalize(self) -> None:
        """Close the unit."""
        self._view.finalize()

    def set_break(self) -> None:
        """Let the next unit listen."""
        if self._view.has_session:
            self._view.set_break()


class RealChatTalk(_ViewTalk[ChatView]):
    """One request, one reply."""

    def prefill(self, request: ChatRequest) -> Fed:
        """Feed the whole history."""
        return self._fed(
            lambda: self._view.prefill_request(CHAT_SESSION, without_paths(request)),
            request.tts.ref_audio_data,
        )

    def reply(self, *, in_pieces: bool) -> Reply:
        """Answer it."""
        if not in_pieces:
            return self._write()
        return self._told(self._view.stream_answer(CHAT_SESSION), _as_it_is)

    def respond(self, request: ChatRequest) -> ChatResponse:
        """Feed and answer at once."""
        return self._view.respond(without_paths(request))

    def _write(self) -> Reply:
        reply = self._view.whole_answer(CHAT_SESSION)
        sound = None if reply.waveform is None else encode_wire_audio(reply.waveform)
        yield StreamingChunk(chunk_index=0, text_delta=reply.text or None, audio_data=sound)
        tokens = self._view.kv_cache_length
        return ReplyEnd(reply.text, reply.n_tokens, tokens, reply.was_stopped)


def without_paths(request: ChatRequest) -> ChatRequest:
    """Drop what names a file of the server: a worker opens none that a client names."""
    if not request.tts.server_paths:
        return request
    tts = request.tts.model_copy(update={"ref_audio_path": None, "output_path": None})
    return request.model_copy(update={"tts": tts})


def _voice_problem(context: ViewContext, voices: Sequence[FloatArray]) -> OmniError | None:
    """Return what of the client's voices the model does not use, if anything."""
    if voices and context.model.has_one_voice:
        return OneVoiceError()
    longest_s = max((len(voice) / INPUT_SAMPLE_RATE_HZ for voice in voices), default=0.0)
    used_s = context.model.voice_used_s
    if used_s is None or longest_s <= used_s:
        return None
    return VoiceCutError(
        f"The voice sample lasts {longest_s:.2f} s; replies are spoken with its first "
        f"{used_s:.2f} s."
    )


def _is_same(voice: FloatArray, own: FloatArray | None) -> bool:
    return own is not None and voice.shape == own.shape and np.allclose(voice, own, atol=1e-3)


def _as_it_is(chunk: StreamingChunk) -> StreamingChunk:
    return chunk
