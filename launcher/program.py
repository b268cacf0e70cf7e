"""One program under supervision: its process, its files and where it is in its life."""

from __future__ import annotations

from config import PROJECT_ROOT
from launcher.display import Loading
from launcher.health import Health
from launcher.pids import identify, write_pid_file
from launcher.plan import ProgramPlan
from launcher.process import Child
from launcher.restarts import RestartPolicy, Restarts
from launcher.state import Phase, ProgramRecord


class ManagedProgram:
    """A program that is started, asked how it is, ended, and perhaps started again."""

    def __init__(self, plan: ProgramPlan, policy: RestartPolicy) -> None:
        """Plan to run it; nothing is started yet.

        Args:
            plan: what to run.
            policy: how patient to be when it dies.
        """
        self.plan = plan
        self.restarts = Restarts(policy)
        self.phase = Phase.STOPPED
        self.health = Health()
        self.note = ""
        self._child: Child | None = None
        self._ready_since: float | None = None

    @property
    def has_ended(self) -> bool:
        """It does not run."""
        return self._child is None or self._child.has_ended

    @property
    def how_it_ended(self) -> str:
        """In words; empty while it runs."""
        return self._child.how_it_ended if self._child else ""

    @property
    def wants_restart(self) -> bool:
        """It ended to be started again, because somebody asked it to."""
        return self._child is not None and self._child.has_ended and self._child.wants_restart

    @property
    def is_ready(self) -> bool:
        """It does its work."""
        return self.phase is Phase.READY

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: the command, its log or its process id file cannot be used.
        """
        self.phase, self.note = Phase.STARTING, ""
        self.health, self._ready_since = Health(), None
        self._child = Child(
            self.plan.command,
            environment=self.plan.environment,
            folder=PROJECT_ROOT,
            log=self.plan.log,
        )
        write_pid_file(self.plan.pid_file, identify(self._child.pid))

    def heard(self, health: Health, now_s: float) -> bool:
        """Take note of what it answered; return whether its place in life changed.

        Args:
            health: the answer.
            now_s: of a clock that only goes forward.
        """
        before = (self.phase, self.note)
        self.health = health
        if health.is_ready:
            self.phase = Phase.READY
            if self._ready_since is None:
                self._ready_since = now_s
        if health.answers:
            self.note = health.stage
        return before != (self.phase, self.note)

    def healthy_s(self, now_s: float) -> float:
        """Return how long it has been ready, 0 if it never was."""
        return 0.0 if self._ready_since is None else now_s - self._ready_since

    def ask_to_end(self) -> None:
        """Ask it to finish what it does and end."""
        if self._child:
            self.phase = Phase.STOPPING
            self._child.ask_to_end()

    def kill(self) -> None:
        """End it at once if it still runs."""
        if self._child:
            self._child.kill()

    def last_words(self) -> list[str]:
        """Return the end of what it wrote since it was started."""
        return self._child.last_words() if self._child else []

    def loading(self) -> Loading:
        """Return how far it is."""
        stage = "ready" if self.is_ready else self.health.stage
        return Loading(self.plan.name, stage, self.health.progress, self.is_ready)

    def record(self) -> ProgramRecord:
        """Return what is said about it on disk."""
        return ProgramRecord(
            name=self.plan.name,
            phase=self.phase,
            pid=self._child.pid if self._child and not self._child.has_ended else None,
            url=self.plan.health_url.removesuffix("/health"),
            runs_on=self.plan.runs_on,
            log=self.plan.log.path,
            restarts=self.restarts.total,
            note=self.note,
        )
