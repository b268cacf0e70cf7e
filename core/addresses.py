"""IP addresses in text, and whether a host is only reachable from this machine."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

LOCAL_NAME: Final = "localhost"


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address without its zone, one mapped into IPv6 as IPv4; None for other texts."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether a host name or address is only reachable from this machine."""
    address = address_of(host)
    return host == LOCAL_NAME or (address is not None and address.is_loopback)
