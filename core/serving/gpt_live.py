"""GPT-Live at a worker: the texts of its sockets, and what its sessions begin with."""

from __future__ import annotations

import secrets
import time
from typing import Final

from core.audio import from_pcm, to_pcm
from core.errors import AudioError
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import ServerMessage
from core.protocols.events import ClientMessage
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.gpt_live_events import LiveEvents, LiveNames
from core.protocols.machine import SessionNames
from core.protocols.rebase import CountTokens
from core.schemas.gpt_live import (
    Fixture,
    FixturePlay,
    Heard,
    InputAudioAppend,
    SessionStart,
    parse_event,
)
from core.schemas.gpt_live_server import OutputAudioDelta, Spoken
from core.schemas.limits import EVENT_LIMIT_BYTES
from core.schemas.openai_errors import FieldError
from core.schemas.queue import ErrorMessage
from core.serving.client_sound import ClientSound, decode_pcm
from core.serving.wire import Endpoint

APPEND_MAX_S: Final = 10.0  # ours: more than a session can be ahead of the clock
PREFIX_BYTES: Final = 6


class GptLiveCodec:
    """Parses and writes the texts of one socket, and decodes and encodes their audio."""

    def __init__(self) -> None:
        self._sound: ClientSound | None = None  # the session has no format yet

    def endpoint(self) -> Endpoint:
        return Endpoint(self.parse, EVENT_LIMIT_BYTES, EVENT_LIMIT_BYTES, write=self.write)

    def parse(self, text: str) -> ClientMessage:
        """Return the event that a text is, its audio decoded; raises an `OmniError`."""
        event = parse_event(text)
        try:
            match event:
                case InputAudioAppend(audio=audio, event_id=name):
                    if self._sound is None:
                        return Heard(samples=b"", event_id=name)
                    heard = self._sound.decode(audio, APPEND_MAX_S)
                    return Heard(samples=to_pcm(heard), event_id=name)
                case FixturePlay(audio=audio, event_id=name):
                    samples = decode_pcm(audio)
                    return Fixture(samples=to_pcm(samples), event_id=name)
                case SessionStart() if self._sound is None:
                    wanted = event.session.audio.format
                    self._sound = ClientSound(wanted.type, wanted.rate)
        except AudioError as error:
            name = event.event_id
            raise FieldError("invalid_value", error.message, "audio", name) from error
        return event

    def write(self, message: ServerMessage) -> str:
        if isinstance(message, Spoken):
            assert self._sound is not None, "the session has begun"
            sound = self._sound.encode(from_pcm(message.samples))
            return OutputAudioDelta(delta=sound).to_json()
        if isinstance(message, ErrorMessage):  # of the serve loop, whose machine has failed
            message = LiveEvents(live_names("", ""), 0).failed(message).message
        return message.to_json()


def live_names(session_id: str, model: str, *, transcribes: bool = False) -> LiveNames:
    """Return the names of a session that begins now."""
    prefix, now_s = secrets.token_hex(PREFIX_BYTES), int(time.time())
    return LiveNames(session_id, model, prefix, now_s, transcribes)


def live_machine(
    names: SessionNames, limits: DuplexLimits, model: str, count: CountTokens, *, transcribes: bool
) -> GptLiveMachine:
    """Return the machine of a session that begins now, which serves the model of that name."""
    live = live_names(names.session_id, model, transcribes=transcribes)
    return GptLiveMachine(names, limits, live, count)
