"""OpenAI's sockets at the gateway: an uploaded voice is put beside its name, all else passes."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from core.protocols.realtime_session import OutputConfig, SessionConfig
from core.schemas.realtime import SessionUpdate, parse_event
from gateway_modules.openai.sessions import with_voice
from gateway_modules.voices import VoiceLibrary
from gateway_modules.web.messages import LongText, parts_of


class Voices:
    """A library with one voice."""

    def audio_of(self, name: str) -> str | None:
        return "AAAA" if name == "Ada" else None


VOICES = cast(VoiceLibrary, Voices())


def event(voice: Any, part: str = "session") -> str:
    return json.dumps({"type": "x", part: {"audio": {"output": {"voice": voice}}}})


@pytest.mark.parametrize("part", ["session", "response"])
@pytest.mark.parametrize("voice", ["Ada", {"id": "Ada"}])
def test_an_uploaded_voice_goes_along(part: str, voice: Any) -> None:
    told = json.loads(with_voice(event(voice, part), VOICES))
    assert told[part]["audio"]["output"] == {"voice": voice, "voice_sample": "AAAA"}


def test_the_long_strings_of_an_event_stay_beside_its_voice() -> None:
    response = {"audio": {"output": {"voice": "Ada"}}, "instructions": "LONG"}
    text = LongText.of(json.dumps({"response": response}), {"LONG": ("Be ", "kind.")})
    told = json.loads("".join(parts_of(with_voice(text, VOICES))))
    assert told["response"]["instructions"] == "Be kind."
    assert told["response"]["audio"]["output"]["voice_sample"] == "AAAA"


def test_an_uploaded_voice_goes_along_in_the_betas_spelling_too() -> None:
    session = {"voice": "Ada", "audio": {"input": {"format": {"type": "audio/pcm"}}}}
    sent = parse_event(
        with_voice(json.dumps({"type": "session.update", "session": session}), VOICES)
    )
    assert isinstance(sent, SessionUpdate)
    output = SessionConfig(OutputConfig("")).patched(sent.session).output
    assert (output.voice, output.voice_sample) == ("Ada", "AAAA")


@pytest.mark.parametrize(
    "text",
    [
        event("marin"),
        '{"session": {"voice": "marin"}}',
        event({"id": 7}),
        event(None),
        '{"session": {"audio": "voice"}}',
        '["voice"]',
        "no JSON",
        "[" * 100_001,
        '{"a":' * 5_000,
    ],
)
def test_anything_else_stays_as_it_came(text: str) -> None:
    assert with_voice(text, VOICES) is text
