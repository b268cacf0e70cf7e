"""The section of the configuration for WebRTC."""

from __future__ import annotations

from ipaddress import IPv4Address

from pydantic import Field, field_validator

from settings.fields import Port, Section

PORTS_PATTERN = r"^(\d{4,5}-\d{4,5})?$"
LAST_PORT = 65_535


class WebRtcSettings(Section):
    """Calls over WebRTC; they need the extra `webrtc`."""

    enabled: bool = Field(False, description="Start the process that serves WebRTC.")
    host: str = Field(
        "127.0.0.1", min_length=1, description="Address it binds to, for the gateway."
    )
    port: Port = Field(22_390, description="Its port, for the gateway.")
    max_peers: int = Field(16, ge=1, le=256, description="Calls over WebRTC at once.")
    ice_timeout_s: float = Field(
        30, gt=0, le=300, description="A peer that has not connected after this is dropped, s."
    )
    udp_ports: str = Field(
        "",
        pattern=PORTS_PATTERN,
        description="UDP ports of the calls, as 50000-50099; empty: any. A call takes one for each "
        "address of this machine.",
    )
    public_address: str | None = Field(
        None, description="IPv4 that peers reach this machine by, where that is not its own."
    )

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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"
