"""Two scripts, injected before a page's own, that measure its audio output."""

from __future__ import annotations

from pathlib import Path
from typing import Final

METER: Final = Path(__file__).with_name("meter.js")
"""An audio worklet; expected as text in `window.__meter`."""

TAP: Final = Path(__file__).with_name("tap.js")
"""Inserts the meter before every audio destination; `__tap.frames` are blocks of 10 ms."""
