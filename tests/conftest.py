"""Settings every test shares. Never import torch here: unit tests must start without it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests.goldens.places import recordings

# Where there is no card, Triton kernels are interpreted; it is decided when they are imported.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Started in the background by a shell, the tests and all they start would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Timing on a shared machine says nothing about the code, so no example has a deadline.
# The ordinary profile draws the same examples every time, so that a verdict can be repeated.
settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_report_header() -> str:
    """Say which recordings the numbers are compared with."""
    found = [f"{name} ({path})" for name, path in recordings().items()]
    return "recordings: " + (", ".join(found) or "none")
