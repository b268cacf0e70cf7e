"""The traffic of OpenAI's sockets: nothing is read but an event's type, and the name of a voice."""

from __future__ import annotations

import json
import re
import secrets
from typing import Final

from core.errors import OmniError
from core.protocols.event_queueing import AUDIO, EVENT
from core.protocols.events import ClientSaid
from core.schemas.common import check_json_shape
from core.schemas.openai_errors import LAST_CODES, error_event
from core.schemas.queue import ErrorMessage, WarningMessage
from gateway_modules.queue.ticket import Ticket
from gateway_modules.relay.traffic import SHORT_CHARS, Link, QueueMessage, Traffic, Upward, Verdict
from gateway_modules.voices.voice_library import VoiceLibrary

TYPE: Final = re.compile(r'"type"\s*:\s*"([\w.]{1,64})"')
CODE: Final = re.compile(r'"code"\s*:\s*"(\w{1,64})"')
WINDOW_CHARS: Final = 256  # ours: writers put the type first or last
APPENDS: Final = frozenset({"input_audio_buffer.append", "session.input_audio.append"})
STARTS: Final = frozenset({"session.created", "session.started"})
EVENT_ID_BYTES: Final = 10
VOICE: Final = '"voice"'
OUTPUT_PATH: Final = ("audio", "output")  # in a session or a response


class EventTraffic(Traffic):
    """A session of OpenAI's protocols, with one worker from its first event to its last."""

    def __init__(self, voices: VoiceLibrary, *, sends_queue: bool) -> None:
        self._voices = voices
        self._sends_queue = sends_queue

    async def read(self, text: str) -> ClientSaid:
        return ClientSaid(AUDIO if event_type(text) in APPENDS else EVENT, text)

    def begin(self, text: str | None) -> None:
        """The first event comes later."""

    async def opening(self, held: str, ticket: Ticket) -> Upward:
        return await self.upward(held)

    async def upward(self, text: str) -> Upward:
        """Forward everything; a worker knows no voice by its name."""
        if VOICE not in text:
            return Upward(text)
        return Upward(await self._voices.run(with_voice, text, self._voices))

    async def downward(self, text: str, link: Link) -> Verdict:
        """Note the start, and errors that end the session."""
        if len(text) > SHORT_CHARS:
            return Verdict.PASS
        word = event_type(text)
        if word in STARTS:
            link.ticket.note_started()
        if word == "session.closed":
            return Verdict.LAST
        if word == "error":
            code = CODE.search(text)
            is_last = code is not None and code[1] in LAST_CODES
            return Verdict.LAST if is_last else Verdict.PASS
        return Verdict.PASS

    def encoded(self, message: QueueMessage) -> str | None:
        """Return an error in OpenAI's format; their clients know no queue."""
        if isinstance(message, ErrorMessage | WarningMessage):
            return error_event(message, f"event_{secrets.token_hex(EVENT_ID_BYTES)}").to_json()
        return message.to_json() if self._sends_queue else None


def event_type(text: str) -> str:
    """Search an event's type in its first and last characters; "" if it is in neither."""
    found = TYPE.search(text, 0, WINDOW_CHARS) or TYPE.search(
        text, max(0, len(text) - WINDOW_CHARS)
    )
    return found[1] if found else ""


def with_voice(text: str, voices: VoiceLibrary) -> str:
    """Add the audio of the uploaded voice that an event names; other texts stay. Blocks."""
    try:
        check_json_shape(text)
        event = json.loads(text)
    except (OmniError, ValueError, RecursionError):
        return text  # the worker says what is wrong with it
    for kind in ("session", "response"):
        output = _inside(event, (kind, *OUTPUT_PATH))
        voice = _inside(output, ("voice",))
        name = _inside(voice, ("id",)) if isinstance(voice, dict) else voice
        sound = voices.sound_of(name) if isinstance(name, str) else None
        if isinstance(output, dict) and sound is not None:
            output["voice_sample"] = sound
            return json.dumps(event)
    return text


def _inside(part: object, path: tuple[str, ...]) -> object:
    for key in path:
        part = part.get(key) if isinstance(part, dict) else None
    return part
