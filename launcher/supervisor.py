"""Starts the programs in order, restarts them when they fail, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

import httpx
from pydantic import BaseModel, ValidationError

from config import Settings
from core.files import write_all
from core.schemas.worker import WorkerHealth, WorkerStatus
from core.worker_tls import SNI, client_context
from launcher.display import Display
from launcher.plan import Kind, ProgramPlan
from launcher.processes import Child, LogFile, new_pid_file, until
from launcher.run_folder import Phase, ProgramRecord, RunFolder, SystemRecord


@dataclass(frozen=True)
class Pace:
    poll_s: float = 0.1  # interval of checks that a process is alive
    ask_s: float = 0.5  # interval of health checks of a starting program
    watch_s: float = 5.0  # interval of health checks of a running program
    answer_limit_s: float = 5.0  # timeout of a health check
    misses_allowed: int = 6  # consecutive health checks that a running program may miss
    ready_limit_s: float = 60.0  # for a gateway to respond, and at the start to find its workers
    end_margin_s: float = 10.0  # time to exit after draining
    first_delay_s: float = 1.0  # delay before the first restart of a failed program; it doubles
    longest_delay_s: float = 60.0  # upper limit of the doubling delay
    # Relative random variation of a delay, so that programs that failed together do not restart
    # together.
    jitter: float = 0.2
    stable_s: float = 120.0  # healthy time that resets the failure count
    max_failures: int = 5  # consecutive failures after which the delay is `retry_s`
    retry_s: float = 60.0


@dataclass
class Restarts:
    pace: Pace
    random: Random = field(default_factory=Random)
    total: int = 0
    _failures: int = 0

    @property
    def are_too_many(self) -> bool:
        """Whether it failed so often in a row that the long retry delay applies."""
        return self._failures > self.pace.max_failures

    def next_delay_s(self, healthy_s: float) -> float:
        """Count a failure after `healthy_s` of health; return the delay before the restart."""
        if healthy_s >= self.pace.stable_s:
            self._failures = 0
        self._failures += 1
        self.total += 1
        spread = 1 + self.pace.jitter * self.random.uniform(-1, 1)
        if self.are_too_many:
            return self.pace.retry_s * spread
        doubled = self.pace.first_delay_s * 2.0 ** (self._failures - 1)
        return min(doubled, self.pace.longest_delay_s) * spread


class StartError(Exception):
    """The system could not be started; the text gives the reason."""


@dataclass(frozen=True)
class Health:
    answers: bool = False
    is_ready: bool = False
    progress: float | None = None  # loading progress, 0 to 1, if known
    stage: str = "starting"  # current activity, for display
    problem: str | None = None  # reason why it will never be ready
    sessions: int = 0  # sessions on a worker
    slots: int | None = None  # sessions that a worker can serve in time; None until it is ready


class _GatewayAnswer(BaseModel):
    status: str
    ready: bool = True


async def check_health(plan: ProgramPlan, tls: ssl.SSLContext | None, limit_s: float) -> Health:
    """Query a program over a new connection; `tls` is None for plain HTTP."""
    # The proxies of the environment are not for local programs.
    client = httpx.AsyncClient(trust_env=False, timeout=limit_s, verify=tls or False)
    extensions = SNI if plan.kind.has_internal_tls else None
    try:
        async with client:
            answer = await client.get(plan.health_url, extensions=extensions)
    except httpx.HTTPError:
        return Health()
    if answer.status_code != httpx.codes.OK:
        return Health(answers=True, stage=f"answers with HTTP {answer.status_code}")
    return _read_worker(answer) if plan.kind is Kind.WORKER else _read_gateway(answer)


def _read_worker(answer: httpx.Response) -> Health:
    """Interpret a worker's response; an unexpected one counts as starting."""
    try:
        health = WorkerHealth.model_validate_json(answer.content)
    except ValidationError:
        return Health(answers=True, stage="answers, but not as a worker does")
    if health.worker_status is WorkerStatus.ERROR or health.status == "error":
        return Health(answers=True, stage="error", problem=health.error or "no reason given")
    if health.model_loaded:
        sessions, slots = health.active_sessions or 0, health.capacity or health.slots
        return Health(True, True, 1.0, health.worker_status.value, sessions=sessions, slots=slots)
    return Health(True, False, health.load_progress, health.load_stage or "loading the model")


def _read_gateway(answer: httpx.Response) -> Health:
    try:
        is_ready = _GatewayAnswer.model_validate_json(answer.content).ready
    except ValidationError:
        return Health(answers=True, stage="answers, but not as a gateway does")
    return Health(True, is_ready, stage="ready" if is_ready else "waiting for workers")


