"""What the gateway asks of the WebRTC process, and what that answers."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from core.schemas.common import WireModel

CALLS_PATH: Final = "/calls"
SDP_MAX_CHARS: Final = 64 * 1024  # ours; Chromium's offers have some 2,000


class CallOffer(WireModel):
    """A client's offer, with what opens its WebSocket."""

    protocol: Literal["realtime", "live"]
    sdp: str
    # Any: JSON, checked where the session is.
    session: dict[str, Any] = Field(default_factory=dict)
    model: str | None = None
    key: str = ""
    client: str = Field("", description="The client's address, for its limits.")


class CallAnswer(WireModel):
    """The call that was begun."""

    call_id: str
    sdp: str
