"""Where the workers are: "host:port" of each, and their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit

from gateway_modules.queue.worker_connection import WorkerConnection, utc_now

WORKER_BASE_PORT = 22400  # docs/specification/service.md#4.1


def workers_at(
    addresses: Sequence[str], clock: Callable[[], datetime] = utc_now
) -> dict[str, WorkerConnection]:
    """Return workers named worker_0, worker_1, ...

    Args:
        addresses: "host:port" of each; without a port, 22400 and its index.
        clock: Returns the time with its zone.

    Raises:
        ValueError: An address cannot be read or comes twice.
    """
    places = [split_address(one, WORKER_BASE_PORT + index) for index, one in enumerate(addresses)]
    if len(set(places)) < len(places):
        raise ValueError(f"a worker address comes twice: {', '.join(addresses)}")
    return {
        f"worker_{index}": WorkerConnection(f"worker_{index}", host, port, index, clock)
        for index, (host, port) in enumerate(places)
    }


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Split "host:port", "host", "[v6]:port" or "[v6]".

    Raises:
        ValueError: It is none of these.
    """
    problem = f"not a worker address: {address!r}"
    try:
        parts = urlsplit(f"//{address}")
        port = parts.port
    except ValueError as error:
        raise ValueError(problem) from error
    has_more = parts.path or parts.query or parts.username or " " in address
    if not parts.hostname or has_more:
        raise ValueError(problem)
    return parts.hostname, port or default_port
