"""What a pool must do, written as plainly as possible and without sharing code with it.

A request is a number; numbers grow with arrival. Every method says what changes and ends with
`dispatch`, as every method of the pool does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PATIENCE = 3  # misses a busy worker is allowed, the last one included
RESTART_S = 2.0  # a start time later by more than this is another process


@dataclass
class ModelSlot:
    """Who holds it, which history its cache holds, when that was used."""

    holder: int | None = None
    cache: str | None = None
    used: int = 0


@dataclass
class ModelWorker:
    """One worker."""

    slots: list[ModelSlot] = field(default_factory=lambda: [ModelSlot()])
    is_up: bool = False
    is_draining: bool = False
    announced: int = 1
    others: int = 0
    misses: int = 0
    changes: int = 0
    started_s: float | None = None

    def holders(self) -> list[int]:
        return [slot.holder for slot in self.slots if slot.holder is not None]

    def usable(self) -> list[ModelSlot]:
        """Slots that may be given away: the most valuable, as many as there is room for."""
        room = self.announced - len(self.holders()) - self.others
        if not self.is_up or self.misses or self.is_draining or room <= 0:
            return []
        return self.by_value()[-room:]

    def by_value(self) -> list[ModelSlot]:
        """Unused slots: without a cache first, then the cache used longest ago."""
        unused = [slot for slot in self.slots if slot.holder is None]
        return sorted(unused, key=lambda slot: (slot.cache is not None, slot.used))

    def fit(self) -> None:
        """Grow to what was announced; shrink by the least valuable unused slots."""
        while len(self.slots) < self.announced:
            self.slots.append(ModelSlot())
        while len(self.slots) > self.announced and self.by_value():
            worst = self.by_value()[0]
            self.slots = [slot for slot in self.slots if slot is not worst]


@dataclass(frozen=True)
class ModelRequest:
    """What was asked for."""

    is_streaming: bool
    history: str


@dataclass(frozen=True)
class ModelAnswer:
    """What a worker says of itself.

    Attributes:
        status: "idle", "busy" or "down".
        slots: Sessions it takes.
        active: Sessions it holds; None: it does not say.
        is_empty: Its KV cache holds nothing.
        started_s: When its process began.
        is_loading: With status "down": it loads.
    """

    status: str
    slots: int
    active: int | None
    is_empty: bool
    started_s: float
    is_loading: bool = False


class PoolModel:
    """Queue and workers."""

    def __init__(self, workers: int, capacity: int) -> None:
        """Start with workers nobody has heard of."""
        self.workers = [ModelWorker() for _ in range(workers)]
        self.capacity = capacity
        self.is_paused = False
        self.queue: list[int] = []
        self.requests: dict[int, ModelRequest] = {}
        self.served_by: dict[int, int] = {}
        self.hits: set[int] = set()
        self._time = 0

    def admits(self) -> str:
        if self.is_paused:
            return "no_worker"
        is_room = len(self.queue) < self.capacity
        is_free = not self.queue and any(worker.usable() for worker in self.workers)
        return "yes" if is_room or is_free else "queue_full"

    def enqueue(self, number: int, request: ModelRequest) -> None:
        self.requests[number] = request
        self.queue.append(number)
        self.dispatch()

    def leave(self, number: int, cache: str | None, *, confirms: bool) -> None:
        """End a request: it stops waiting, or gives its slot back."""
        if number in self.queue:
            self.queue.remove(number)
        elif number in self.served_by:
            worker = self.workers[self.served_by.pop(number)]
            (slot,) = [slot for slot in worker.slots if slot.holder == number]
            for other in worker.slots:  # a worker keeps one cache of each history
                if other.holder is None and other.cache == cache:
                    self.remember(other, None)
            self.remember(slot, cache)
            slot.holder = None
            worker.others += confirms
            worker.changes += 1
            worker.fit()
        self.dispatch()

    def remember(self, slot: ModelSlot, cache: str | None) -> None:
        self._time += 1
        slot.cache, slot.used = cache, self._time if cache is not None else 0

    def answer(self, worker: ModelWorker, told: ModelAnswer, *, is_stale: bool) -> None:
        worker.misses = 0
        before, worker.started_s = worker.started_s, told.started_s
        is_new = before is not None and told.started_s > before + RESTART_S
        for slot in worker.slots:
            is_unused = slot.holder is None
            if is_new or told.is_loading or (told.is_empty and is_unused and not is_stale):
                slot.cache, slot.used = None, 0
        if not is_stale:
            worker.is_up = told.status != "down"
            worker.others = 0
            if worker.is_up:
                worker.announced = told.slots
                ours = len(worker.holders())
                if told.active is not None:
                    worker.others = max(0, told.active - ours)
                elif told.status == "busy" and not ours:
                    worker.others = told.slots
                worker.fit()
        self.dispatch()

    def miss(self, worker: ModelWorker) -> None:
        worker.misses += 1
        if not worker.holders() or worker.misses >= PATIENCE:
            worker.is_up, worker.others = False, 0
        self.dispatch()

    def dispatch(self) -> None:
        while self.queue:
            choice = self._choose(self.requests[self.queue[0]])
            if choice is None:
                return
            index, slot, is_hit = choice
            number = self.queue.pop(0)
            slot.holder = number
            self.remember(slot, slot.cache if is_hit else None)
            self.workers[index].changes += 1
            self.served_by[number] = index
            if is_hit:
                self.hits.add(number)

    def _choose(self, request: ModelRequest) -> tuple[int, ModelSlot, bool] | None:
        options = [
            (index, slot) for index, worker in enumerate(self.workers) for slot in worker.usable()
        ]
        if request.is_streaming and request.history:
            hits = [option for option in options if option[1].cache == request.history]
            if hits:
                return *max(hits, key=lambda option: option[1].used), True
        empty = [option for option in options if option[1].cache is None]
        if empty:
            loads = [len(self.workers[index].holders()) for index, _ in empty]
            return *empty[loads.index(min(loads))], False
        if options:
            return *min(options, key=lambda option: option[1].used), False
        return None
