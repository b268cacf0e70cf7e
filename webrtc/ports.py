"""An event loop whose UDP sockets take their ports from a range, for firewalls and containers."""

from __future__ import annotations

import asyncio
import random
from typing import Any


class PortRangeLoop(asyncio.SelectorEventLoop):
    """aioice asks for any free port; this loop gives it one of the range."""

    def __init__(self, ports: range) -> None:
        """Begin; an empty range leaves the choice to the system."""
        super().__init__()
        self._ports = ports

    # Any: the arguments and the answer of the method that it overrides.
    async def create_datagram_endpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Bind to a free port of the range where any would do.

        Raises:
            OSError: None is free.
        """
        host, port = (kwargs.get("local_addr") or (None, 1))[:2]
        if port != 0 or not self._ports:
            return await super().create_datagram_endpoint(*args, **kwargs)
        # In an order of its own each time: a port in use is a system call to find out.
        for chosen in random.sample(self._ports, len(self._ports)):
            try:
                return await super().create_datagram_endpoint(
                    *args, **{**kwargs, "local_addr": (host, chosen)}
                )
            except OSError:
                continue
        raise OSError(f"no UDP port from {self._ports[0]} to {self._ports[-1]} is free on {host}")
