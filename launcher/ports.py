"""Whether a port is free to listen on."""

from __future__ import annotations

import errno
import socket


class PortError(Exception):
    """A port cannot be listened on; the text says which and why."""


def check_port(host: str, port: int) -> None:
    """Try whether a server could listen on an address.

    Args:
        host: name or address to bind to.
        port: TCP port.

    Raises:
        PortError: it could not.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise PortError(f"{host} is no address of this machine: {error}") from error
    family, kind, protocol, _, address = places[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: connections of the last run that still linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise PortError(f"port {port} of {host} {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "is already in use"
    if error.errno == errno.EACCES:
        return "may be used by the administrator only; choose one above 1023"
    return f"cannot be used: {error.strerror}"
