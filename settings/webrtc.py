"""The WebRTC section."""

from __future__ import annotations

from ipaddress import IPv4Address

from pydantic import Field, field_validator

from settings.fields import Port, Section
from settings.workers import LAST_PORT, local_address

PORTS_PATTERN = r"^(\d{4,5}-\d{4,5})?$"


class WebRtcSettings(Section):
    """Calls over WebRTC; needs the extra `webrtc`."""

    enabled: bool = False
    """Start the WebRTC process."""
    host: str = Field("127.0.0.1", min_length=1)
    """Address the WebRTC process listens on for the gateway."""
    port: Port = 22_390
    """Port the WebRTC process listens on for the gateway."""
    max_peers: int = Field(16, ge=1, le=256)
    """Concurrent WebRTC calls."""
    ice_timeout_s: float = Field(30, gt=0, le=300)
    """Time for a peer to connect, s."""
    udp_ports: str = Field("", pattern=PORTS_PATTERN)
    """UDP port range for media, such as 50000-50099; empty: any port. A call uses one port per
    local address.
    """
    public_address: str | None = None
    """Public IPv4 address, if this machine is behind NAT."""

    @field_validator("udp_ports")
    @classmethod
    def _is_range(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if value and not 1_024 <= int(first) <= int(last) <= LAST_PORT:
            raise ValueError("is FIRST-LAST, from 1024 to 65535")
        return value

    @field_validator("public_address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        return value if value is None else str(IPv4Address(value))

    @property
    def ports(self) -> range:
        """The UDP ports; empty: any."""
        first, _, last = self.udp_ports.partition("-")
        return range(int(first), int(last) + 1) if self.udp_ports else range(0)

    @property
    def url(self) -> str:
        return f"http://{local_address(self.host, self.port)}"
