"""Estimates of waits, and the models of the queue's status.

No I/O, no clock: durations are measured elsewhere.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.queue import RequestType

OVERRUN_FLOOR_S = 15.0  # assumed of an overrun task; docs/specification/service.md#3.3
DEFAULT_EMA_ALPHA = 0.3  # docs/specification/service.md#3.3
DEFAULT_MIN_SAMPLES = 3  # docs/specification/service.md#3.3

Seconds = Annotated[float, Field(gt=0, le=limits.DURATION_MAX_S)]


class TicketInfo(WireModel):
    """A ticket in the queue."""

    model_config = ConfigDict(from_attributes=True)

    ticket_id: str = Field(description="Ticket id.")
    request_type: RequestType = Field(description="Request type.")
    session_id: str | None = Field(None, description="Session.")
    enqueued_at: datetime = Field(description="When it entered the queue.")
    position: int = Field(ge=0, description="1 is next, 0 is assigned.")
    estimated_wait_s: float = Field(ge=0, description="Estimated wait, s.")
    cancelled: bool = Field(False, description="Cancelled.")


class QueueItem(WireModel):
    """One waiting request."""

    ticket_id: str = Field(description="Ticket id.")
    request_type: RequestType = Field(description="Request type.")
    session_id: str | None = Field(None, description="Session.")
    position: int = Field(ge=1, description="1 is next.")
    estimated_wait_s: float = Field(ge=0, description="Estimated wait, s.")
    enqueued_at: datetime = Field(description="When it entered the queue.")
    wait_elapsed_s: float = Field(ge=0, description="Time in the queue so far, s.")


class RunningTaskInfo(WireModel):
    """A request that a worker is serving."""

    worker_id: str = Field(description="The worker.")
    request_type: RequestType = Field(description="Request type.")
    session_id: str | None = Field(None, description="Session.")
    started_at: datetime = Field(description="When it was assigned.")
    elapsed_s: float = Field(ge=0, description="Time since then, s.")
    estimated_remaining_s: float = Field(ge=0, description="Estimated time left, s.")


class QueueStatus(WireModel):
    """Answer to `GET /api/queue`."""

    queue_length: int = Field(ge=0, description="Number of waiting requests.")
    max_queue_size: int = Field(ge=0, description="Maximum number of waiting requests.")
    items: list[QueueItem] = Field(description="Waiting requests, next first.")
    running_tasks: list[RunningTaskInfo] = Field(description="Requests being served.")


class EtaConfig(WireModel):
    """Expected duration of requests by type; in a patch, omitted fields are unchanged."""

    eta_chat_s: Seconds = Field(15.0, description="One chat reply, s.")
    eta_streaming_s: Seconds = Field(20.0, description="One streamed turn, s.")
    eta_half_duplex_s: Seconds = Field(180.0, description="A half-duplex session, s.")
    eta_audio_duplex_s: Seconds = Field(120.0, description="An audio duplex session, s.")
    eta_omni_duplex_s: Seconds = Field(90.0, description="An omni duplex session, s.")
    eta_duplex_s: Seconds | None = None
    """A duplex session of unspecified kind, s; null: as omni."""
    ema_alpha: float | None = Field(None, gt=0, le=1)
    """Weight of the newest duration; null: unchanged."""


class EtaStatus(WireModel):
    """Answer to `GET /api/config/eta`: settings and measurements."""

    config: EtaConfig = Field(description="Settings in force.")
    ema_alpha: float = Field(gt=0, le=1, description="Weight of the newest duration.")
    ema_chat_s: float | None = Field(None, description="Measured mean, s.")
    ema_chat_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_streaming_s: float | None = Field(None, description="Measured mean, s.")
    ema_streaming_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_half_duplex_s: float | None = Field(None, description="Measured mean, s.")
    ema_half_duplex_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_audio_duplex_s: float | None = Field(None, description="Measured mean, s.")
    ema_audio_duplex_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_omni_duplex_s: float | None = Field(None, description="Measured mean, s.")
    ema_omni_duplex_samples: int = Field(0, ge=0, description="Durations measured.")


def _field_part(kind: RequestType) -> str:
    """Return what stands for a request type in field names of `EtaConfig` and `EtaStatus`."""
    return kind.removesuffix("_audio")


class EtaTracker:
    """Expected duration of each request type: configured at first, then a moving average."""

    def __init__(
        self, eta_config: EtaConfig | None = None, min_samples: int = DEFAULT_MIN_SAMPLES
    ) -> None:
        self._config = eta_config or EtaConfig()
        self._alpha = self._config.ema_alpha or DEFAULT_EMA_ALPHA
        self._min_samples = min_samples
        self._averages: dict[RequestType, tuple[float, int]] = {}  # of how many durations

    def get_eta(self, request_type: str) -> float:
        kind, config, given = RequestType(request_type), self._config, self._config.model_fields_set
        average_s, samples = self._averages.get(kind, (0.0, 0))
        if samples >= max(1, self._min_samples):
            return average_s
        if kind is RequestType.STREAMING and "eta_streaming_s" not in given:
            if "eta_half_duplex_s" in given:  # older configurations set one value for both
                return config.eta_half_duplex_s
        expected_s: float | None = dict(config)[f"eta_{_field_part(kind)}_s"]
        return expected_s or config.eta_omni_duplex_s

    def record_duration(self, request_type: str, duration_s: float) -> None:
        if math.isfinite(duration_s) and duration_s > 0:
            kind = RequestType(request_type)
            before_s, samples = self._averages.get(kind, (duration_s, 0))
            self._averages[kind] = before_s + self._alpha * (duration_s - before_s), samples + 1

    def update_config(self, eta_config: EtaConfig) -> None:
        """Apply the fields that are set; the others and all measurements are retained."""
        given = {name: value for name, value in eta_config if name in eta_config.model_fields_set}
        alpha = given.pop("ema_alpha", None)
        self._alpha = alpha if alpha is not None else self._alpha
        self._config = self._config.model_copy(update=given)

    def get_status(self) -> EtaStatus:
        measured: dict[str, object] = {"config": self._config, "ema_alpha": self._alpha}
        for kind, (average_s, samples) in self._averages.items():
            if kind is not RequestType.DUPLEX:
                name = f"ema_{_field_part(kind)}"
                measured |= {f"{name}_s": average_s, f"{name}_samples": samples}
        return EtaStatus.model_validate(measured)


def remaining_s(eta_s: float, elapsed_s: float) -> float:
    left_s = eta_s - elapsed_s
    return left_s if left_s > 0 else OVERRUN_FLOOR_S


class Forecast:
    """Simulates the queue: each request takes the slot that becomes free first."""

    def __init__(self, free_at_s: Iterable[float], least_s: float = 0.0) -> None:
        """`free_at_s` are the times until slots become free; `least_s` is the shortest wait."""
        self._free_at_s = list(free_at_s)
        self._least_s = least_s
        heapq.heapify(self._free_at_s)

    def add(self, duration_s: float) -> float:
        """Add a request; return its estimated wait, s, to a tenth; `least_s` without any slot."""
        wait_s = self._least_s
        if self._free_at_s:
            wait_s = heapq.heapreplace(self._free_at_s, self._free_at_s[0] + duration_s)
        return round(max(0.0, wait_s), 1)
