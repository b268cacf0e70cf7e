"""One real system for all tests that need the model, started as a person starts it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.launched import Plan
from config import PRIVATE_UMASK
from core.sums import SUMS_FILE
from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from settings.embedded import EMBEDDED_FOLDER, TOY_FOLDER
from tests.fakes.embedded import nano_checkpoint
from tests.system.client import Samples, read_wav
from tests.system.quiet import WORKERS
from tests.system.running import RunningSystem, start_command

HEARTBEAT_S = 10.0  # a client that is there answers in time, even where six programs want each core
LARGEST_BYTES = 2 * 1024 * 1024  # of any message to the fake workers, soon exceeded
# Long enough for something to happen meanwhile.
SLOW = {"FAKE_MS": "prefill=100 unit=60 piece=600"}
RECORDINGS = Path(__file__).parents[1] / "golden" / "recordings" / "inputs"


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Gateway and one worker with the toy checkpoint; nothing of them may be left at the end."""
    plan = Plan(workers=1, backend="real", command=start_command())
    running = RunningSystem(tmp_path_factory.mktemp("system"), plan)
    # Made here, where the libraries are loaded already. That a start makes it where there is none
    # is seen in test_wheel.py. What is made beside recordings is private, as at a start.
    before = os.umask(PRIVATE_UMASK)
    write_tiny_checkpoint(running.data / TOY_FOLDER)
    os.umask(before)
    with running:
        yield running
        assert running.stop() == 0
        running.assert_nothing_left()


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Have a system with the embedded model, which has one voice and warns of any other."""
    config = {"model": {"embedded": "nano"}}
    plan = Plan(workers=1, backend="real", command=start_command(), config=config)
    running = RunningSystem(tmp_path_factory.mktemp("shipped"), plan)
    # Its start assembles the model anew, with the encoder that was fetched once for all tests.
    earlier = running.data / EMBEDDED_FOLDER
    shutil.copytree(nano_checkpoint(), earlier, ignore=shutil.ignore_patterns(SUMS_FILE))
    with running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def speech() -> Samples:
    return read_wav(RECORDINGS / "speech_8s.wav")


@pytest.fixture(scope="session")
def question() -> Samples:
    return read_wav(RECORDINGS / "question_1.wav")


@pytest.fixture(scope="session")
def voice() -> Samples:
    return read_wav(RECORDINGS / "ref_voice.wav")


@pytest.fixture(scope="session")
def frame() -> bytes:
    return (RECORDINGS / "frame_0.png").read_bytes()


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Gateway and several workers with the fake backend; nothing of them may be left either."""
    plan = Plan(
        workers=WORKERS,
        backend="fake",
        config={
            "limits": {
                "heartbeat_s": HEARTBEAT_S,
                "chat_message_bytes": LARGEST_BYTES,
                "prepare_bytes": LARGEST_BYTES,
                "live_message_bytes": LARGEST_BYTES,
            },
            "duplex": {"max_kv_tokens": 40_960},  # the bystander talks for minutes
        },
        command=(sys.executable, "-m", "tests.system.hasty_launcher"),
        variables=SLOW,
    )
    with RunningSystem(tmp_path_factory.mktemp("crowd"), plan) as running:
        yield running
        assert running.stop() == 0
        running.assert_nothing_left()
