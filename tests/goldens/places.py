"""Folders with recordings on this machine; imported by the test header, so it imports little."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

COMMITTED = ROOT / "tests" / "golden"
"""Small files of record that live in the repository."""

COMPACT = COMMITTED / "recordings"
"""A subset small enough to live in the repository."""

FULL = ROOT.parent / "shared" / "goldens"
"""The full set, if it was unpacked beside the repository."""

VARIABLE = "MINICPMO_GOLDENS"
"""Environment variable that names one more folder."""


def recordings() -> dict[str, Path]:
    found = {}
    if any(COMPACT.glob("*.safetensors")):
        found["compact"] = COMPACT
    if FULL.is_dir():
        found["full"] = FULL
    named = os.environ.get(VARIABLE)
    if named:
        found["named"] = Path(named)
    return found
