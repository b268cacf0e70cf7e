"""What units cost: counted in the metrics; and admission, which follows from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.metrics import WorkerMetrics
from core.protocols import effects, events
from core.protocols.events import MS_PER_S
from core.schemas.chat import ChatSocketRequest
from core.schemas.duplex import Prepare, Result, ResultPart
from core.schemas.limits import UNIT_MS
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import WorkerPrefill

HEADROOM: Final = 0.8  # ours: largest share of its own length that nearly every unit may take
CALM: Final = 0.6  # ours: that share while new sessions may still begin
SLOW_SHARE: Final = 0.05  # ours: units that may be slower, for example at a turn's end
PROOF_S: Final = 600.0  # ours: for how long a number of sessions served in time counts as proven
SETTLE_S: Final = 3.0  # ours: a session's first seconds, in which it costs more, without a model
TURNS_S: Final = 10.0  # ours: within this time a session has both listened and spoken
GROWTH: Final = 3  # ours: per so many sessions older than that, one more may begin
FIRST: Final = 8  # ours: sessions that may begin where nothing was measured at the start
TIGHT: Final = 0.35  # ours: that share beyond which windows shrink
TIGHT_S: Final = 3.0  # ours: of which the units count for that
WINDOW_MIN: Final = 4_096  # ours: tokens; shorter windows are not shrunk for time
WINDOW_STEP: Final = 16  # ours: a window changes by one part of so many a second
UNITS_MIN: Final = 20  # ours: with fewer measured units, one slow unit would decide
LEAST_S: Final = 1e-3  # ours: least cost of a unit, against division by zero
MEMORY_S: Final = 30.0  # ours: older units do not count
ACTIVE_S: Final = 3.0  # ours: a session without a unit for this long is not active
UNITS_KEPT: Final = 4_096
# Ours: cost of a unit in service relative to the measurement at the start.
AGED: Final = 1.3
# Of `core.engine.scheduler`: how long a unit's requests wait for larger batches at most, and for
# each session beyond some.
DELAY_S: Final = 0.18
DELAY_PER_SESSION_S: Final = 0.02
UNDELAYED_SESSIONS: Final = 4


LimitWindows = Callable[[int | None], None]
"""Limits the tokens of each conversation; None: no limit."""


@dataclass(frozen=True)
class UnitTime:
    session_id: str
    at_s: float
    share: float  # engine time as a share of the unit's length
    active: int  # sessions that had units at that time
    has_picture: bool  # which makes it far more expensive
    tokens: int = 0  # in the conversation's cache


class Capacity:
    """How many sessions the worker can serve in time, from measured durations of units.

    Beyond `UNITS_KEPT` units the oldest are dropped.
    """

    def __init__(
        self, now_s: Callable[[], float], has_memory: Callable[[], bool] = lambda: True
    ) -> None:
        """`has_memory` returns whether there is memory for the cache of another session."""
        self._now_s = now_s
        self._has_memory = has_memory
        self._units: deque[UnitTime] = deque(maxlen=UNITS_KEPT)
        self._last_s: dict[str, float] = {}  # by session: time of its last unit
        self._costs: UnitCosts | None = None  # measured at the start
        self._proven = 0  # sessions that were served in time, or the bound found under overload
        self._proven_s = -PROOF_S
        self._limit_windows: LimitWindows = lambda tokens: None
        self.window: int | None = None  # most tokens of a conversation; None without a limit
        self._considered_s = 0.0  # when that was last considered

    def note(self, session_id: str, share: float, *, has_picture: bool, tokens: int = 0) -> None:
        now_s = self._now_s()
        self._last_s[session_id] = now_s
        self._last_s = {name: s for name, s in self._last_s.items() if s > now_s - ACTIVE_S}
        active = len(self._last_s)
        self._units.append(UnitTime(session_id, now_s, share, active, has_picture, tokens))
        if self._costs is not None and now_s >= self._considered_s + 1.0:
            self._considered_s = now_s
            window = self._next_window([u for u in self._units if u.at_s > now_s - TIGHT_S])
            if window != self.window:
                self.window = window
                self._limit_windows(window)

    def end(self, session_id: str) -> None:
        """Remove a session and its units, which say nothing about its successor's."""
        self._last_s.pop(session_id, None)
        self._units = deque(
            (unit for unit in self._units if unit.session_id != session_id), UNITS_KEPT
        )

    def recent(self) -> Sequence[UnitTime]:
        """Return the units of the last `MEMORY_S`."""
        while self._units and self._units[0].at_s < self._now_s() - MEMORY_S:
            self._units.popleft()
        return self._units

    def expect(
        self,
        unit_s_by_sessions: Mapping[int, float],
        limit_windows: LimitWindows = lambda tokens: None,
    ) -> None:
        """Set the measurement made before the first session; see `UnitCosts.of`."""
        self._costs = UnitCosts.of(unit_s_by_sessions)
        self._limit_windows = limit_windows

    @property
    def is_calibrated(self) -> bool:
        """Whether the costs of units were measured at the start."""
        return self._costs is not None

    def _next_window(self, units: Sequence[UnitTime]) -> int | None:
        """Return the most tokens a conversation may hold, from the latest units.

        Long conversations cost more, so a number of sessions that was served in time may be too
        many some minutes later. Then the longest lose their oldest units before units are late.
        """
        longest = max(unit.tokens for unit in units)
        slow = sum(unit.share > TIGHT for unit in units)
        if len(units) >= UNITS_MIN and slow > SLOW_SHARE * len(units):
            window = min(self.window or longest, longest)
            return max(WINDOW_MIN, window - window // WINDOW_STEP)
        if self.window is None or self.window > 2 * longest:
            return None
        return self.window + self.window // WINDOW_STEP

    def sessions(self, ages_s: Sequence[float]) -> int:
        """Return the capacity now, at least 1, given the ages of the running sessions."""
        most = self._in_time(ages_s)
        return most if self._has_memory() else max(1, min(most, len(ages_s)))

    def _in_time(self, ages_s: Sequence[float]) -> int:
        growth, units = self._growth(ages_s), self.recent()
        if len(units) < UNITS_MIN:
            return max(1, self._proof(), growth)
        bounds = sorted(self._sessions_at(unit) for unit in units)
        bound = int(bounds[int(SLOW_SHARE * len(bounds))])
        slow = sum(unit.share > HEADROOM for unit in units)
        if slow > SLOW_SHARE * len(units):
            self._proven, self._proven_s = min(self._proof(), bound), self._now_s()
            return max(1, bound)
        # The expectation is for units with pictures, so units without prove nothing beyond it.
        costly = [u.active for u in units if u.has_picture or self._costs is None]
        most_active = max(costly, default=0)
        if most_active >= self._proof():
            self._proven, self._proven_s = most_active, self._now_s()
        return max(1, self._proof(), min(bound, growth))

    def _growth(self, ages_s: Sequence[float]) -> int:
        """Return how many sessions there may be before more of them have shown their costs."""
        if self._costs is None:
            settled = sum(age_s >= SETTLE_S for age_s in ages_s)
            return settled + max(FIRST, settled)
        settled = sum(age_s >= TURNS_S for age_s in ages_s)
        return settled + max(min(FIRST, self._costs.sessions), settled // GROWTH)

    def _proof(self) -> int:
        if self._now_s() < self._proven_s + PROOF_S:
            return self._proven
        return 0 if self._costs is None else self._costs.sessions

    def _sessions_at(self, unit: UnitTime) -> float:
        """Return the capacity if all units took as long as this one."""
        share = max(unit.share, LEAST_S)
        if self._costs is None:
            return unit.active * HEADROOM / share
        delay_s = DELAY_PER_SESSION_S * max(0, unit.active - UNDELAYED_SESSIONS)
        delay_s = min(DELAY_S, delay_s)
        return unit.active * self._costs.load(CALM - delay_s) / self._costs.load(share - delay_s)


@dataclass(frozen=True)
class UnitCosts:
    """Costs of units in an engine that serves all pending ones in one batch after another.

    A batch of n units takes a + b n seconds, and n units arrive during one: with N sessions of one
    unit a second a batch takes a / (1 - b N). A unit waits for up to one batch and takes one, so
    the last session costs far more than the first. Delays for larger batches come on top.
    """

    alone_s: float  # a, the fixed time of a batch
    each_s: float  # b, the time per unit
    measured: int  # units of the largest measured batch; no more are expected without measurement

    @classmethod
    def of(cls, unit_s_by_sessions: Mapping[int, float]) -> UnitCosts | None:
        """Return the costs from the durations of two batches or more, else None."""
        if len(unit_s_by_sessions) < 2:
            return None
        (few, few_s), *_, (many, many_s) = sorted(unit_s_by_sessions.items())
        each_s = max((many_s - few_s) / (many - few), LEAST_S)
        return cls(max(0.0, few_s - few * each_s), AGED * each_s, many)

    def load(self, unit_s: float) -> float:
        """Return b N of the N sessions whose units take this long without delays; not 0."""
        longest_idle_s = 2 * self.alone_s  # of a unit in an otherwise idle engine
        return max(LEAST_S, 1.0 - longest_idle_s / max(unit_s, LEAST_S))

    @property
    def sessions(self) -> int:
        """Expected capacity, at least 1."""
        return max(1, min(self.measured, int(self.load(CALM) / self.each_s)))


@dataclass(eq=False)
class MetricsObserver:
    """Counts the events of one session in the worker's metrics, and reports its unit times."""

    metrics: WorkerMetrics
    capacity: Capacity
    mode: str
    session_id: str
    _unit_ms = 0  # length of a duplex unit
    _began_s: float | None = field(default=None, init=False)
    _now_s = 0.0
    _turn_s: float | None = field(default=None, init=False)  # when the present turn began
    # When the reply was requested; None once it began.
    _requested_s: float | None = field(default=None, init=False)

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        self._now_s = event.at_s
        metrics, mode = self.metrics, self.mode
        match event:
            case events.Opened():
                self._began_s = event.at_s
                metrics.sessions.labels(mode).inc()
            case events.Received(message=message, size_bytes=size_bytes):
                metrics.received.labels(mode).inc(size_bytes)
                if isinstance(message, Prepare):
                    self._unit_ms = message.config.chunk_ms
            case events.FinalizeDone(finalize_ms=finalize_ms):
                metrics.stage_s.labels(mode, "finalize").observe(finalize_ms / MS_PER_S)
            case events.ChunkReady() if self._requested_s is not None:
                metrics.first_s.labels(mode).observe(event.at_s - self._requested_s)
                self._requested_s = None
            case events.GenerateDone(token_stats=stats):
                metrics.tokens.labels(mode).inc(stats.generated_tokens)
                if self._turn_s is not None:
                    metrics.turn_s.labels(mode).observe(event.at_s - self._turn_s)
                self._turn_s = None
            case events.TurnFailed():
                self._turn_s = None
        for effect in made:
            match effect:
                case effects.Prefill(WorkerPrefill() | ChatSocketRequest(), is_first=True):
                    self._turn_s = event.at_s
                case effects.Generate():
                    self._turn_s = event.at_s if self._turn_s is None else self._turn_s
                    self._requested_s = event.at_s
                case effects.Send(WarningMessage(code=code)):
                    metrics.problems.labels(mode, code.value, "false").inc()
                case effects.Send(ErrorMessage(code=code)):
                    metrics.problems.labels(mode, code.value, "true").inc()
                case effects.Send(ResultPart(elapsed_ms=elapsed_ms)):
                    metrics.first_s.labels(mode).observe(elapsed_ms / MS_PER_S)
                case effects.Send(Result() as result):
                    self._count_unit(result)

    async def close(self) -> None:
        self.capacity.end(self.session_id)
        if self._began_s is not None:
            self.metrics.sessions.labels(self.mode).dec()
            self.metrics.session_s.labels(self.mode).observe(self._now_s - self._began_s)

    def _count_unit(self, result: Result) -> None:
        metrics, mode = self.metrics, self.mode
        stages_ms = {
            "prefill": result.prefill_ms,
            "llm": result.cost_llm_ms,
            "tts_prep": result.cost_tts_prep_ms,
            "tts": result.cost_tts_ms,
            "token2wav": result.cost_token2wav_ms,
            "all": result.cost_all_ms,
            "wall": result.wall_clock_ms,
        }
        for stage, cost_ms in stages_ms.items():
            if cost_ms is not None:
                metrics.stage_s.labels(mode, stage).observe(cost_ms / MS_PER_S)
        metrics.late.labels(mode).inc(result.wall_clock_ms > self._unit_ms)
        metrics.tokens.labels(mode).inc(result.n_tokens)
        metrics.kv.labels(mode).set(result.kv_cache_length)
        share, has_picture = result.cost_all_ms / UNIT_MS, result.vision_slices > 0
        tokens = result.kv_cache_length
        self.capacity.note(self.session_id, share, has_picture=has_picture, tokens=tokens)
