"""Pure: how long requests take, and how long each place in the queue waits.

Durations are measured elsewhere and handed in; nothing here reads a clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from core.schemas.queue import RequestType
from gateway_modules.queue.models import EtaConfig, EtaStatus

UNKNOWN_ETA_S = 30.0  # docs/specification/service.md#3.3
OVERRUN_FLOOR_S = 15.0  # what a task that has overrun is assumed to need; same section
DEFAULT_EMA_ALPHA = 0.3  # docs/specification/service.md#4.1
DEFAULT_MIN_SAMPLES = 3  # same


@dataclass
class _Average:
    """A moving average and how many values went into it."""

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
        """Start without experience.

        Args:
            eta_config: Expected durations; its `ema_alpha`, if set, goes before the next argument.
            ema_alpha: Weight of the newest duration, in (0, 1].
            min_samples: Durations needed before experience counts.
        """
        self._config = eta_config or EtaConfig()
        self._alpha = self._config.ema_alpha or ema_alpha
        self._min_samples = min_samples
        self._averages = {request_type: _Average() for request_type in RequestType}

    def get_eta(self, request_type: str) -> float:
        """Return how long a request of this type is expected to take, s."""
        try:
            known = RequestType(request_type)
        except ValueError:
            return UNKNOWN_ETA_S
        average = self._averages[known]
        if average.value_s is not None and average.samples >= self._min_samples:
            return average.value_s
        return self._expected(known)

    def record_duration(self, request_type: str, duration_s: float) -> None:
        """Learn from one finished request; a type or duration that makes no sense is left out."""
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
        """Return the settings in force and what was measured."""
        chat = self._averages[RequestType.CHAT]
        streaming = self._averages[RequestType.STREAMING]
        half_duplex = self._averages[RequestType.HALF_DUPLEX_AUDIO]
        audio_duplex = self._averages[RequestType.AUDIO_DUPLEX]
        omni_duplex = self._averages[RequestType.OMNI_DUPLEX]
        return EtaStatus(
            config=self._config,
            ema_alpha=self._alpha,
            ema_chat_s=chat.value_s,
            ema_chat_samples=chat.samples,
            ema_streaming_s=streaming.value_s,
            ema_streaming_samples=streaming.samples,
            ema_half_duplex_s=half_duplex.value_s,
            ema_half_duplex_samples=half_duplex.samples,
            ema_audio_duplex_s=audio_duplex.value_s,
            ema_audio_duplex_samples=audio_duplex.samples,
            ema_omni_duplex_s=omni_duplex.value_s,
            ema_omni_duplex_samples=omni_duplex.samples,
        )

    def _expected(self, request_type: RequestType) -> float:
        config = self._config
        match request_type:
            case RequestType.CHAT:
                return config.eta_chat_s
            case RequestType.STREAMING:
                return self._expected_streaming()
            case RequestType.HALF_DUPLEX_AUDIO:
                return config.eta_half_duplex_s
            case RequestType.AUDIO_DUPLEX:
                return config.eta_audio_duplex_s
            case RequestType.OMNI_DUPLEX:
                return config.eta_omni_duplex_s
            case RequestType.DUPLEX:
                return config.eta_duplex_s or config.eta_omni_duplex_s

    def _expected_streaming(self) -> float:
        """Older callers give one value for both types: the half-duplex one."""
        given = self._config.model_fields_set
        if "eta_half_duplex_s" in given and "eta_streaming_s" not in given:
            return self._config.eta_half_duplex_s
        return self._config.eta_streaming_s


def remaining_s(eta_s: float, elapsed_s: float) -> float:
    """Return how much longer a running task is assumed to take, s; never zero."""
    left_s = eta_s - elapsed_s
    return left_s if left_s > 0 else OVERRUN_FLOOR_S


class Forecast:
    """Plays the queue forward: each request takes the slot that becomes free first."""

    def __init__(self, running_s: Iterable[float]) -> None:
        """Start with the time left of each occupied slot, s."""
        self._free_at_s = list(running_s)
        heapq.heapify(self._free_at_s)

    def add(self, duration_s: float) -> float:
        """Put a request behind those before it.

        Args:
            duration_s: How long it is expected to take, s.

        Returns:
            Its estimated wait, s, to a tenth; 0 if no slot is occupied.
        """
        if not self._free_at_s:
            return 0.0
        free_at_s = self._free_at_s[0]
        heapq.heapreplace(self._free_at_s, free_at_s + duration_s)
        return round(max(0.0, free_at_s), 1)
