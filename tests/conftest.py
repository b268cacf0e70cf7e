"""Settings every test shares. Never import torch here: unit tests must start without it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.goldens.places import recordings

# What starts whole systems comes first: it takes longest, and others compute while it waits.
FIRST = ("tests/system", "tests/service", "tests/training")

# Files that share a running system, or what was read from all sources, go to one process.
SHARING = (
    ("tests/system/",),
    tuple(f"tests/unit/test_{name}.py" for name in ("dependencies", "house_rules", "layers")),
    tuple(
        f"tests/browser/test_{name}.py"
        for name in ("api_docs", "captures", "chinese", "conversations", "home", "pages")
    ),
    tuple(f"tests/browser/test_{name}.py" for name in ("admin", "devices", "faults", "keyboard")),
)

# Where there is no card, Triton kernels are interpreted; it is decided when they are imported.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Started in the background by a shell, the tests and all they start would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As the programs print them: laying out what structlog prints of an error by default takes seconds.
PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])

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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what collecting imports out of every garbage collection: it stays until the end.

    Looking through it again and again takes almost half of what collecting takes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let what was kept out be collected at the end: Triton's binding counts what is left."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


class SharingFiles(LoadScopeScheduling):
    """Keeps a file in one process, and all files that share something with each other."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((files[0] for files in SHARING if file.startswith(files)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Keep together what shares something where distribution is by files."""
    return SharingFiles(config, log) if config.option.dist == "loadfile" else None
