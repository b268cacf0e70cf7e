"""The pages' own session modules against the real system: what a browser would do, under node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.source_tree import ROOT
from tests.system.running import RunningSystem

SCRIPTS = ROOT / "tests" / "js" / "live"
LIMIT_S = 150.0


def node() -> str:
    own = Path(sys.prefix) / "bin" / "node"
    found = str(own) if own.exists() else shutil.which("node")
    assert found, "The checks of the pages need node: run scripts/setup.sh pages --with-checks."
    return found


# Any: the figures are JSON.
def run(script: str, system: RunningSystem) -> dict[str, Any]:
    """Run a script against a system; return what it measured."""
    command = [node(), str(SCRIPTS / script), system.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{script}:\n{done.stdout}\n{done.stderr}"
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_a_duplex_session_lives_its_whole_life(system: RunningSystem) -> None:
    figures = run("duplex.mjs", system)
    assert figures["turns"] >= 1 and figures["playedS"] > 0
    assert figures["kvTokens"] > 0 and figures["ttfsMs"] > 0


def test_a_half_duplex_session_answers_and_listens_again(system: RunningSystem) -> None:
    figures = run("half-duplex.mjs", system)
    assert figures["turns"] == 2 and figures["chunksGated"] > 0


def test_a_conversation_finds_its_first_turn_in_the_cache(system: RunningSystem) -> None:
    figures = run("streaming-chat.mjs", system)
    assert figures["second"]["cached"] > figures["second"]["input"]


def test_answers_stop_when_asked(crowd: RunningSystem) -> None:
    figures = run("stops.mjs", crowd)
    assert figures["turn"]["cachedTokens"] > 0
