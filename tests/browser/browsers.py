"""Debian's Chromium, started once for each set of fake devices and permissions."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Playwright

from tests.source_tree import ROOT

INSECURE_HOST = "insecure.test"
"""Leads to this machine; a browser gives a page from there no microphone."""

QUIET_FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    # Nothing but this machine can be reached.
    f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1, MAP * ~NOTFOUND, "
    "EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
MAX_OPEN = 2  # browsers at once; each takes some 300 MB

Permission = Literal["granted", "denied", "dismissed"]
PERMISSION_FLAGS: dict[str, tuple[str, ...]] = {
    "granted": ("--use-fake-ui-for-media-stream",),
    "denied": ("--use-fake-ui-for-media-stream=deny",),
    "dismissed": (),  # without a window nobody answers the question
}


@dataclass(frozen=True)
class BrowserKind:
    """What cannot be changed once a browser runs.

    Attributes:
        speech: WAV file the fake microphone plays, again and again; None beeps.
        film: .y4m file the fake camera shows; None shows a test picture.
        permission: what it answers when a page asks for microphone or camera.
    """

    speech: Path | None = None
    film: Path | None = None
    permission: Permission = "granted"

    @property
    def flags(self) -> list[str]:
        """Of the command line."""
        flags = [*QUIET_FLAGS, "--use-fake-device-for-media-stream"]
        flags += PERMISSION_FLAGS[self.permission]
        if self.speech:
            flags.append(f"--use-file-for-fake-audio-capture={self.speech}")
        if self.film:
            flags.append(f"--use-file-for-fake-video-capture={self.film}")
        return flags


def find_chromium() -> str:
    """Return the path of Chromium; without one the test fails, for it must not go unnoticed."""
    script = ROOT / "scripts" / "find_chromium.sh"
    found = subprocess.run(
        [shutil.which("bash") or "bash", str(script), "--look-only"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.fail(found.stderr.strip(), pytrace=False)
    return found.stdout.strip()


class BrowserPool:
    """The browsers that run; the one used longest ago is closed for a new one."""

    def __init__(self, playwright: Playwright) -> None:
        """Find Chromium; nothing is started yet."""
        self._playwright = playwright
        self._path = find_chromium()
        self._open: dict[BrowserKind, Browser] = {}

    def get(self, kind: BrowserKind) -> Browser:
        """Return a running browser."""
        browser = self._open.pop(kind, None)
        if browser is None or not browser.is_connected():
            while len(self._open) >= MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            browser = self._playwright.chromium.launch(
                executable_path=self._path,
                args=kind.flags,
                chromium_sandbox=os.getuid() != 0,  # root cannot have it
            )
        self._open[kind] = browser  # the last used stands last
        return browser

    def close(self) -> None:
        """Close them all."""
        for browser in self._open.values():
            browser.close()
        self._open.clear()