@dataclass
class Program:
    plan: ProgramPlan
    restarts: Restarts
    phase: Phase = Phase.STOPPED
    health: Health = field(default_factory=Health)
    note: str = ""  # current activity, or the reason of the failure
    tls: ssl.SSLContext | None = None  # verifies its certificate; None for plain HTTP
    child: Child | None = None
    ready_since_s: float | None = None  # on the loop's clock; None until it is ready after a start

    @property
    def has_ended(self) -> bool:
        return self.child is None or self.child.has_ended

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    def start(self) -> None:
        """Start the process; an OSError if the command, log or pid file cannot be used."""
        self.phase, self.note = Phase.STARTING, ""
        self.health, self.ready_since_s = Health(), None
        self.child = None
        plan = self.plan
        with new_pid_file(plan.pid_file) as descriptor:
            self.child = Child(
                plan.command,
                environment=plan.environment,
                log=plan.log,
                orphaned=plan.orphaned,
                inherited=[descriptor],
            )
            write_all(descriptor, str(self.child.pid).encode())

    def update(self, health: Health, now_s: float) -> bool:
        """Store the result of a health check; return whether the program's state changed."""
        before = (self.phase, self.note)
        self.health = health
        if health.is_ready:
            self.phase = Phase.READY
            self.ready_since_s = self.ready_since_s or now_s
        if health.answers:
            self.note = health.stage
        return before != (self.phase, self.note)

    def record(self) -> ProgramRecord:
        return ProgramRecord(
            name=self.plan.name,
            phase=self.phase,
            pid=None if self.child is None or self.child.has_ended else self.child.pid,
            url=self.plan.url,
            runs_on=self.plan.runs_on,
            log=self.plan.log.path,
            restarts=self.restarts.total,
            note=self.note,
        )


