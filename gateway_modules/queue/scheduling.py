"""Pure: which free slot the head of the queue gets, and how long each request waits.

Strictly first come, first served over all types; the cache only decides *where* the head goes.
Durations are measured elsewhere; nothing here reads a clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol

from core.schemas.queue import RequestType
from gateway_modules.queue.models import EtaConfig, EtaStatus

UNKNOWN_ETA_S = 30.0  # docs/specification/service.md#3.3
OVERRUN_FLOOR_S = 15.0  # what a task that has overrun is assumed to need; same section
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
"""Of each type, inside the names of fields of `EtaConfig` and `EtaStatus`."""


@dataclass
class _Average:
    value_s: float | None = None
    samples: int = 0

    def add(self, duration_s: float, alpha: float) -> None:
        if self.value_s is None:
            self.value_s = duration_s
        else:
            self.value_s = alpha * duration_s + (1 - alpha) * self.value_s
        self.samples += 1


class EtaTracker:
    """Knows how long each type of request takes: from settings first, from experience later."""

    def __init__(
        self,
        eta_config: EtaConfig | None = None,
        ema_alpha: float = DEFAULT_EMA_ALPHA,
        min_samples: int = DEFAULT_MIN_SAMPLES,
    ) -> None:
        """`ema_alpha` of the settings, if set, goes before the argument; both are in (0, 1]."""
        self._config = eta_config or EtaConfig()
        self._alpha = self._config.ema_alpha or ema_alpha
        self._min_samples = min_samples
        self._averages = {request_type: _Average() for request_type in RequestType}

    def get_eta(self, request_type: str) -> float:
        try:
            known = RequestType(request_type)
        except ValueError:
            return UNKNOWN_ETA_S
        average = self._averages[known]
        if average.value_s is not None and average.samples >= self._min_samples:
            return average.value_s
        return self._expected_s(known)

    def record_duration(self, request_type: str, duration_s: float) -> None:
        if not (math.isfinite(duration_s) and duration_s > 0):
            return
        try:
            known = RequestType(request_type)
        except ValueError:
            return
        self._averages[known].add(duration_s, self._alpha)

    def update_config(self, eta_config: EtaConfig) -> None:
        """Take over the fields that were given; the others and all experience stay."""
        given = {name: value for name, value in eta_config if name in eta_config.model_fields_set}
        alpha = given.pop("ema_alpha", None)
        self._alpha = alpha if alpha is not None else self._alpha
        self._config = self._config.model_copy(update=given)

    def get_status(self) -> EtaStatus:
        measured: dict[str, object] = {"config": self._config, "ema_alpha": self._alpha}
        for request_type, average in self._averages.items():
            if request_type is not RequestType.DUPLEX:
                name = f"ema_{ETA_NAMES[request_type]}"
                measured |= {f"{name}_s": average.value_s, f"{name}_samples": average.samples}
        return EtaStatus.model_validate(measured)

    def _expected_s(self, request_type: RequestType) -> float:
        config, given = self._config, self._config.model_fields_set
        if request_type is RequestType.STREAMING and "eta_streaming_s" not in given:
            if "eta_half_duplex_s" in given:  # older callers give one value for both
                return config.eta_half_duplex_s
        expected_s: float | None = dict(config)[f"eta_{ETA_NAMES[request_type]}_s"]
        return expected_s or config.eta_omni_duplex_s


def remaining_s(eta_s: float, elapsed_s: float) -> float:
    left_s = eta_s - elapsed_s
    return left_s if left_s > 0 else OVERRUN_FLOOR_S


class Forecast:
    """Plays the queue forward: each request takes the slot that becomes free first."""

    def __init__(self, running_s: Iterable[float]) -> None:
        self._free_at_s = list(running_s)
        heapq.heapify(self._free_at_s)

    def add(self, duration_s: float) -> float:
        """Add a request; return its estimated wait, s, to a tenth; 0 if no slot is occupied."""
        if not self._free_at_s:
            return 0.0
        free_at_s = self._free_at_s[0]
        heapq.heapreplace(self._free_at_s, free_at_s + duration_s)
        return round(max(0.0, free_at_s), 1)


NEVER_S = float("-inf")
REFRESH_S = 0.25


class Waiting(Protocol):
    request_type: RequestType
    estimated_wait_s: float


class Occupied(Protocol):
    def occupied_s(self, eta_s: Mapping[RequestType, float]) -> list[float]: ...


class Estimates:
    """How long each ticket waits, as of a moment ago.

    One look at every session and every waiting request takes 20 ms with 46,400 of them, so it is
    taken four times a second at most; what is drawn in between is put behind the others.
    """

    def __init__(self, eta_tracker: EtaTracker) -> None:
        self._eta_tracker = eta_tracker
        self._made_s = NEVER_S
        self._forecast = Forecast(())

    def is_fresh(self, now_s: float) -> bool:
        return abs(now_s - self._made_s) < REFRESH_S

    def refresh(
        self,
        queue: Iterable[Waiting],
        workers: Iterable[Occupied],
        now_s: float,
        *,
        is_forced: bool,
    ) -> None:
        if self.is_fresh(now_s) and not is_forced:
            return
        eta_s = {kind: self._eta_tracker.get_eta(kind) for kind in RequestType}
        self._made_s = now_s
        self._forecast = Forecast(left for worker in workers for left in worker.occupied_s(eta_s))
        for ticket in queue:
            ticket.estimated_wait_s = self._forecast.add(eta_s[ticket.request_type])

    def add(self, ticket: Waiting, now_s: float) -> None:
        """Estimate the wait of a ticket behind all others, right after `is_fresh`."""
        wait_s = self._forecast.add(self._eta_tracker.get_eta(ticket.request_type))
        ticket.estimated_wait_s = round(max(0.0, wait_s - (now_s - self._made_s)), 1)


class FreeSlot(NamedTuple):
    """A free slot: how many sessions its worker serves, and the history that it holds."""

    worker_id: str
    running: int = 0
    cached_hash: str | None = None
    last_cache_used_s: float | None = None


def _used_s(slot: FreeSlot) -> float:
    return NEVER_S if slot.last_cache_used_s is None else slot.last_cache_used_s


def route(history_hash: str, free: Sequence[FreeSlot]) -> FreeSlot | None:
    """Choose a slot for one request; None: it waits.

    In this order: (1) the slot whose cache holds its history, the freshest of several, (2) one
    without a cache, (3) the one whose cache was used longest ago. Among equals the worker that
    serves fewest sessions wins, then the order given.

    Args:
        history_hash: The history it continues; "" for a request that can use no cache.
        free: Slots that may be assigned. Of one worker's slots (2) and (3) choose the one worth
            least and (1) a hit, so no others of it are needed here.

    Source: docs/specification/service.md#3.4.
    """
    hits = [slot for slot in free if history_hash and slot.cached_hash == history_hash]
    if hits:
        return max(hits, key=_used_s)
    without = [slot for slot in free if slot.cached_hash is None]
    if without:
        return min(without, key=attrgetter("running"))
    return min(free, key=lambda slot: (_used_s(slot), slot.running), default=None)
