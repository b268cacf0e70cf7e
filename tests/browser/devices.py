"""Microphones and cameras as tests want them, and what they and the loudspeaker carried."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import BrowserContext, Page

from benchmarks.page_tap import METER, TAP
from tests.browser.browsers import Permission
from tests.browser.media_files import INPUT_RATE_HZ
from tests.system.client import Samples

INJECT = Path(__file__).with_name("inject")
AUDIBLE_RMS = 0.003  # of full scale, some -50 dB
PIECE_MS = 10.0  # of the meter
WAIT_LIMIT_MS = 120_000  # generous, for the machine may be busy

Device = Literal["microphone", "camera"]
State = Literal["file", "none", "busy"]


@dataclass(frozen=True)
class Devices:
    """What a page finds.

    Attributes:
        microphone: "file" plays `speech` for ever, "scripted" is silent until a test says
            something, "none" is not there, "busy" belongs to another program.
        camera: likewise; "file" shows a ball that crosses the picture.
        permission: what the user answers when asked for either.
        speech: WAV file the microphone plays as it is; None: eight seconds of a voice.
        has_tap: what is played is measured, see `played`.
    """

    microphone: Literal["file", "scripted", "none", "busy"] = "file"
    camera: State = "file"
    permission: Permission = "granted"
    speech: Path | None = None
    has_tap: bool = False


@dataclass(frozen=True)
class Piece:
    """Ten milliseconds of sound.

    Attributes:
        at_ms: when they began, on the page's `performance.now()`.
        rms: how loud, of full scale.
    """

    at_ms: float
    rms: float

    @property
    def is_audible(self) -> bool:
        """A person would hear it."""
        return self.rms > AUDIBLE_RMS


def needs_meter(devices: Devices) -> bool:
    """Whether sound is measured: by a worklet that the page's own policy would not let in."""
    return devices.has_tap or devices.microphone == "scripted"


def install(context: BrowserContext, devices: Devices) -> None:
    """Put the devices into every page of a context; no page may be open yet."""
    speech = base64.b64encode(devices.speech.read_bytes()).decode() if devices.speech else ""
    plan = json.dumps(
        {"microphone": devices.microphone, "camera": devices.camera, "speech": speech}
    )
    # A worklet comes from an address: the script makes one of its text, see `needs_meter`.
    context.add_init_script(f"window.__meter = {json.dumps(METER.read_text('utf8'))};")
    script = (INJECT / "devices.js").read_text("utf8")
    context.add_init_script(script.replace("PLAN;", f"{plan};", 1))
    if devices.has_tap:
        context.add_init_script(TAP.read_text("utf8"))


def keep_voice(page: Page, name: str, samples: Samples) -> None:
    """Give the scripted microphone something to say: sound of 16 kHz that begins at once."""
    text = base64.b64encode(samples.astype("<f4").tobytes()).decode()
    page.evaluate(
        "([name, text, rateHz]) => __devices.keep(name, text, rateHz)", [name, text, INPUT_RATE_HZ]
    )


def say(page: Page, name: str) -> float:
    """Say it into the scripted microphone.

    Returns:
        When its first audible sound left the microphone, on the page's `performance.now()`, ms.
    """
    onset_ms: float = page.evaluate("(name) => __devices.say(name)", name)
    return onset_ms


def said(page: Page) -> list[Piece]:
    """Return everything the scripted microphone gave."""
    return _pieces(page, "__devices.said()")


def played(page: Page) -> list[Piece]:
    """Return everything the loudspeaker got; needs `Devices(has_tap=True)`."""
    return _pieces(page, "__tap.frames")


def now_ms(page: Page) -> float:
    """Return the page's `performance.now()`."""
    now: float = page.evaluate("performance.now()")
    return now


def unplug(page: Page, device: Device) -> None:
    """Pull the plug: tracks end, and the device is gone."""
    page.evaluate("(device) => __devices.unplug(device)", device)


def become(page: Page, device: Device, state: State) -> None:
    """Change how a device is from now on."""
    page.evaluate("([device, state]) => __devices.become(device, state)", [device, state])


def held_tracks(page: Page, device: Device) -> int:
    """Return how many tracks of a device the page holds open."""
    count: int = page.evaluate("(device) => __devices.held(device)", device)
    return count


def wait_until_playing(page: Page, since_ms: float = 0, limit_ms: float = WAIT_LIMIT_MS) -> None:
    """Wait until the loudspeaker gets something audible."""
    page.wait_for_function(
        "([sinceMs, rms]) => __tap.frames.some((f) => f.atMs >= sinceMs && f.rms > rms)",
        arg=[since_ms, AUDIBLE_RMS],
        timeout=limit_ms,
    )


def wait_until_quiet(page: Page, quiet_ms: float = 300, limit_ms: float = WAIT_LIMIT_MS) -> None:
    """Wait until the loudspeaker has been silent for a while."""
    page.wait_for_function(
        """([quietMs, rms]) => {
            const last = __tap.frames.findLast((frame) => frame.rms > rms);
            return !last || performance.now() - last.atMs > quietMs;
        }""",
        arg=[quiet_ms, AUDIBLE_RMS],
        timeout=limit_ms,
    )


def last_audible_ms(pieces: list[Piece], since_ms: float = 0) -> float | None:
    """Return when the last audible piece ended, None if none is."""
    ends = [piece.at_ms + PIECE_MS for piece in pieces if piece.is_audible]
    return max((end for end in ends if end >= since_ms), default=None)


def _pieces(page: Page, expression: str) -> list[Piece]:
    rows = page.evaluate(f"{expression}.map((frame) => [frame.atMs, frame.rms])")
    return [Piece(*row) for row in rows]
