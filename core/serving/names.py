"""A worker's name."""

from __future__ import annotations

import re
import socket

from core.addresses import is_loopback
from core.schemas.worker import WORKER_NAME


def worker_name(address: str, index: int, given: str | None = None) -> str:
    """Return a worker's name: that configured, else by its index on its machine.

    A worker that other machines reach at `address` is named after its host. Raises `ValueError`.
    """
    host = socket.gethostname().partition(".")[0]
    default = f"worker_{index}" if is_loopback(address) else f"{host}_{index}" if index else host
    name = given or default
    if not re.fullmatch(WORKER_NAME, name):
        raise ValueError(f"--name {name}: letters, digits, dots, dashes and underlines, 64 at most")
    return name
