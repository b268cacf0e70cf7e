"""Pure scheduling rules: the slot for the head of the queue, and wait estimates.

Strictly first come, first served over all request types; caches only decide *which* slot the head
gets. Durations are measured elsewhere; nothing here reads a clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from core.schemas.queue import RequestType
from gateway_modules.queue.models import EtaConfig, EtaStatus

OVERRUN_FLOOR_S = 15.0  # assumed of an overrun task; docs/specification/service.md#3.3
DEFAULT_EMA_ALPHA = 0.3  # docs/specification/service.md#4.1
DEFAULT_MIN_SAMPLES = 3  # same

ETA_NAMES: Mapping[RequestType, str] = MappingProxyType(
    {
        RequestType.CHAT: "chat",
        RequestType.STREAMING: "streaming",
        RequestType.HALF_DUPLEX_AUDIO: "half_duplex",
        RequestType.AUDIO_DUPLEX: "audio_duplex",
        RequestType.OMNI_DUPLEX: "omni_duplex",
        RequestType.DUPLEX: "duplex",
    }
)
"""The part of field names of `EtaConfig` and `EtaStatus` that stands for a request type."""


class EtaTracker:
    """Expected duration of each request type: configured at first, then a moving average."""

    def __init__(
        self,
        eta_config: EtaConfig | None = None,
        ema_alpha: float = DEFAULT_EMA_ALPHA,
        min_samples: int = DEFAULT_MIN_SAMPLES,
    ) -> None:
        """`eta_config.ema_alpha`, if set, overrides the argument; both are in (0, 1]."""
        self._config = eta_config or EtaConfig()
        self._alpha = self._config.ema_alpha or ema_alpha
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
        expected_s: float | None = dict(config)[f"eta_{ETA_NAMES[kind]}_s"]
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
                name = f"ema_{ETA_NAMES[kind]}"
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
        if not self._free_at_s:
            return round(self._least_s, 1)
        free_at_s = self._free_at_s[0]
        heapq.heapreplace(self._free_at_s, free_at_s + duration_s)
        return round(max(0.0, free_at_s), 1)


NEVER_S = float("-inf")
REFRESH_S = 0.25


class Waiting(Protocol):
    request_type: RequestType
    estimated_wait_s: float


class Occupied(Protocol):
    @property
    def available_slots(self) -> int: ...

    def occupied_s(self, eta_s: Mapping[RequestType, float]) -> list[float]: ...


class Estimates:
    """Estimated wait of each ticket, refreshed at most four times a second.

    A refresh visits every session and every ticket: 20 ms for 46,400 of them. A ticket that enters
    in between is appended.

    Attributes:
        held_until_s: Nothing is assigned before this Unix time.
    """

    def __init__(self, eta_tracker: EtaTracker) -> None:
        self.held_until_s = NEVER_S
        self._eta_tracker = eta_tracker
        self._made_s = NEVER_S
        self._forecast = Forecast(())

    def is_fresh(self, now_s: float) -> bool:
        return abs(now_s - self._made_s) < REFRESH_S

    def refresh(
        self,
        queue: Iterable[Waiting],
        workers: Collection[Occupied],
        now_s: float,
        *,
        is_forced: bool,
    ) -> None:
        if self.is_fresh(now_s) and not is_forced:
            return
        eta_s = {kind: self._eta_tracker.get_eta(kind) for kind in RequestType}
        self._made_s = now_s
        held_s = max(0.0, self.held_until_s - now_s)
        free_at_s = [max(held_s, left) for worker in workers for left in worker.occupied_s(eta_s)]
        if held_s:
            free_at_s += [held_s] * sum(worker.available_slots for worker in workers)
        self._forecast = Forecast(free_at_s, held_s)
        for ticket in queue:
            ticket.estimated_wait_s = self._forecast.add(eta_s[ticket.request_type])

    def add(self, ticket: Waiting, now_s: float) -> None:
        """Estimate the wait of the last ticket; only while `is_fresh`."""
        wait_s = self._forecast.add(self._eta_tracker.get_eta(ticket.request_type))
        ticket.estimated_wait_s = round(max(0.0, wait_s - (now_s - self._made_s)), 1)


def slot_rank(
    history_hash: str, cached_hash: str | None, last_used_s: float, running: int
) -> tuple[int, float, int]:
    """Return the sort key of a free slot for a request; the lowest is assigned, then the first.

    In this order: (1) slots whose cache holds its history, the most recent first, (2) those
    without a cache, (3) the least recently used cache. Ties go to the worker with the fewest
    sessions.

    Args:
        history_hash: The history it continues; "" if it cannot use a cache.
        cached_hash: The history in the slot's cache.
        last_used_s: When that cache was last used, `NEVER_S` if it never was.
        running: The number of sessions on the slot's worker.

    Source: docs/specification/service.md#3.4.
    """
    if history_hash and cached_hash == history_hash:
        return 0, -last_used_s, 0
    return (1, 0.0, running) if cached_hash is None else (2, last_used_s, running)
