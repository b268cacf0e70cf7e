"""A turn of a turn-based conversation: the client's request, the worker's, and history hashes.

Parses and hashes whole histories; long ones must be handled in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError

from core import history
from core.errors import NotFoundError
from core.schemas import chat, streaming
from core.schemas.common import TTSConfig, parse_message
from core.schemas.streaming import Prefill, WorkerPrefill
from gateway_modules.voices import VoiceLibrary
from gateway_modules.web.client_socket import INLINE_CHARS
from gateway_modules.web.messages import LongText, size_chars, with_strings_of

STREAMING_MESSAGE: Final[TypeAdapter[streaming.ClientMessage]] = TypeAdapter(
    streaming.ClientMessage
)
CHAT_MESSAGE: Final[TypeAdapter[chat.ClientMessage]] = TypeAdapter(chat.ClientMessage)

PATHS: Final = ("ref_audio_path", "output_path")  # of files on the server

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def off_loop(
    is_heavy: bool,
    work: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    if not is_heavy:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def is_heavy(text: str) -> bool:
    return size_chars(text) > INLINE_CHARS or names_files(text)


async def read_with_voices(
    text: str, read: Callable[[str, VoiceLibrary], Result], voices: VoiceLibrary
) -> Result:
    """Parse a message; off the event loop if it is long, on the voices' threads if it names one."""
    is_long = size_chars(text) > INLINE_CHARS
    if await off_loop(is_long, names_files, text):
        return await voices.run(read, text, voices)
    return await off_loop(is_long, read, text, voices)


def names_files(text: str) -> bool:
    """Whether a message may name a voice or a file of the server, escape sequences included."""
    return '_path"' in text or 'ref_audio_id"' in text or "\\u" in text


@dataclass(frozen=True)
class StreamingTurn:
    """A `prefill`, its text, and the hash of the history it continues; "" for a first message."""

    prefill: Prefill
    text: str
    history_hash: str

    @classmethod
    def of(cls, prefill: Prefill, text: str) -> StreamingTurn:
        options, value = history.CacheOptions.of(prefill), _value_in(text)
        return cls(prefill, text, history.request_history_hash(prefill.messages, options, value))

    @property
    def is_heavy(self) -> bool:
        return size_chars(self.text) > INLINE_CHARS

    def for_worker(self, *, is_cache_hit: bool) -> str:
        prefill = self.prefill
        messages = prefill.messages[-1:] if is_cache_hit else prefill.messages
        ours: dict[str, object] = {
            "messages": messages,
            "clear_kv_cache": not is_cache_hit,
            "expect_hash": self.history_hash if is_cache_hit else None,
        }
        # The secret is sent separately: a turn's message may be recorded.
        given = (prefill.model_fields_set | ours.keys() | {"type"}) - {"session_secret"}
        # Validated on arrival; `model_construct` saves the cost of doing it again.
        message = WorkerPrefill.model_construct(given, **{**dict(prefill), **ours})
        return with_strings_of(self.text, message.model_dump_json(exclude_unset=True))

    def hash_after(self, done: str) -> str:
        """Return the history hash of the next turn; "" if the cache's content is uncertain."""
        try:
            message = streaming.Done.model_validate_json(done)
        except ValidationError:
            return ""
        if message.stopped and not message.text:
            return ""  # no reply, or the turn was rolled back
        options = history.CacheOptions.of(self.prefill)
        value = _value_in(self.text)
        return history.next_history_hash(self.prefill.messages, message.text, options, value)


def read_streaming(text: str, voices: VoiceLibrary) -> tuple[str, StreamingTurn | None]:
    """Parse a message on `/ws/streaming`; return its type, and the turn if it begins one."""
    message = parse_message(STREAMING_MESSAGE, text)
    if not isinstance(message, Prefill):
        return message.type, None
    return message.type, StreamingTurn.of(without_paths(message, voices), text)


def read_chat(text: str, voices: VoiceLibrary) -> tuple[str, str | None]:
    """Parse a message on `/ws/chat`; return its type, and the request for the worker, if any."""
    message = parse_message(CHAT_MESSAGE, text)
    if not isinstance(message, chat.ChatSocketRequest):
        return message.type, None
    return "prefill", with_confined_tts(message, text, voices)


def with_confined_tts(
    request: chat.ChatRequest | chat.ChatSocketRequest, text: str, voices: VoiceLibrary
) -> str:
    if not request.tts.server_paths:
        return text
    changed = request.model_copy(update={"tts": confined(request.tts, voices)})
    return with_strings_of(text, changed.model_dump_json(exclude_unset=True))


def without_paths(prefill: Prefill, voices: VoiceLibrary) -> Prefill:
    parts = {"tts": prefill.tts, "streaming": prefill.streaming}
    changes = {name: confined(part, voices) for name, part in parts.items() if part is not None}
    changed = {name: part for name, part in changes.items() if part is not parts[name]}
    return prefill.model_copy(update=changed) if changed else prefill


def confined(
    part: TTSConfig | streaming.StreamingConfig, voices: VoiceLibrary
) -> TTSConfig | streaming.StreamingConfig:
    """Remove the server's paths from a setting; a known voice is replaced by its audio."""
    paths = {name: None for name in PATHS if dict(part).get(name)}
    if not paths:
        return part
    audio = part.ref_audio_data
    if not audio and part.ref_audio_path:
        with suppress(NotFoundError):
            audio = voices.by_path(part.ref_audio_path).audio.to_base64()
    return part.model_copy(update={**paths, "ref_audio_data": audio})


def _value_in(text: str) -> history.Value:
    return text.value if isinstance(text, LongText) else history.itself
