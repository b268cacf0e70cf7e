"""Speech of an endpoint in place of the bundled voice."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from core.cascade.synthesis import LEAD_S, PAUSE_S, SpeechEndpoint
from core.errors import GenerationFailedError
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ

QUIET, LOUD = np.zeros(OUTPUT_SAMPLE_RATE_HZ, "<i2"), np.full(OUTPUT_SAMPLE_RATE_HZ, 8_192, "<i2")


def endpoint(answer: httpx.Response, seen: list[httpx.Request] | None = None) -> SpeechEndpoint:
    def respond(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        return answer

    transport = httpx.MockTransport(respond)
    return SpeechEndpoint("http://voice/v1/", "large", "anna", "secret", transport)


def test_a_speech_endpoint_is_asked_as_openais_is() -> None:
    seen: list[httpx.Request] = []
    sound = np.concatenate([QUIET, LOUD, QUIET]).tobytes()
    wave = endpoint(httpx.Response(200, content=sound), seen).speak("*Hello.*")
    [request] = seen
    assert str(request.url) == "http://voice/v1/audio/speech"
    assert request.headers["Authorization"] == "Bearer secret"
    assert json.loads(request.content) == {
        "model": "large",
        "voice": "anna",
        "response_format": "pcm",
        "input": "Hello.",
    }
    assert wave.dtype == np.float32 and wave.max() == 0.25
    assert len(wave) / OUTPUT_SAMPLE_RATE_HZ == pytest.approx(LEAD_S + 1 + PAUSE_S, abs=0.001)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("It's 5*3 = 15.", "It's 5 × 3 = 15."),
        ("So 10 - 4 = 6.", "So 10 minus 4 = 6."),
        ("It is 20 − 8, so 12.", "It is 20 minus 8, so 12."),
        ("From 10 - 14 years.", "From 10 - 14 years."),
        ("Indeed, 8 > 5.", "Indeed, 8 > 5."),
        ("> Quoted.", "Quoted."),
        ("You are #1!", "You are #1!"),
        ("# Title", "Title"),
        ("See [the page](https://example.com/a).", "See the page."),
        # Whose length otherwise costs its square.
        ("One.\n \n\n\n> Two.   Three.", "One.\n  Two. Three."),
        ("See [![the page](a.png)](b).", "See  the page (b)."),
    ],
)
def test_markup_is_not_spoken_and_signs_are(text: str, spoken: str) -> None:
    seen: list[httpx.Request] = []
    endpoint(httpx.Response(200, content=LOUD.tobytes()), seen).speak(text)
    assert json.loads(seen[0].content)["input"] == spoken


def test_nothing_pronounceable_is_not_asked_for() -> None:
    seen: list[httpx.Request] = []
    assert not len(endpoint(httpx.Response(200), seen).speak(" ** ")) and not seen


@pytest.mark.parametrize("content", [b"", b"\0", QUIET.tobytes()])
def test_silence_is_no_speech(content: bytes) -> None:
    assert not len(endpoint(httpx.Response(200, content=content)).speak("Hello."))


def test_a_refusal_says_why() -> None:
    refusing = endpoint(httpx.Response(404, text="no such voice"))
    with pytest.raises(GenerationFailedError, match="refused the request: 404 no such voice"):
        refusing.speak("Hello.")


def test_an_endpoint_that_is_not_there_says_so() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    speaking = SpeechEndpoint("http://voice/v1", "m", "v", transport=httpx.MockTransport(refuse))
    with pytest.raises(GenerationFailedError, match="does not answer: refused"):
        speaking.speak("Hello.")
