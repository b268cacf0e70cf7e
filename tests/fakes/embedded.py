"""The embedded model, assembled once for all tests that serve it."""

from __future__ import annotations

import fcntl
from pathlib import Path

from core.nano_assets import assemble
from tests.source_tree import ROOT

NANO = ROOT / "data" / "nano"  # where `./start_all.sh` keeps it too


def nano_checkpoint() -> Path:
    """Return the embedded model, assembled if need be by one process of the test run."""
    NANO.parent.mkdir(exist_ok=True)
    with NANO.with_name("nano.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assemble(NANO)
    return NANO
