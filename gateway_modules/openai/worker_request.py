"""Converts chat completion requests to worker requests.

Blocks while audio is decoded. Media are passed in parts, see `gateway_modules.web.messages`.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from pybase64 import b64decode, b64encode_as_string

import gateway_modules.openai.chat_request as asked
from core.errors import AudioError, BadRequestError
from core.schemas import common as wire
from core.schemas import limits
from core.schemas.chat import ChatSocketRequest
from core.tools import call_text, outputs_text
from gateway_modules.voices import VoiceLibrary
from gateway_modules.web.messages import LONG_CHARS, PART_CHARS, LongStrings, LongText

MARK_CHARS: Final = 1_000  # ours: text that the server adds to a client's text
TEXT_CHARS: Final = limits.TEXT_MAX_CHARS - MARK_CHARS
BASE64_GROUP: Final = 4  # characters that stand for three bytes
BYTES_AT_ONCE: Final = PART_CHARS // BASE64_GROUP * 3
TRANSCRIPT_LIFE_S: Final = 3_600  # as with OpenAI's server
TRANSCRIPTS_MAX: Final = 1_000  # beyond it the oldest is dropped
CLIPS_MAX: Final = 32  # as many as a model may suggest, and more; a few seconds each


@contextmanager
def audio_in(field: str) -> Iterator[None]:
    """Name the field in an error of the block's audio."""
    try:
        yield
    except AudioError as error:
        raise type(error)(f"{field}: {error.message}") from error


class Transcripts(dict[str, tuple[int, str]]):
    """Transcripts of spoken responses, in memory, by the unguessable id of their audio."""

    def keep(self, audio_id: str, text: str) -> int:
        expires_s = int(time.time()) + TRANSCRIPT_LIFE_S
        self[audio_id] = expires_s, text
        if len(self) > TRANSCRIPTS_MAX:
            del self[next(iter(self))]
        return expires_s

    def find(self, audio_id: str) -> str | None:
        expires_s, text = self.get(audio_id, (0, ""))
        return text if expires_s > time.time() else None


class Clips(dict[str, bytes]):
    """Spoken suggestions, in memory, by an id of all that they depend on."""

    async def kept(
        self, clip_id: str, body: AsyncGenerator[str | bytes]
    ) -> AsyncGenerator[str | bytes]:
        """Yield a clip, and keep it if it was yielded whole; beyond `CLIPS_MAX` drop the oldest."""
        parts: list[bytes] = []
        async with aclosing(body):
            async for part in body:
                parts.append(part.encode() if isinstance(part, str) else part)
                yield part
        self[clip_id] = b"".join(parts)
        if len(self) > CLIPS_MAX:
            del self[next(iter(self))]


def worker_request(
    params: asked.CompletionRequest, text: str, voices: VoiceLibrary, transcripts: Transcripts
) -> tuple[str, float]:
    """Return the JSON of a `ChatSocketRequest`, and the length of its audio without videos, s."""
    content = _Content(text, voices, transcripts)
    messages = list(_history(params.messages, content))
    if params.prompt:
        text_of_prompt, first = content.prompt(params), messages[0]
        if first.role is wire.Role.SYSTEM:
            apart = wire.TextContent(text=f"\n{text_of_prompt}")  # parts are joined by a line feed
            messages[0] = wire.Message(role=wire.Role.SYSTEM, content=[*first.content, apart])
        else:
            messages.insert(0, wire.Message(role=wire.Role.SYSTEM, content=text_of_prompt))
    sampling: dict[str, object] = {
        "max_new_tokens": params.token_limit,
        "do_sample": 0 not in (params.temperature, params.top_p),
    }
    given = {"temperature": params.temperature, "top_p": params.top_p or None}
    sampling |= {name: value for name, value in given.items() if value is not None}
    voice = voices.audio_of(params.answer_audio.voice_name) if params.speaks else None
    request = ChatSocketRequest(
        messages=messages,
        streaming=True,
        generation=wire.GenerationConfig.model_validate(sampling),
        tts=wire.TTSConfig(enabled=params.speaks, ref_audio_data=voice),
        use_tts_template=params.speaks,
        reply_start=params.reply_start,
        seed=params.seed,
    )
    return LongText.of(request.to_json(), content.strings), content.audio_s


def _history(params: Sequence[asked.ChatMessage], content: _Content) -> Iterator[wire.Message]:
    calls: list[str] = []
    outputs: dict[int, str] = {}  # by the index of their call
    for index, message in enumerate(params):
        where = f"messages[{index}]"
        if message.role == "tool":
            if message.tool_call_id not in calls:
                raise BadRequestError(f"{where}.tool_call_id: no earlier call has this id.")
            outputs[calls.index(message.tool_call_id)] = content.text(where, message)
            continue
        if outputs:
            yield _returned(outputs)
            outputs = {}
        calls = [call.id for call in message.tool_calls or ()] or calls
        role = wire.Role.SYSTEM if message.role == "developer" else wire.Role(message.role)
        yield wire.Message(role=role, content=list(content.items(where, message)))
    if outputs:
        yield _returned(outputs)


