"""Workers' names, and addresses: `host:port`, or `dns:NAME:PORT` for every address of NAME."""

from __future__ import annotations

import os
import re
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator

from core.addresses import is_loopback
from core.schemas.worker import WORKER_NAME

WORKER_BASE_PORT: Final = 22_400  # source: docs/specification/service.md#4.1
LAST_PORT: Final = 65_535
EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_HOST: Final = r"(\[[0-9A-Fa-f:.]+\]|[^/?#@\[\]\s:]+)"
_LISTED: Final = re.compile(rf"{_HOST}(?::([0-9]{{1,5}}))?")
_NAMED: Final = re.compile(rf"dns:{_HOST}:([0-9]{{1,5}})")


class WorkerPlace(NamedTuple):
    """Address of a worker, or of one worker per DNS record of `host`."""

    host: str
    port: int
    is_looked_up: bool = False

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'dns:' * self.is_looked_up}{self.netloc}"


def host_name() -> str:
    """Return this machine's name without its domain."""
    return os.uname().nodename.partition(".")[0]


def worker_name(address: str, index: int, given: str | None = None) -> str:
    """Return a worker's name: that configured, else by its index on its machine.

    A worker that other machines reach at `address` is named after its host. Raises `ValueError`.
    """
    host = host_name()
    default = f"worker_{index}" if is_loopback(address) else f"{host}_{index}" if index else host
    name = given or default
    if not re.fullmatch(WORKER_NAME, name):
        raise ValueError(f"--name {name}: letters, digits, dots, dashes and underlines, 64 at most")
    return name


def local_address(host: str, port: int) -> str:
    """Return the "host:port" at which this machine reaches a server that listens on `host`.

    One that listens on every address is reached over loopback.
    """
    return WorkerPlace(EVERY_ADDRESS.get(host, host), port).netloc


def worker_place(text: str) -> WorkerPlace:
    """Parse `host[:port]`, `[v6][:port]` or `dns:NAME:PORT`, or raise a ValueError."""
    named = _NAMED.fullmatch(text)
    found = named or _LISTED.fullmatch(text)
    port = int(found[2] or WORKER_BASE_PORT) if found else 0
    if found is None or not 0 < port <= LAST_PORT:
        raise ValueError(f"not a worker address: {text!r}; write host:port or dns:NAME:PORT")
    return WorkerPlace(found[1].strip("[]").lower(), port, named is not None)


def _checked(text: str) -> str:
    worker_place(text)
    return text


WorkerAddress = Annotated[str, AfterValidator(_checked)]
"""A valid worker address."""