class Supervisor:
    def __init__(self, folder: RunFolder, display: Display, pace: Pace, settings: Settings) -> None:
        """Start nothing yet, in the locked folder; OSError without the CA of workers and desk."""
        self.hurry = asyncio.Event()  # if set, running sessions are not waited for
        self.urls: list[str] = []
        self._folder = folder
        self._display = display
        self._pace = pace
        self._service = settings.service
        self._internal_tls = client_context(settings)  # of workers and desk
        self._phase, self._started = Phase.STARTING, datetime.now(UTC)
        self._groups: list[list[Program]] = []  # in start order

    @property
    def programs(self) -> list[Program]:
        return [program for group in self._groups for program in group]

    async def start(self, plans: Sequence[ProgramPlan]) -> None:
        """Start programs together and wait until they are ready.

        StartError if one exited, does not respond, or is a worker whose model did not load.
        """
        group = self.launch(plans)
        has_models = any(plan.kind is Kind.WORKER for plan in plans)
        limit_s = self._service.start_timeout_s if has_models else self._pace.ready_limit_s
        late = await self._await_ready(group, limit_s)
        if late is None:
            return
        name, stage = late.plan.name, late.health.stage
        if has_models or not late.health.answers:
            self._quote(late)
            raise StartError(f"{name} was not ready after {limit_s:g} s: {stage}")
        self._display.error(f"{name} answers but is still {stage}.")

    def launch(self, plans: Sequence[ProgramPlan]) -> list[Program]:
        """Start programs without waiting for them; a StartError if one cannot be started.

        They are also stopped together.
        """
        group: list[Program] = []
        self._groups.append(group)
        for plan in plans:
            tls = plan.tls.context() if plan.tls else None
            tls = self._internal_tls if plan.kind.has_internal_tls else tls
            program = Program(plan, Restarts(self._pace), tls=tls)
            group.append(program)
            try:
                program.start()
            except OSError as error:
                raise StartError(f"{plan.name} cannot be started: {error}") from error
            self._save()
        return group

    def set_phase(self, phase: Phase) -> None:
        self._phase = phase
        self._save()

    async def watch(self, more_logs: Sequence[LogFile] = ()) -> None:
        """Keep the programs running, and rotate their logs and `more_logs`, until cancelled."""
        logs = [*(program.plan.log for program in self.programs), *more_logs]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rotate(logs))
            for program in self.programs:
                group.create_task(self._keep(program))

    async def stop(self) -> None:
        """Stop the programs in reverse order; running sessions may finish."""
        self.set_phase(Phase.STOPPING)
        for group in reversed(self._groups):
            await self._end(group)

    def _save(self) -> None:
        record = SystemRecord(
            phase=self._phase,
            started=self._started,
            urls=self.urls,
            programs=[program.record() for program in self.programs],
        )
        try:
            self._folder.write(record)
        except OSError as error:
            self._display.error(f"Cannot write the state: {error}")

    async def _await_ready(self, programs: Sequence[Program], limit_s: float) -> Program | None:
        """Wait until all are ready; return one that missed the limit, or raise a StartError."""
        deadline_s = self._now_s() + limit_s
        with self._display.loading() as progress:
            while True:
                await asyncio.gather(*(self._check(program) for program in programs))
                for program in programs:
                    self._raise_if_failed(program)
                for program in programs:
                    stage = "ready" if program.is_ready else program.health.stage
                    share, is_ready = program.health.progress, program.is_ready
                    progress.show(program.plan.name, stage, share, is_done=is_ready)
                late = next((program for program in programs if not program.is_ready), None)
                if late is None or self._now_s() > deadline_s:
                    return late
                await asyncio.sleep(self._pace.ask_s)

    def _raise_if_failed(self, program: Program) -> None:
        reason = program.health.problem
        if program.child and program.has_ended:
            reason = program.child.how_it_ended
        if reason:
            program.phase, program.note = Phase.FAILED, reason
            self._quote(program)
            raise StartError(f"{program.plan.name} failed while starting: {reason}")

    async def _check(self, program: Program) -> Health:
        health = await check_health(program.plan, program.tls, self._pace.answer_limit_s)
        if program.update(health, self._now_s()):
            self._save()
        return health

    async def _keep(self, program: Program) -> None:
        while True:
            reason = await self._until_unhealthy(program)
            if program.child and program.has_ended and program.child.requested_restart:
                program.restarts.total += 1  # it is no failure
                delay_s = 0.0
            else:
                ready_since_s, now_s = program.ready_since_s, self._now_s()
                healthy_s = 0.0 if ready_since_s is None else now_s - ready_since_s
                delay_s = program.restarts.next_delay_s(healthy_s)
            await self._kill(program)
            program.note = reason
            what = f"{program.plan.name} {reason}"
            if program.restarts.are_too_many and delay_s:
                program.phase = Phase.FAILED
                self._quote(program)
                self._display.error(
                    f"{what}; it failed too often, the next attempt is in {delay_s:.1f} s"
                )
            else:
                program.phase = Phase.RESTARTING
                self._display.say(f"{what}; restarting in {delay_s:.1f} s", "yellow")
            self._save()
            await asyncio.sleep(delay_s)
            try:
                program.start()
            except OSError as error:
                self._display.error(f"{program.plan.name} cannot be started: {error}")
            self._save()

    async def _until_unhealthy(self, program: Program) -> str:
        """Wait until a program fails; return the reason."""
        misses = 0
        asked_s = begun_s = self._now_s()
        while not program.has_ended:
            await asyncio.sleep(self._pace.poll_s)
            every_s = self._pace.watch_s if program.is_ready else self._pace.ask_s
            if self._now_s() - asked_s < every_s:
                continue
            asked_s, was_ready = self._now_s(), program.is_ready
            health = await self._check(program)
            if health.problem:
                return f"reports an error: {health.problem}"
            if program.is_ready and not was_ready:
                self._display.say(f"{program.plan.name} is ready again", "green")
            misses = 0 if health.answers else misses + 1
            if program.is_ready and misses > self._pace.misses_allowed:
                return "stopped responding"
            # Only a worker loads a model before it answers, and a gateway may wait for workers.
            is_loading = program.plan.kind is Kind.WORKER or health.answers
            limit_s = self._service.start_timeout_s if is_loading else self._pace.ready_limit_s
            if not program.is_ready and self._now_s() - begun_s > limit_s:
                return "did not become ready"
        return program.child.how_it_ended if program.child else "could not be started"

    async def _rotate(self, logs: Sequence[LogFile]) -> None:
        while True:
            await asyncio.sleep(self._pace.watch_s)
            for log in logs:
                try:
                    log.rotate()
                except OSError as error:
                    self._display.error(f"{log.path} could not be rotated: {error}")

    async def _end(self, programs: Sequence[Program]) -> None:
        """Stop programs together: SIGTERM, wait for running sessions, then SIGKILL."""
        for program in programs:
            if program.child:
                program.phase = Phase.STOPPING
                program.child.terminate()
        self._save()
        await until(
            lambda: self.hurry.is_set() or all(one.has_ended for one in programs),
            self._pace.poll_s,
            self._service.drain_timeout_s + self._pace.end_margin_s,
        )
        for program in programs:
            if not program.has_ended:
                self._display.say(f"{program.plan.name} has not exited and is killed.", "yellow")
            await self._kill(program)
            program.phase = Phase.STOPPED
        self._save()

    async def _kill(self, program: Program) -> None:
        """Kill a program; a device driver may still block its exit for a while."""
        if program.child:
            program.child.kill()
        pace = self._pace
        if not await until(lambda: program.has_ended, pace.poll_s, pace.end_margin_s):
            self._display.error(f"{program.plan.name} could not be killed.")

    def _quote(self, program: Program) -> None:
        lines = program.child.last_lines() if program.child else []
        self._display.quote(f"Last lines of {program.plan.log.path}:", lines)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
