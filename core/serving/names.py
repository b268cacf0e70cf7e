"""What a worker is called, and whether other machines reach it."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

from core.schemas.worker import WORKER_NAME

LOCAL_NAME: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, which no other machine reaches."""
    try:
        return host == LOCAL_NAME or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def worker_name(address: str, index: int, given: str | None = None) -> str:
    """Return what a worker is called in logs, metrics and recordings, and by its gateway.

    Args:
        address: that it binds to; one that other machines reach is named after this machine.
        index: among the workers of its machine.
        given: its name, if it was given one.

    Raises:
        ValueError: It cannot be called that.
    """
    host = socket.gethostname().partition(".")[0]
    default = f"worker_{index}" if is_loopback(address) else f"{host}_{index}" if index else host
    name = given or default
    if not re.fullmatch(WORKER_NAME, name):
        raise ValueError(f"--name {name}: letters, digits, dots, dashes and underlines, 64 at most")
    return name
