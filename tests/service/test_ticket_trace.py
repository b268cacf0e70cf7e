"""How many of our files a ticket passes, from the client's socket to its worker's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from tests.fakes.gateway_stage import Stage, on_stage
from tests.source_tree import ROOT

GATEWAY_FILES_MAX = 17
"""As measured; more than a reader can follow, and may only fall."""
RULES_FILES_MAX = 2

GATEWAY = ROOT / "gateway_modules"
RULES = ROOT / "core" / "protocols"
WEB = GATEWAY / "web"  # the server below the socket
# Run now and then, whoever waits.
BESIDE = {"worker_answer.py", "directory.py", "trends.py"}


@on_stage()
async def test_a_ticket_passes_no_more_files_than_a_reader_may_have_to_open(stage: Stage) -> None:
    entered: dict[Path, None] = {}

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            entered[Path(frame.f_code.co_filename)] = None

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        async with stage.client("/ws/duplex/adx_trace") as client:
            await client.expect("queue_done")
    finally:
        sys.setprofile(before)
    gateway = [path for path in entered if path.is_relative_to(GATEWAY)]
    passed = {path.name for path in gateway if not path.is_relative_to(WEB)} - BESIDE
    assert len(passed) <= GATEWAY_FILES_MAX, passed
    rules = [path.name for path in entered if path.is_relative_to(RULES)]
    assert len(rules) <= RULES_FILES_MAX, rules
