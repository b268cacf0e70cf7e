"""What the gateway asks of the WebRTC process, and what that answers."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from core.schemas.common import WireModel

CALLS_PATH: Final = "/calls"
SDP_MAX_CHARS: Final = 64 * 1024  # ours; Chromium's offers have some 2,000


class CallOffer(WireModel):
    """A client's offer, with what opens its WebSocket."""

    protocol: Literal["realtime", "live"] = Field(description="What the client speaks.")
    sdp: str = Field(description="The offer.")
    # Any: JSON, checked where the session is.
    session: dict[str, Any] = Field(default_factory=dict, description="The session's settings.")
    model: str | None = Field(None, description="The model it asked for.")
    key: str = Field("", description="An API key or a client secret.")
    client: str = Field("", description="The client's address, for its limits.")


class CallAnswer(WireModel):
    """The call that was begun."""

    call_id: str = Field(description="`rtc_…`, or the id of a GPT-Live session.")
    sdp: str = Field(description="The answer, complete with candidates.")