def _returned(outputs: Mapping[int, str]) -> wire.Message:
    texts = [outputs_text([text]) for _, text in sorted(outputs.items())]
    return wire.Message(
        role=wire.Role.USER, content=[wire.TextContent(text=text) for text in texts]
    )


@dataclass(eq=False)
class _Content:
    source: str  # the client's request
    voices: VoiceLibrary
    transcripts: Transcripts
    strings: LongStrings = field(default_factory=LongStrings)
    audio_s: float = 0.0

    def text(self, where: str, message: asked.ChatMessage) -> str:
        items = list(self.items(where, message))
        if not all(isinstance(item, wire.TextContent) for item in items):
            raise BadRequestError(f"{where}.content: the output of a tool is text.")
        return "\n".join(item.text for item in items if isinstance(item, wire.TextContent))

    def prompt(self, params: asked.CompletionRequest) -> str:
        long, text = self.source, params.prompt
        filled = "".join(long.with_text(text).parts()) if isinstance(long, LongText) else text
        if params.json_format is not None and filled != text:
            raise BadRequestError(f"{asked.SCHEMA}: a string in it is longer than {LONG_CHARS}.")
        return _checked(filled, "tools" if params.offer.functions else "response_format")

    def items(self, where: str, message: asked.ChatMessage) -> Iterator[wire.ContentItem]:
        if message.content is None and message.audio is not None:
            said = self.transcripts.find(message.audio.id)
            if said is None:
                raise BadRequestError(
                    f"{where}.audio.id: this response is no longer stored; send its text."
                )
            yield wire.TextContent(text=said)
        elif isinstance(message.content, str):
            yield wire.TextContent(text=self._whole(message.content, f"{where}.content"))
        elif message.content is None:
            yield from () if message.tool_calls else (wire.TextContent(text=""),)
        else:
            for number, part in enumerate(message.content):
                yield self._item(f"{where}.content[{number}]", part)
        for number, call in enumerate(message.tool_calls or ()):
            at = f"{where}.tool_calls[{number}].function.arguments"
            made = call_text(call.function.name, self._whole(call.function.arguments, at))
            yield wire.TextContent(text=made)

    def _item(self, where: str, part: asked.Part) -> wire.ContentItem:
        match part:
            case asked.TextPart(text=text) | asked.RefusalPart(refusal=text):
                return wire.TextContent(text=self._whole(text, f"{where}.text"))
            case asked.ImagePart(image_url=url):
                return wire.ImageContent(data=self._data_url(url.url, f"{where}.image_url.url"))
            case asked.VideoPart(video_url=url):
                return wire.VideoContent(data=self._data_url(url.url, f"{where}.video_url.url"))
            case asked.AudioPart(input_audio=audio):
                field = f"{where}.input_audio.data"
                file = _decoded(self._parts(audio.data), field)
                with audio_in(field):
                    samples = self.voices.decoder.read(file, limits.CHAT_AUDIO_MAX_S).samples
                self.audio_s += len(samples) / limits.SAMPLE_BYTES / limits.INPUT_SAMPLE_RATE_HZ
                cuts = range(0, len(samples), BYTES_AT_ONCE)
                pieces = [b64encode_as_string(samples[at : at + BYTES_AT_ONCE]) for at in cuts]
                return wire.AudioContent(data=self.strings.put(pieces))

    def _data_url(self, string: str, where: str) -> str:
        first, *others = self._parts(string)
        head, comma, data = first.partition(",")
        if not comma or not head.startswith("data:") or not head.endswith(";base64"):
            raise BadRequestError(
                f"{where}: send the file as data:TYPE;base64,DATA; URLs are not fetched."
            )
        return self.strings.put([data, *others])

    def _parts(self, string: str) -> list[str]:
        text = self.source
        return list(text.value(string)) if isinstance(text, LongText) else [string]

    def _whole(self, string: str, where: str) -> str:
        return _checked("".join(self._parts(string)), where)


def _checked(text: str, where: str) -> str:
    if len(text) > TEXT_CHARS:
        raise BadRequestError(f"{where}: longer than {TEXT_CHARS} characters.")
    return text


def _decoded(parts: Iterable[str], where: str) -> bytes:
    made, left = bytearray(), ""
    try:
        for part in parts:
            left += part
            end = len(left) - len(left) % BASE64_GROUP
            made += b64decode(left[:end], validate=True)
            left = left[end:]
        made += b64decode(left, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError(f"{where}: not valid Base64.") from None
    return bytes(made)
