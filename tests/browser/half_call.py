"""What tests of the half-duplex page say and look for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from playwright.sync_api import Locator, Page, WebSocket, expect

from tests.browser.devices import (
    AUDIBLE_RMS,
    Devices,
    keep_voice,
    now_ms,
    say,
    wait_until_playing,
)
from tests.browser.media_files import silence_16k, speech_16k
from tests.source_tree import ROOT
from tests.system.client import Samples

PATH: Final = "/half_duplex"
SETTINGS_KEY: Final = "half_duplex_settings"
SCRIPTED: Final = Devices(microphone="scripted", has_tap=True)
SPEECH_S: Final = 3
SILENCE_S: Final = 2  # well above the 0.8 s that end a turn


def texts(lang: str = "en") -> Mapping[str, str]:
    """Return the pages' words in a language."""
    catalogue: Mapping[str, str] = json.loads(
        (ROOT / "static" / "i18n" / f"{lang}.json").read_text(encoding="utf8")
    )
    return catalogue


def storage(**settings: object) -> dict[str, str]:
    """Return what the browser remembers when settings were changed before."""
    return {SETTINGS_KEY: json.dumps(settings)}


@dataclass
class Wire:
    """What went over the page's sockets, in order.

    Attributes:
        log: who said it ("page" or "server") and the message.
    """

    # Any: messages are JSON.
    log: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def of(cls, page: Page) -> Wire:
        """Listen to the sockets a page opens from now on."""
        wire = cls()

        def watch(socket: WebSocket) -> None:
            socket.on("framesent", lambda text: wire.log.append(("page", json.loads(text))))
            socket.on("framereceived", lambda text: wire.log.append(("server", json.loads(text))))

        page.on("websocket", watch)
        return wire

    def types(self, who: str | None = None) -> list[str]:
        """Return the kinds of messages, of one side or of both."""
        return [message["type"] for side, message in self.log if who in (None, side)]

    def first(self, kind: str) -> dict[str, Any]:
        """Return the first message of a kind."""
        return next(message for _, message in self.log if message["type"] == kind)


def question() -> Samples:
    """Return a few seconds of a voice, with the silence that ends a turn."""
    speech = speech_16k("question_1")[: SPEECH_S * 16_000]
    return np.concatenate([speech, silence_16k(SILENCE_S)])


def expect_activity(page: Page, *names: str) -> None:
    """Wait until the page shows one of these activities."""
    page.wait_for_function(
        "(names) => names.includes(document.getElementById('stage')?.dataset.callState)",
        arg=list(names),
    )


def click_start(page: Page) -> None:
    """Press the start button."""
    page.locator("[data-action=start]").click()


def start(page: Page) -> None:
    """Start and wait until it listens."""
    keep_voice(page, "question", question())
    click_start(page)
    expect_activity(page, "listening")


def ask(page: Page) -> None:
    """Say the question once it listens."""
    expect_activity(page, "listening")
    say(page, "question")


def hear_answer(page: Page) -> None:
    """Wait until the answer sounds; a chime or an earlier sound does not count."""
    expect_activity(page, "speaking")
    wait_until_playing(page, since_ms=now_ms(page))


def stop_answer_once_heard(page: Page) -> float:
    """Press "Stop answer" as soon as the answer sounds and return when that was, in page ms.

    The page presses it: an answer of a few seconds does not wait for a busy machine.
    """
    pressed_ms: float = page.evaluate(
        """(rms) => new Promise((resolve) => {
            const stage = document.getElementById("stage");
            let sinceMs = Infinity; // what sounded before the answer does not count
            const look = () => {
                if (stage.dataset.callState === "speaking") {
                    sinceMs = Math.min(sinceMs, performance.now());
                }
                if (!__tap.frames.some((frame) => frame.atMs >= sinceMs && frame.rms > rms)) {
                    return requestAnimationFrame(look);
                }
                document.querySelector("[data-action=interrupt]").click();
                resolve(performance.now());
            };
            look();
        })""",
        AUDIBLE_RMS,
    )
    return pressed_ms


def exchanges(page: Page, *, done: bool | None = None) -> Locator:
    """Return the turns shown: all, or those whose answer is complete or is not."""
    state = "" if done is None else f'[data-open="{str(not done).lower()}"]'
    return page.locator(f".exchange{state}")


def expect_problem(page: Page, code: str, *, place: str = "#notice", lang: str = "en") -> None:
    """Expect the sentence of a problem and its next step."""
    words = texts(lang)
    expect(page.locator(place)).to_contain_text(words[f"problem.{code}.title"])
    expect(page.locator(place)).to_contain_text(words[f"problem.{code}.next"])
