"""How many of our files a ticket passes, from the client's socket to its worker's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from tests.fakes.gateway_stage import Stage, on_stage
from tests.source_tree import ROOT

GATEWAY_FILES_MAX = 7
"""A reader who wants to follow a ticket opens no more than these."""
FILES_IN_ALL_MAX = 13
"""With those that look on or are asked one question; may only fall."""
RULES_FILES_MAX = 0

GATEWAY = ROOT / "gateway_modules"
RULES = ROOT / "core" / "protocols"
ROUTE = "routes/sockets.py"
BELOW = "web"  # the server and the client's socket, which knows no ticket
# What a ticket does not pass, though it runs meanwhile, and why.
BESIDE = {
    "administration.py": "says whether its app is switched on",
    "queue/directory.py": "asks workers how they are now and then, whoever waits",
    "relay/live_sessions.py": "finds sessions by their ids",
    "relay/telemetry.py": "counts, logs and samples; changes nothing that happens",
    "routes/http_edge.py": "checks origin and rate before the route",
    "service.py": "has the parts that the route takes",
}


@on_stage()
async def test_a_ticket_passes_few_files(stage: Stage) -> None:
    entered: dict[Path, None] = {}

    def trace(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and (entered or path == GATEWAY / ROUTE):
            entered[path] = None

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        async with stage.client("/ws/duplex/adx_trace") as client:
            await client.expect("queue_done")
    finally:
        sys.setprofile(before)
    found = [path.relative_to(GATEWAY) for path in entered if path.is_relative_to(GATEWAY)]
    names = {path.as_posix() for path in found if path.parts[0] != BELOW}
    assert {ROUTE, "relay/relay.py", "queue/worker_pool.py", "queue/worker_client.py"} <= names
    assert len(names - BESIDE.keys()) <= GATEWAY_FILES_MAX, names - BESIDE.keys()
    assert len(names) <= FILES_IN_ALL_MAX, names
    rules = [path.name for path in entered if path.is_relative_to(RULES)]
    assert len(rules) <= RULES_FILES_MAX, rules
