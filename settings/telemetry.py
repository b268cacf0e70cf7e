"""Where the course of calls is told, for operators who look at traces."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from settings.fields import Section

CollectorUrl = Annotated[str, Field(pattern=r"^$|^https?://[^/?#\s]+(/[^?#\s]*)?$")]
"""The URL of a collector, or nothing."""


class TelemetrySettings(Section):
    """Traces of calls, without what is said in them."""

    endpoint: CollectorUrl = Field(
        "",
        description="Collector that takes OTLP over HTTP, such as http://collector:4318; empty: no "
        "traces.",
    )
