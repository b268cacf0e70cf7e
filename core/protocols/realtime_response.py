"""One response of a Realtime conversation: its items and events while it is generated. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pybase64 import b64encode_as_string

from core.protocols import openai_events as events
from core.protocols.events import MS_PER_S
from core.protocols.openai_events import Json, ServerEvent
from core.protocols.realtime_items import AudioClip, Content, Item, ItemStatus, ItemStore
from core.protocols.realtime_session import NewId, OutputConfig, TurnRequest, format_wire, offer_of
from core.schemas.common import TokenStats
from core.schemas.openai_errors import error_type
from core.tools import CallArguments, CallBegun, CallDone, CallEvent, CallInvalid, CallParser, Said

Status = Literal["completed", "cancelled", "incomplete", "failed"]
DELTAS_PER_S: Final = 5  # a delta has at most 200 ms
AUDIO_TOKENS_PER_S: Final = 10  # Source: docs/specification/model.md#4.4
SPOKEN_TOKENS_PER_S: Final = 25  # Source: docs/specification/model.md#7.4
INVALID_CALL: Final = "invalid_tool_call"
ARGUMENTS: Final = "function_call_arguments"
NOTHING: Final = [(0, 0)]  # characters and bytes


@dataclass(frozen=True)
class Outcome:
    status: Status = "completed"
    reason: str = ""  # of a cancelled or incomplete response
    code: str = ""  # of a failed response
    message: str = ""  # the same for people

    @property
    def details(self) -> Json | None:
        if self.status == "completed":
            return None
        if self.status == "failed":
            kind = error_type(self.code)
            error = {"type": kind, "code": self.code, "message": self.message}
            return {"type": "failed", "error": error}
        return {"type": self.status, "reason": self.reason}


@dataclass
class _Open:
    """The output item being generated."""

    item: Item  # its content is set when it closes
    index: int  # in the response's output
    text: str = ""  # or the arguments of a call
    pcm: bytearray = field(default_factory=bytearray)  # its audio
    # End of each piece in characters and bytes.
    marks: list[tuple[int, int]] = field(default_factory=list)


class Response:
    """A response, active or queued."""

    def __init__(
        self,
        output: OutputConfig,
        new_id: NewId,
        store: ItemStore | None,
        metadata: dict[str, Any] | None,
    ) -> None:
        """`store` is the conversation; None: the response is not part of it.

        Any: `metadata` is the client's own JSON, echoed.
        """
        self.id = new_id("resp")
        self.output = output  # its settings
        self.request: TurnRequest | None = None  # request to the model
        self.items: tuple[Item, ...] | None = None  # its input; None is the conversation
        # How much of its message was played, as reported by the client.
        self.played_ms: int | None = None
        self.failure: Outcome | None = None  # set if the model's output is unusable
        self._new_id = new_id
        self._store = store
        self._metadata = metadata
        self._done: list[Item] = []
        self._open: _Open | None = None
        self._parser = CallParser(offer_of(output).names)

    @property
    def is_outside(self) -> bool:
        return self._store is None

    @property
    def has_output(self) -> bool:
        return bool(self._done) or self._open is not None

    @property
    def open_item_id(self) -> str | None:
        return None if self._open is None else self._open.item.id

    def created(self) -> ServerEvent:
        wire = self._wire("in_progress", None, None)
        return ServerEvent("response.created", {"response": wire})

    def add(self, text: str, audio: bytes) -> list[ServerEvent]:
        """Append a piece of the reply, text before audio; `mark` ends it."""
        if self.failure is not None:
            return []
        sent = [event for parsed in self._parser.feed(text) for event in self._take(parsed)]
        if self._open is not None:
            may_speak = self._open.item.kind == "message"
        else:  # where functions are offered, only after text was sent
            may_speak = not offer_of(self.output).functions
        if audio and may_speak:
            sent += self._message()
            assert self._open is not None
            self._open.pcm += audio
            spoken = self.output.format
            size = spoken.rate_hz // DELTAS_PER_S * spoken.sample_bytes
            for start in range(0, len(audio), size):
                delta = b64encode_as_string(audio[start : start + size])
                sent.append(self._event("output_audio.delta", delta=delta))
        return sent

    def mark(self) -> None:
        """Record that the text so far belongs to the audio so far."""
        if self._open is not None and len(self._open.pcm) > (self._open.marks or NOTHING)[-1][1]:
            self._open.marks.append((len(self._open.text), len(self._open.pcm)))

    def finish(self, outcome: Outcome, stats: TokenStats) -> list[ServerEvent]:
        parsed_last = self._parser.flush() if outcome.status in ("completed", "incomplete") else ()
        if outcome.status == "incomplete":  # a call that was cut short is not invalid
            parsed_last = [parsed for parsed in parsed_last if not isinstance(parsed, CallInvalid)]
        sent = [event for parsed in parsed_last for event in self._take(parsed)]
        outcome = self.failure or outcome
        is_whole = outcome.status == "completed"
        sent += self._close("completed" if is_whole else "incomplete")
        done = self._wire(outcome.status, outcome.details, self._usage(stats))
        return [*sent, ServerEvent("response.done", {"response": done})]

    def _take(self, parsed: CallEvent) -> list[ServerEvent]:
        match parsed:
            case Said(text):
                sent = self._message()
                kind = "output_audio_transcript" if self.output.speaks else "output_text"
                return [*sent, self._event(f"{kind}.delta", delta=self._grow(text))]
            case CallBegun(name):
                call_id = self._new_id("call")
                call = Item(self._new_id("item"), "function_call", call_id=call_id, name=name)
                return [*self._close("completed"), *self._begin(call)]
            case CallArguments(text):
                return [self._event(f"{ARGUMENTS}.delta", delta=self._grow(text))]
            case CallDone():
                return self._close("completed")
            case CallInvalid(reason):
                text = f"The call is not valid: {reason}."
                self.failure = Outcome("failed", code=INVALID_CALL, message=text)
                return []

    def _grow(self, text: str) -> str:
        assert self._open is not None
        self._open.text += text
        return text

    def _message(self) -> list[ServerEvent]:
        if self._open is not None:
            return []
        sent = self._begin(Item(self._new_id("item"), role="assistant"))
        return [*sent, self._event("content_part.added", part=self._part(""))]

    def _begin(self, item: Item) -> list[ServerEvent]:
        item = replace(item, status="in_progress", response_id=self.id)
        self._open = _Open(item, len(self._done))
        wire = item.wire()
        sent = [events.output_item("added", self.id, self._open.index, wire)]
        if self._store is not None:
            previous = self._store.add(item)
            sent.append(events.item_event("added", wire, previous))
        return sent

    def _close(self, status: ItemStatus) -> list[ServerEvent]:
        opened = self._open
        if opened is None:
            return []
        if opened.item.kind == "function_call":
            item = replace(opened.item, status=status, arguments=opened.text)
            sent = [self._event(f"{ARGUMENTS}.done", name=item.name, arguments=item.arguments)]
        else:
            text, revision = opened.text, 0 if status == "completed" else 1
            if self.output.speaks:
                audio = AudioClip.of(bytes(opened.pcm), self.output.format)
                content = Content("output_audio", text, audio, marks=tuple(opened.marks))
                sent = [
                    self._event("output_audio.done"),
                    self._event("output_audio_transcript.done", transcript=text),
                ]
            else:
                content = Content("output_text", text)
                sent = [self._event("output_text.done", text=text)]
            sent.append(self._event("content_part.done", part=self._part(text)))
            item = replace(opened.item, status=status, content=(content,), revision=revision)
        self._open = None
        self._done.append(item)
        wire = item.wire()
        if self._store is not None:
            is_cut = self.played_ms is not None and item.kind == "message"
            self._store.put(truncated(item, self.played_ms or 0) if is_cut else item)
            previous = self._store.previous_of(item.id)
            sent.append(events.item_event("done", wire, previous))
        return [*sent, events.output_item("done", self.id, opened.index, wire)]

    # --- wire format ---

    def _part(self, text: str) -> Json:
        if self.output.speaks:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _event(self, kind: str, **fields: str | Json) -> ServerEvent:
        assert self._open is not None
        item, index = self._open.item, self._open.index
        where = {"response_id": self.id, "item_id": item.id, "output_index": index}
        part = {"call_id": item.call_id} if item.kind == "function_call" else {"content_index": 0}
        return ServerEvent(f"response.{kind}", {**where, **part, **fields})

    def _wire(self, status: str, details: Json | None, usage: Json | None) -> Json:
        output = self.output
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.wire() for item in self._done],
            "conversation_id": None if self._store is None else self._store.conversation_id,
            "output_modalities": [output.modality],
            "max_output_tokens": output.max_output_tokens,
            "audio": {"output": {"format": format_wire(output.format), "voice": output.voice}},
            "usage": usage,
            "metadata": self._metadata,
        }

    def _usage(self, stats: TokenStats) -> Json:
        """Return token counts; those of audio are derived from its duration."""
        audio_s = self.request.input_audio_ms / MS_PER_S if self.request is not None else 0.0
        whole = stats.cached_tokens + stats.input_tokens
        audio = min(round(audio_s * AUDIO_TOKENS_PER_S), whole)
        cached_audio = min(audio, stats.cached_tokens)
        spoken_ms = sum(item.audio_ms for item in self._done)
        spoken = spoken_ms * SPOKEN_TOKENS_PER_S // MS_PER_S
        return {
            "total_tokens": whole + stats.generated_tokens + spoken,
            "input_tokens": whole,
            "output_tokens": stats.generated_tokens + spoken,
            "input_token_details": {
                "text_tokens": whole - audio,
                "audio_tokens": audio,
                "image_tokens": 0,
                "cached_tokens": stats.cached_tokens,
                "cached_tokens_details": {
                    "text_tokens": stats.cached_tokens - cached_audio,
                    "audio_tokens": cached_audio,
                    "image_tokens": 0,
                },
            },
            "output_token_details": {"text_tokens": stats.generated_tokens, "audio_tokens": spoken},
        }


def truncated(item: Item, end_ms: int) -> Item:
    """Return an assistant's message truncated to the audio that was played."""
    content = tuple(part.played(end_ms) for part in item.content)
    return replace(item, status="incomplete", content=content, revision=item.revision + 1)
