"""The traffic of OpenAI's sockets: nothing is read but an event's type."""

from __future__ import annotations

import re
import secrets
from typing import Final

from core.protocols.event_queueing import AUDIO, EVENT
from core.protocols.events import ClientSaid
from core.schemas.openai_errors import LAST_CODES, error_event
from core.schemas.queue import ErrorMessage, WarningMessage
from gateway_modules.line import Place
from gateway_modules.traffic import SHORT_CHARS, Link, QueueMessage, Traffic, Upward, Verdict

TYPE: Final = re.compile(r'"type"\s*:\s*"([\w.]{1,64})"')
CODE: Final = re.compile(r'"code"\s*:\s*"(\w{1,64})"')
WINDOW_CHARS: Final = 256  # ours: writers put the type first or last
APPENDS: Final = frozenset({"input_audio_buffer.append", "session.input_audio.append"})
STARTS: Final = frozenset({"session.created", "session.started"})
EVENT_ID_BYTES: Final = 10


class EventTraffic(Traffic):
    """A session of OpenAI's protocols, with one worker from its first event to its last."""

    def __init__(self, *, tells_queue: bool) -> None:
        """Begin before the first event.

        Args:
            tells_queue: the client asked for events of ours, such as its place in the queue.
        """
        self._tells_queue = tells_queue

    async def read(self, text: str) -> ClientSaid:
        """Tell sound from other events."""
        return ClientSaid(AUDIO if event_type(text) in APPENDS else EVENT, text)

    def begin(self, text: str | None) -> None:
        """The first event comes later."""

    async def opening(self, held: str, place: Place) -> Upward:
        """Pass on what was kept."""
        return Upward(held)

    async def upward(self, text: str) -> Upward:
        """Pass everything on."""
        return Upward(text)

    async def downward(self, text: str, link: Link) -> Verdict:
        """Notice the beginning, and errors that end the session."""
        if len(text) > SHORT_CHARS:
            return Verdict.PASS
        word = event_type(text)
        if word in STARTS:
            link.place.note_started()
        if word == "session.closed":
            return Verdict.LAST
        if word == "error":
            code = CODE.search(text)
            is_last = code is not None and code[1] in LAST_CODES
            return Verdict.LAST if is_last else Verdict.PASS
        return Verdict.PASS

    def spelled(self, message: QueueMessage) -> str | None:
        """Return an error as OpenAI's clients read it; they know no queue."""
        if isinstance(message, ErrorMessage | WarningMessage):
            return error_event(message, f"event_{secrets.token_hex(EVENT_ID_BYTES)}").to_json()
        return message.to_json() if self._tells_queue else None


def event_type(text: str) -> str:
    """Return an event's type by its beginning or its end; "" if neither tells."""
    found = TYPE.search(text, 0, WINDOW_CHARS) or TYPE.search(
        text, max(0, len(text) - WINDOW_CHARS)
    )
    return found[1] if found else ""
