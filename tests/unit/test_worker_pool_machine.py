"""Random lives of a pool, compared after every step with a model that is too simple to be wrong.

Handlers run as tasks and are cancelled wherever they happen to await. Several things may happen
in one turn of the loop, before anybody else runs.
"""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from core.errors import NoWorkerError, QueueCancelledError, QueueFullError
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_connection import LONG_REQUESTS, Ticket
from tests.fakes.pool_bench import SETTLED, PoolBench
from tests.fakes.pool_model import ModelAnswer, ModelRequest
from tests.fakes.pools import idle_count, new_ticket

MAX_SLOTS = 3
AGES = [0, 0, 0, 1, 2, 5]  # how many things happened between a poll and its answer

kinds = st.sampled_from(["chat", "streaming", "streaming", "half_duplex_audio", "omni_duplex"])
histories = st.sampled_from(["", "A", "B", "C"])
several = st.lists(st.tuples(kinds, histories), min_size=1, max_size=3)
picks = st.integers(0, 99)
at_once = st.sampled_from([False, False, True])
busy = st.sampled_from([status for status in WorkerStatus if status.is_busy])


class PoolMachine(PoolBench):
    """Does to a pool and to its model the same things."""

    @initialize(
        slots=st.lists(st.sampled_from([0, 1, 1, 2, MAX_SLOTS]), min_size=1, max_size=3),
        capacity=st.integers(0, 6),
    )
    def begin(self, slots: list[int], capacity: int) -> None:
        """Build both; a worker that is to have no slots is not up yet."""
        self.runner.run(self.pool.stop())
        self.prepare(len(slots), capacity)
        for index, count in enumerate(slots):
            if count:
                self.now(partial(self.say_idle, index, count))

    # Requests.

    def admitted(
        self,
        verdict: str,
        request: ModelRequest,
        ticket: Ticket,
    ) -> int:
        """Tell the model of a request the pool took; return its number."""
        assert verdict == "yes"
        self.tickets.append(ticket)
        number = len(self.tickets) - 1
        self.model.enqueue(number, request)
        return number

    @rule(wanted=several, together=at_once)
    def enqueue(self, wanted: list[tuple[str, str]], together: bool) -> None:
        def act(kind: str, history: str) -> None:
            verdict = self.model.admits()
            try:
                ticket = self.pool.enqueue(new_ticket(kind, history_hash=history))
            except (QueueFullError, NoWorkerError) as error:
                assert verdict == error.code
            else:
                request = ModelRequest(kind == "streaming", history)
                self.admitted(verdict, request, ticket)

        for kind, history in wanted:
            self.now(partial(act, kind, history), together=together)

    @rule(wanted=several, turns=st.integers(0, SETTLED))
    def arrive(self, wanted: list[tuple[str, str]], turns: int) -> None:
        def act(kind: str, history: str) -> None:
            coming = self.handle(kind, history)
            self.handlers.append(self.runner.get_loop().create_task(coming))

        self.burst += [partial(act, kind, history) for kind, history in wanted]
        self.settle(turns)

    async def handle(self, kind: str, history: str) -> None:
        """Wait, work until the door opens, leave; may be cancelled anywhere."""
        verdict = self.model.admits()
        try:
            with self.pool.enqueue(new_ticket(kind, history_hash=history)) as ticket:
                request = ModelRequest(kind == "streaming", history)
                number = self.admitted(verdict, request, ticket)
                await self.work(number, ticket)
        except QueueCancelledError:
            assert self.tickets[number].refusal is not None
        except (QueueFullError, NoWorkerError) as error:
            assert verdict == error.code

    async def work(self, number: int, ticket: Ticket) -> None:
        """Hold a ticket until cancelled, sent away or let out."""
        door = self.doors[number] = asyncio.get_running_loop().create_future()
        cache = ""
        try:
            await ticket.wait()
            assert ticket.is_cache_hit == (number in self.model.hits)
            ticket.has_started = True
            cache = await door
            ticket.kept_hash = cache
        finally:
            self.pool.leave(ticket)
            confirms = self.tickets[number].request_type in LONG_REQUESTS
            self.model.leave(number, cache or None, confirms=confirms)
            del self.doors[number]
            self.compare()

    @precondition(lambda self: self.doors)
    @rule(pick=picks, cache=histories, together=at_once)
    def let_out(self, pick: int, cache: str, together: bool) -> None:
        def act() -> None:
            closed = [number for number, door in self.doors.items() if not door.done()]
            if closed:
                self.doors[closed[pick % len(closed)]].set_result(cache)

        self.now(act, together=together)

    @precondition(lambda self: self.handlers)
    @rule(pick=picks, turns=st.integers(0, 3))
    def disconnect(self, pick: int, turns: int) -> None:
        def act() -> None:
            self.handlers[pick % len(self.handlers)].cancel()

        self.burst.append(act)
        self.settle(turns)

    @precondition(lambda self: self.model.queue)
    @rule(pick=picks, together=at_once)
    def leave_the_queue(self, pick: int, together: bool) -> None:
        def act() -> None:
            number = pick % len(self.tickets)
            was_waiting = number in self.model.queue
            assert self.pool.cancel(self.tickets[number].ticket_id) == was_waiting
            self.drop(number, only_if=was_waiting)

        self.now(act, together=together)

    @precondition(lambda self: self.raw_served())
    @rule(pick=picks, cache=histories, confirms=at_once, together=at_once)
    def release(self, pick: int, cache: str, confirms: bool, together: bool) -> None:
        """A caller gives its worker back, and tries to a second time."""

        def act() -> None:
            served = self.raw_served()
            if served:
                number = served[pick % len(served)]
                self.give_back(number, cache, confirms=confirms)

        self.now(act, together=together)

    def give_back(self, number: int, cache: str, *, confirms: bool) -> None:
        """Release a worker twice; the second time must not matter."""
        ticket = self.tickets[number]
        ticket.kept_hash = cache
        for _ in range(2):
            self.pool.leave(ticket, is_lost=confirms)
        confirms = confirms or ticket.request_type in LONG_REQUESTS
        self.model.leave(number, cache or None, confirms=confirms)

    # Workers.

    @rule(
        pick=picks,
        age=st.integers(0, len(AGES) - 1),
        slots=st.integers(1, MAX_SLOTS),
        active=st.none() | st.integers(0, MAX_SLOTS),
        status=st.sampled_from(["idle", "idle", "busy", "busy", "down"]),
        busy_status=busy,
        is_empty=st.sampled_from([False, False, True]),
        down=st.sampled_from([WorkerStatus.LOADING, WorkerStatus.ERROR]),
        together=at_once,
    )
    def hear(
        self,
        pick: int,
        age: int,
        slots: int,
        active: int | None,
        status: str,
        busy_status: WorkerStatus,
        is_empty: bool,
        down: WorkerStatus,
        together: bool,
    ) -> None:
        index = pick % len(self.workers)

        def act() -> None:
            epoch, changes = self.past[index][-1 - min(AGES[age], len(self.past[index]) - 1)]
            is_stale = epoch != self.workers[index].service.epoch
            assert is_stale == (changes != self.model.workers[index].changes)
            word = {"idle": WorkerStatus.IDLE, "busy": busy_status, "down": down}[status]
            is_loading = word is WorkerStatus.LOADING
            told = ModelAnswer(status, slots, active, is_empty, self.age(index), is_loading)
            self.tell(index, told, word, epoch)

        self.now(act, together=together)

    @rule(pick=picks, slots=st.integers(1, MAX_SLOTS), together=at_once)
    def recover(self, pick: int, slots: int, together: bool) -> None:
        def act() -> None:
            self.set_draining(pick % len(self.workers), False)
            self.say_idle(pick % len(self.workers), slots)

        self.pool.is_intake_paused = False
        self.model.is_paused = False
        self.now(act, together=together)

    @rule(
        pick=picks,
        kind=st.sampled_from(
            ["miss", "miss", "restart", "restart", "unreachable", "drain", "pause"]
        ),
        together=at_once,
    )
    def trouble(self, pick: int, kind: str, together: bool) -> None:
        index = pick % len(self.workers)
        match kind:
            case "miss":
                self.now(partial(self.miss, index), together=together)
            case "unreachable":
                self.now(partial(self.mark_offline, index), together=together)
            case "drain":
                self.now(partial(self.set_draining, index, True), together=together)
            case "restart":
                self.clock.advance(60)
                self.starts[index] = self.clock.now
            case "pause":
                self.pool.is_intake_paused = True
                self.model.is_paused = True

    def miss(self, index: int) -> None:
        self.workers[index].observe_miss()
        self.pool._dispatch_next()
        self.model.miss(self.model.workers[index])

    def mark_offline(self, index: int) -> None:
        self.pool.directory.report_unreachable(self.workers[index])
        self.model.workers[index].is_up = False
        self.model.workers[index].changes += 1

    def set_draining(self, index: int, is_draining: bool) -> None:
        self.pool.drain_worker(self.workers[index], is_draining=is_draining)
        self.model.workers[index].is_draining = is_draining
        self.model.dispatch()

    def teardown(self) -> None:
        """Everybody goes; then every slot is free again and a newcomer is served at once."""
        try:
            self.settle(SETTLED)
            self.now(self.send_everybody_away)
            self.now(self.restore_workers)
            assert not self.handlers
            assert idle_count(self.pool) == len(self.workers)
            assert all(worker.available_slots == MAX_SLOTS for worker in self.workers)
            self.runner.run(self.pool.stop())
        finally:
            self.runner.close()

    def send_everybody_away(self) -> None:
        for task in self.handlers:
            task.cancel()
        for number in [number for number in self.model.queue if number not in self.doors]:
            self.pool.cancel(self.tickets[number].ticket_id)
            self.drop(number)
        while self.raw_served():
            self.give_back(self.raw_served()[0], "", confirms=False)

    def restore_workers(self) -> None:
        for index in range(len(self.workers)):
            self.set_draining(index, False)
            self.say_idle(index, MAX_SLOTS)


TestPool = PoolMachine.TestCase
# 20 lives of 100 steps; with the nightly profile 1,000, which are 100,000 steps.
TestPool.settings = settings(
    max_examples=max(20, settings().max_examples // 5), stateful_step_count=100
)
