"""Starts the programs in order, keeps them running, and takes them down in the opposite order."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from launcher.display import Display
from launcher.health import Health, HealthClient
from launcher.logs import LogFile
from launcher.plan import Pace, ProgramPlan
from launcher.program import ManagedProgram
from launcher.state import Phase, RunFolder, SystemRecord
from launcher.waiting import until

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

Result = TypeVar("Result")


class StartError(Exception):
    """The system could not be started; the text says what failed."""


class StopRequestedError(Exception):
    """Someone asked for the end."""


class StopSwitch:
    """Turned by signals: once to stop, twice to stop at once."""

    def __init__(self) -> None:
        """Nobody has asked for anything yet."""
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def listen(self) -> None:
        """Take the stop signals from now on, instead of dying of them."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.turn)

    def turn(self) -> None:
        """Ask once more."""
        (self.hurry if self.asked.is_set() else self.asked).set()

    async def race(self, work: Coroutine[object, object, Result]) -> Result:
        """Do some work unless the end is asked for first.

        Raises:
            StopRequestedError: the end was asked for; the work was cancelled and has ended.
        """
        task = asyncio.create_task(work)
        asked = asyncio.create_task(self.asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StopRequestedError
            return task.result()
        finally:
            task.cancel()
            asked.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)


class Supervisor:
    """The programs of one system, from start to stop."""

    def __init__(
        self,
        folder: RunFolder,
        display: Display,
        pace: Pace,
        *,
        drain_s: float,
        load_limit_s: float,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            folder: held by this process.
            display: for people.
            pace: how often and how long.
            drain_s: how long running sessions may go on after a stop was asked for.
            load_limit_s: longest wait for a model to load.
        """
        self.switch = StopSwitch()
        self.urls: list[str] = []
        self._folder = folder
        self._display = display
        self._pace = pace
        self._limits_s = (drain_s, load_limit_s)
        self._client = HealthClient(pace.answer_limit_s)
        self._trusted: ssl.SSLContext | None = None
        self._phase = Phase.STARTING
        self._started = datetime.now(UTC)
        self._workers: list[ManagedProgram] = []
        self._gateway: ManagedProgram | None = None

    @property
    def programs(self) -> list[ManagedProgram]:
        """Every program, workers first."""
        return [*self._workers, *([self._gateway] if self._gateway else [])]

    async def start_workers(self, plans: Sequence[ProgramPlan]) -> None:
        """Start the workers together and wait until each has loaded its model.

        Raises:
            StartError: one of them ended, failed or took too long.
        """
        self._workers = [ManagedProgram(plan, self._pace.restarts) for plan in plans]
        for program in self._workers:
            self._launch(program)
        limit_s = self._limits_s[1]
        late = await self._await_ready(self._workers, limit_s)
        if late:
            self._quote(late)
            what = f"{late.plan.name} was not ready after {limit_s:g} s"
            raise StartError(f"{what}: {late.health.stage}")

    async def start_gateway(self, plan: ProgramPlan, trusted: ssl.SSLContext | None) -> None:
        """Start the gateway and check that it answers and has found the workers.

        Args:
            plan: of the gateway.
            trusted: what its certificate is checked against; None for plain HTTP.

        Raises:
            StartError: it ended or does not answer.
        """
        self._trusted = trusted
        self._gateway = ManagedProgram(plan, self._pace.restarts)
        self._launch(self._gateway)
        late = await self._await_ready([self._gateway], self._pace.ready_limit_s)
        if late and not late.health.answers:
            self._quote(late)
            raise StartError("the gateway runs but does not answer")
        if late:
            self._display.trouble(f"The gateway answers but is still {late.health.stage}.")

    def say_it_is_up(self) -> None:
        """Let other commands know that the system is up."""
        self._phase = Phase.READY
        self.save()

    async def watch(self, more_logs: Sequence[LogFile] = ()) -> None:
        """Keep the programs running until cancelled.

        Args:
            more_logs: to keep short besides the programs'.
        """
        logs = [*(program.plan.log for program in self.programs), *more_logs]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tidy(logs))
            for program in self.programs:
                group.create_task(self._keep(program))

    async def take_down(self) -> None:
        """End the gateway, then the workers; running sessions may finish first."""
        self._phase = Phase.STOPPING
        self.save()
        gateway = [self._gateway] if self._gateway else []
        await self._end(gateway)
        await self._end(self._workers)
        await self._client.close()

    def save(self) -> None:
        """Write the state down for other commands."""
        record = SystemRecord(
            phase=self._phase,
            started=self._started,
            urls=self.urls,
            programs=[program.record() for program in self.programs],
        )
        try:
            self._folder.write(record)
        except OSError as error:
            self._display.trouble(f"The state cannot be written: {error}")

    def _launch(self, program: ManagedProgram) -> None:
        try:
            program.start()
        except OSError as error:
            raise StartError(f"{program.plan.name} cannot be started: {error}") from error
        self.save()

    async def _await_ready(
        self, programs: Sequence[ManagedProgram], limit_s: float
    ) -> ManagedProgram | None:
        """Wait until each is ready; return one that took too long, None if none did.

        Raises:
            StartError: one ended or says that it failed.
        """
        deadline_s = self._now_s() + limit_s
        with self._display.loading() as bars:
            while True:
                await asyncio.gather(*(self._ask(program) for program in programs))
                for program in programs:
                    self._refuse_failed(program)
                bars.show(program.loading() for program in programs)
                late = next((program for program in programs if not program.is_ready), None)
                if late is None or self._now_s() > deadline_s:
                    return late
                await asyncio.sleep(self._pace.ask_s)

    def _refuse_failed(self, program: ManagedProgram) -> None:
        reason = program.health.problem
        if program.has_ended:
            reason = program.how_it_ended
        if reason:
            program.phase, program.note = Phase.FAILED, reason
            self._quote(program)
            raise StartError(f"{program.plan.name} failed while starting: {reason}")

    async def _ask(self, program: ManagedProgram) -> Health:
        url = program.plan.health_url
        if program is self._gateway:
            health = await self._client.gateway(url, self._trusted)
        else:
            health = await self._client.worker(url)
        if program.heard(health, self._now_s()):
            self.save()
        return health

    async def _keep(self, program: ManagedProgram) -> None:
        """Start a program again each time it dies."""
        while True:
            reason = await self._until_unwell(program)
            healthy_s, restarts = program.healthy_s(self._now_s()), program.restarts
            is_wanted = program.wants_restart
            await self._kill(program)
            delay_s = restarts.asked_for() if is_wanted else restarts.next_delay_s(healthy_s)
            program.note = reason
            self._announce_restart(program, delay_s, is_wanted=is_wanted)
            self.save()
            await asyncio.sleep(delay_s)
            try:
                program.start()
            except OSError as error:
                self._display.trouble(f"{program.plan.name} cannot be started: {error}")
            self.save()

    def _announce_restart(
        self, program: ManagedProgram, delay_s: float, *, is_wanted: bool
    ) -> None:
        what = f"{program.plan.name} {program.note}"
        if program.restarts.are_too_many and not is_wanted:
            program.phase = Phase.FAILED
            self._quote(program)
            self._display.trouble(f"{what}; it died too often, the next try is in {delay_s:.1f} s")
        else:
            program.phase = Phase.RESTARTING
            self._display.say(f"{what}; starting it again in {delay_s:.1f} s", "yellow")

    async def _until_unwell(self, program: ManagedProgram) -> str:
        """Return, in words, what is wrong with a program as soon as something is."""
        misses = 0
        asked_s = begun_s = self._now_s()
        while not program.has_ended:
            await asyncio.sleep(self._pace.poll_s)
            every_s = self._pace.watch_s if program.is_ready else self._pace.ask_s
            if self._now_s() - asked_s < every_s:
                continue
            asked_s, was_ready = self._now_s(), program.is_ready
            health = await self._ask(program)
            if health.problem:
                return f"reports an error: {health.problem}"
            if program.is_ready and not was_ready:
                self._display.say(f"{program.plan.name} is ready again", "green")
            misses = 0 if health.answers else misses + 1
            if program.is_ready and misses > self._pace.misses_allowed:
                return "does not answer any more"
            if not program.is_ready and self._now_s() - begun_s > self._limits_s[1]:
                return "did not become ready"
        return program.how_it_ended or "could not be started"

    async def _tidy(self, logs: Sequence[LogFile]) -> None:
        while True:
            await asyncio.sleep(self._pace.watch_s)
            for log in logs:
                try:
                    log.turn_over()
                except OSError as error:
                    self._display.trouble(f"{log.path} could not be turned over: {error}")

    async def _end(self, programs: Sequence[ManagedProgram]) -> None:
        """End programs together: ask, wait for running sessions, kill what is left."""
        for program in programs:
            program.ask_to_end()
        self.save()
        await until(
            lambda: self.switch.hurry.is_set() or all(one.has_ended for one in programs),
            self._pace.poll_s,
            self._limits_s[0] + self._pace.end_margin_s,
        )
        for program in programs:
            if not program.has_ended:
                self._display.say(f"{program.plan.name} has not ended and is killed.", "yellow")
            await self._kill(program)
            program.phase = Phase.STOPPED
        self.save()

    async def _kill(self, program: ManagedProgram) -> None:
        """End a program at once; a driver may hold it for a while even then."""
        program.kill()
        pace = self._pace
        if await until(lambda: program.has_ended, pace.poll_s, pace.end_margin_s):
            program.plan.pid_file.unlink(missing_ok=True)
        else:
            self._display.trouble(f"{program.plan.name} could not be killed; the system holds it.")

    def _quote(self, program: ManagedProgram) -> None:
        self._display.quote(f"The end of {program.plan.log.path}:", program.last_words())

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
