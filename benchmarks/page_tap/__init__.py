"""What a page plays, measured: two scripts that come into it before its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

METER: Final = Path(__file__).with_name("meter.js")
"""An audio worklet; expected as text in `window.__meter`."""

TAP: Final = Path(__file__).with_name("tap.js")
"""Puts the meter before every loudspeaker; `__tap.frames` are pieces of 10 ms."""
