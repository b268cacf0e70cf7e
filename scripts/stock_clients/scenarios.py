"""Common to all Python clients: address of the server, audio, and printing of results.

Imports only the standard library, as the clients run in their own virtual environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 120.0  # of a scenario
RATE_HZ = 24_000
PIECE_S = 0.1
PIECE_BYTES = 4_800
SILENCE = bytes(PIECE_BYTES)


@dataclass(frozen=True)
class Server:
    """Addresses of the server, and a spoken hello: 16-bit samples at 24 kHz."""

    url: str
    tls_url: str
    certificate: str
    speech: str

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    @property
    def pieces(self) -> list[bytes]:
        """The hello in pieces of 100 ms, followed by a second and a half of silence."""
        pcm = Path(self.speech).read_bytes()
        spoken = [pcm[at : at + PIECE_BYTES] for at in range(0, len(pcm), PIECE_BYTES)]
        return [*spoken, *[SILENCE] * 15]


Scenario = Callable[[Server], Awaitable[None]]


def main(scenarios: dict[str, Scenario]) -> None:
    """Run the scenarios in order; print one line of JSON for each."""
    server = Server(**json.loads(sys.argv[1]))
    for name, scenario in scenarios.items():
        try:
            asyncio.run(asyncio.wait_for(scenario(server), LIMIT_S))
            problem = ""
        except BaseException as error:  # failures of the client are results, too
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps({"scenario": name, "problem": problem}), flush=True)
