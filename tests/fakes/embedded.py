"""The embedded model, assembled once for all tests that serve it."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from core.nano_assets import SOURCE, assemble
from core.sums import SUMS_FILE
from tests.source_tree import ROOT

NANO = ROOT / "data" / "nano"  # where `./start_all.sh` keeps it too


def nano_checkpoint() -> Path:
    """Return the embedded model, assembled if need be by one process of the test run."""
    NANO.parent.mkdir(exist_ok=True)
    with NANO.with_name("nano.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sums = NANO / SUMS_FILE
        if not sums.is_file() or sums.read_bytes() != (SOURCE / SUMS_FILE).read_bytes():
            partial = NANO.with_name("nano.partial")
            shutil.rmtree(partial, ignore_errors=True)
            assemble(partial, earlier=NANO)
            shutil.rmtree(NANO, ignore_errors=True)
            partial.replace(NANO)
    return NANO
