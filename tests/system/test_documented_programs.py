"""The programs in the documentation run as they stand, against a system as it ships."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from core.files import TOKEN_FILE
from tests.documents import blocks
from tests.source_tree import ROOT
from tests.system.running import LIMIT_S, RunningSystem
from tests.system.test_browser_clients import node

HOST = "http://localhost:8006"  # as written in the programs
TOKEN = "data/admin_token"
SOCKETS = "--experimental-websocket"  # node 20 has them behind this; the next versions as they are
RUNNERS = {
    "python": (sys.executable, "-c"),
    "javascript": (node(), SOCKETS, "--input-type=module", "--eval"),
    "sh": ("bash", "-euc"),
}


@pytest.mark.parametrize(
    ("page", "number", "said"),
    [
        ("talk.md", 0, "says '"),
        ("talk.md", 1, "twelve"),
        ("talk.md", 2, "says '"),
        ("talk.md", 3, "twelve"),
        ("talk.md", 4, "I "),
        ("talk.md", 5, '"queue_length":0'),
        ("openai.md", 0, "hear you"),
        ("openai-realtime.md", 0, "response.done"),
        ("operate.md", 3, "draining"),
    ],
)
def test_a_program_runs_as_it_stands(
    shipped: RunningSystem, page: str, number: int, said: str
) -> None:
    block = blocks(page)[number]
    text = block.text.replace(HOST, shipped.url).replace(TOKEN, str(shipped.data / TOKEN_FILE))
    text = text.replace(HOST.replace("http", "ws"), shipped.ws(""))
    done = subprocess.run(
        [*RUNNERS[block.language], text],
        cwd=ROOT,
        env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout, done.stdout


@pytest.mark.parametrize(("example", "number"), [("duplex.py", 0), ("duplex.mjs", 2)])
def test_the_first_programs_are_the_examples(example: str, number: int) -> None:
    text = (ROOT / "examples" / example).read_text(encoding="utf8")
    assert blocks("talk.md")[number].text == text.replace('"../static', '"./static')
