"""How far the fetch of the embedded default's files is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from core.schemas.common import WireModel


class FetchProgress(WireModel):
    """What a fetch beside the service tells of itself."""

    state: Literal["fetching", "complete", "failed"] = Field(description="In one word.")
    done_bytes: int = Field(0, ge=0, description="Bytes that are here.")
    total_bytes: int = Field(0, ge=0, description="Bytes that were missing when it began.")
    problem: str | None = Field(None, description="Why it failed, for a person to read.")
