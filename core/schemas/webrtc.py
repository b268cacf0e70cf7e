"""Requests of the gateway to the WebRTC process, and its responses."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from core.schemas.common import WireModel

CALLS_PATH: Final = "/calls"
SDP_MAX_CHARS: Final = 64 * 1024  # ours; Chromium's offers have some 2,000


class CallOffer(WireModel):
    """A client's offer and the parameters of its WebSocket."""

    protocol: Literal["realtime", "live"] = Field(description="The client's protocol.")
    sdp: str = Field(description="The offer.")
    # Any: JSON, validated by the worker.
    session: dict[str, Any] = Field({}, description="The session's settings.")
    model: str | None = Field(None, description="The requested model.")
    key: str = Field("", description="An API key or a client secret.")
    client: str = Field("", description="The client's address, for its limits.")


class CallAnswer(WireModel):
    """The established call."""

    call_id: str = Field(description="`rtc_…`, or the id of a GPT-Live session.")
    sdp: str = Field(description="The answer, complete with candidates.")
