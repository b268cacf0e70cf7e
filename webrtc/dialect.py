"""Maps events between the data channel and the gateway's WebSocket; audio is separate. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.schemas.openai_errors import EVENT_ID_BYTES, INVALID_EVENT, error_event
from webrtc.playout import RATE_HZ, Note, Part, Played

PCM: Final = {"type": "audio/pcm", "rate": RATE_HZ}
SOUND_ON_CHANNEL: Final = "Sound goes over the audio track, not as events."

Json = dict[str, Any]  # Any: JSON


@dataclass(frozen=True)
class ToServer:
    text: str


@dataclass(frozen=True)
class ToClient:
    text: str


@dataclass(frozen=True)
class Play:
    """Play 16-bit mono at 24 kHz."""

    part: Part
    pcm: bytes


@dataclass(frozen=True)
class Finish:
    """A response has no more audio."""

    response_id: str


@dataclass(frozen=True)
class Flush:
    """Drop what has not been played."""

    is_asked: bool = False  # by the client, who is answered even if nothing was left


Effect = ToServer | ToClient | Play | Finish | Flush


class Realtime:
    """Realtime: reports how much was played, so that the server truncates items."""

    path = "/v1/realtime"
    append = "input_audio_buffer.append"

    def __init__(self) -> None:
        self._interrupts = True

    def opening(self, session: Json) -> str:
        settings = {"type": "realtime", **without(session, ("model",))}
        return json.dumps({"type": "session.update", "session": with_pcm(settings)})

    def from_client(self, text: str) -> list[Effect]:
        """Refuse audio, clear the playout on request, and forward everything else."""
        event = read(text)
        match event.get("type"):
            case self.append:
                return [ToClient(refusal(event, "event_id"))]
            case "output_audio_buffer.clear":
                return [Flush(is_asked=True)]
            case "session.update" if isinstance(event.get("session"), dict):
                return [ToServer(json.dumps({**event, "session": with_pcm(event["session"])}))]
            case _:
                return [ToServer(text)]

    def from_server(self, text: str) -> list[Effect]:
        event = read(text)
        passed: list[Effect] = [ToClient(text)]
        match event.get("type"):
            case "response.output_audio.delta":
                part = Part(event["response_id"], event["item_id"], event["content_index"])
                return [Play(part, decoded(event["delta"]))]
            case "response.done":
                return [*passed, Finish(event["response"]["id"])]
            case "session.created" | "session.updated":
                turns = inside(event, ("session", "audio", "input", "turn_detection"))
                self._interrupts = isinstance(turns, dict) and turns.get("interrupt_response", True)
                return passed
            case "input_audio_buffer.speech_started" if self._interrupts:
                return [*passed, Flush()]
            case _:
                return passed

    def noted(self, note: Note) -> list[Effect]:
        return [_buffer_event(note.what, note.response_id)]

    def flushed(self, flush: Flush, played: Sequence[Played]) -> list[Effect]:
        """Notify the client, and truncate the items to the played audio."""
        responses = [*dict.fromkeys(each.part.response_id for each in played)]
        if flush.is_asked and not responses:
            responses = [""]  # as over the WebSocket
        events: list[Effect] = [_buffer_event("cleared", each) for each in responses]
        for each in played:
            truncation = {
                "type": "conversation.item.truncate",
                "item_id": each.part.item_id,
                "content_index": each.part.content_index,
                "audio_end_ms": each.played_ms,
            }
            events.append(ToServer(json.dumps(truncation)))
        return events


class Live:
    """GPT-Live: the server paces its audio and stops it by itself."""

    path = "/v1/live/sessions"
    append = "session.input_audio.append"

    def opening(self, session: Json) -> str:
        audio = session.get("audio")
        audio = {**(audio if isinstance(audio, dict) else {}), "format": PCM}
        return json.dumps({"type": "session.start", "session": {**session, "audio": audio}})

    def from_client(self, text: str) -> list[Effect]:
        event = read(text)
        if event.get("type") == self.append:
            return [ToClient(refusal(event, "client_event_id"))]
        return [ToServer(text)]

    def from_server(self, text: str) -> list[Effect]:
        event = read(text)
        if event.get("type") == "session.output_audio.delta":
            return [Play(Part(), decoded(event["delta"]))]
        return [ToClient(text)]

    def noted(self, note: Note) -> list[Effect]:
        """Return nothing: the protocol has no responses."""
        return []

    def flushed(self, flush: Flush, played: Sequence[Played]) -> list[Effect]:
        """Return nothing: clients cannot request it."""
        return []


Dialect = Realtime | Live
"""One of OpenAI's protocols as it is spoken over WebRTC."""


def append_event(dialect: Dialect, pcm: bytes) -> str:
    return f'{{"type":"{dialect.append}","audio":"{base64.b64encode(pcm).decode()}"}}'


def shorter_forms(text: str) -> Iterator[str]:
    """Yield an event, then what to send instead if the peer accepts no message of that length."""
    yield text
    event = read(text)
    kind = event.get("type")
    if kind == "conversation.item.retrieved":
        item = event["item"]
        content = [without(part, ("audio",)) for part in item.get("content", ())]
        yield json.dumps({**event, "item": {**item, "content": content}})
    why = f"'{kind}' of {len(text.encode())} bytes is not sent: it exceeds your max-message-size."
    yield error_event(INVALID_EVENT, why)


def read(text: str) -> Json:
    """Parse an event; {} if it is invalid, which the server reports."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def decoded(sound: str) -> bytes:
    """Decode Base64; empty if it is invalid."""
    try:
        return base64.b64decode(sound)
    except binascii.Error:
        return b""


def without(session: Json, names: Sequence[str]) -> Json:
    return {name: value for name, value in session.items() if name not in names}


def with_pcm(session: Json) -> Json:
    """Return a session's settings with the audio formats of this process."""
    session = without(session, ("input_audio_format", "output_audio_format"))
    audio = session.get("audio")
    audio = audio if isinstance(audio, dict) else {}
    for side in ("input", "output"):
        given = audio.get(side)
        audio = {**audio, side: {**(given if isinstance(given, dict) else {}), "format": PCM}}
    return {**session, "audio": audio}


def inside(part: object, path: Sequence[str]) -> object:
    """Return the JSON value at a path, or None."""
    for key in path:
        part = part.get(key) if isinstance(part, dict) else None
    return part


def refusal(event: Json, names_event: str) -> str:
    """Return the error for audio on the data channel."""
    named = {names_event: event["event_id"]} if isinstance(event.get("event_id"), str) else {}
    return error_event(INVALID_EVENT, SOUND_ON_CHANNEL, **named)


def _buffer_event(word: str, response_id: str) -> ToClient:
    event = {
        "type": f"output_audio_buffer.{word}",
        "event_id": f"event_{secrets.token_hex(EVENT_ID_BYTES)}",
        "response_id": response_id,
    }
    return ToClient(json.dumps(event))
