"""One run of the system, from the checks before the start to the last file removed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from config import SettingsError
from launcher.administration import tell_administrator
from launcher.certificates import Certificate, ensure_certificate, lan_addresses
from launcher.checkpoint import DefaultCheckpoint, shown
from launcher.display import Display
from launcher.gpus import Gpu
from launcher.health import trust
from launcher.pids import ProcessId
from launcher.plan import EVERY_ADDRESS, Backend, Pace, Planner, ProgramPlan, url_host
from launcher.ports import PortError, check_port
from launcher.state import RunFolder
from launcher.supervisor import StartError, StopRequestedError, Supervisor
from launcher.waiting import until

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # source: POSIX shells, 128 + SIGINT


class System:
    """Starts, watches and stops everything for one command."""

    def __init__(
        self, planner: Planner, folder: RunFolder, display: Display, pace: Pace, gpus: list[Gpu]
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            planner: knows what to start.
            folder: held by this process.
            display: for people.
            pace: how often and how long.
            gpus: that may be used.
        """
        self._planner = planner
        self._folder = folder
        self._display = display
        self._pace = pace
        self._gpus = gpus
        self._service = planner.settings.service
        self._supervisor = Supervisor(
            folder,
            display,
            pace,
            drain_s=self._service.drain_timeout_s,
            load_limit_s=self._service.start_timeout_s,
        )

    async def run(self) -> int:
        """Run until someone asks for the end, or the start fails.

        Returns:
            Exit code of the command.
        """
        switch = self._supervisor.switch
        switch.listen()
        is_up = False
        try:
            await switch.race(self._clear_the_way())
            await switch.race(self._start())
            is_up = True
            await switch.race(self._supervisor.watch([self._planner.log_file("launcher")]))
        except StopRequestedError:
            self._display.say("Stopping; once more to end running sessions at once.")
            return 0 if is_up else EXIT_INTERRUPTED
        except (StartError, PortError, SettingsError, OSError) as error:
            self._display.trouble(str(error))
        finally:
            await self._supervisor.take_down()
            self._folder.clear()
            self._display.say("Stopped.")
        return EXIT_FAILED

    async def _clear_the_way(self) -> None:
        """End what an earlier launcher left behind, and see that the ports are free."""
        leftovers = self._folder.leftovers()
        if (self._folder.path / "launcher.pid").exists():
            self._display.say("The last run did not end by itself; its files are removed.")
        if leftovers:
            self._display.say(f"Stopping what it left running: {', '.join(leftovers)}")
        for process in leftovers.values():
            process.send(signal.SIGTERM)
        limit_s = self._service.drain_timeout_s + self._pace.end_margin_s
        if not await until(lambda: not _any_alive(leftovers), self._pace.poll_s, limit_s):
            for process in leftovers.values():
                process.kill_group()
            await until(lambda: not _any_alive(leftovers), self._pace.poll_s, limit_s)
        self._folder.clear()
        self._folder.announce()
        check_port(self._service.gateway_host, self._service.gateway_port)
        for plan in self._planner.workers(self._gpus, None):
            check_port(plan.host, plan.port)

    async def _start(self) -> None:
        place = await self._checkpoint()
        workers = self._planner.workers(self._gpus, place)
        self._describe(workers)
        await self._supervisor.start_workers(workers)
        certificate = await self._certificate()
        certfile, keyfile = self._service.ssl_certfile, self._service.ssl_keyfile
        if certificate:
            certfile, keyfile = certificate.certfile, certificate.keyfile
        if not self._service.https:
            certfile = keyfile = None
        trusted = trust(certfile, is_self_made=certificate is not None) if certfile else None
        addresses = await asyncio.to_thread(lan_addresses)
        self._supervisor.urls = self._urls(addresses)
        gateway = self._planner.gateway(len(workers), certfile, keyfile)
        await self._supervisor.start_gateway(gateway, trusted)
        self._announce(certificate)
        self._supervisor.say_it_is_up()

    async def _checkpoint(self) -> str | None:
        """Return the configured checkpoint, or the one that is used without, made if need be."""
        configured = self._planner.settings.model.model_path
        if configured or self._planner.options.backend is Backend.FAKE:
            return configured
        return str(await DefaultCheckpoint(self._planner, self._display, self._pace).ensure())

    async def _certificate(self) -> Certificate | None:
        """Return the self-made certificate if it is the one to use."""
        if not self._service.https or self._service.ssl_certfile:
            return None
        folder = self._planner.places.certificates
        certificate = await asyncio.to_thread(ensure_certificate, folder)
        if certificate.is_new:
            self._display.say(f"Made a self-signed certificate in {shown(folder)}")
        return certificate

    def _describe(self, workers: list[ProgramPlan]) -> None:
        for plan in workers:
            self._display.say(f"Starting {plan.name} on {plan.runs_on}, port {plan.port}")
        if len(workers) > len(self._gpus) > 0:
            self._display.say("There are more workers than GPUs: some share one.", "yellow")

    def _urls(self, addresses: list[str]) -> list[str]:
        """Return where people reach the gateway."""
        scheme = "https" if self._service.https else "http"
        port, host = self._service.gateway_port, self._service.gateway_host
        hosts = ["localhost", *addresses] if host in EVERY_ADDRESS else [host]
        return [f"{scheme}://{url_host(name)}:{port}" for name in hosts]

    def _announce(self, certificate: Certificate | None) -> None:
        say = self._display.say
        say("Ready.", "bold green")
        for url in self._supervisor.urls:
            say(f"  {url}", "bold")
        if certificate:
            say(f"  self-signed certificate until {certificate.expires:%Y-%m-%d}; SHA-256 is")
            say(f"  {certificate.fingerprint}")
            say("  browsers warn once; compare it there")
        elif not self._service.https:
            say("  without TLS browsers give the microphone to http://localhost only,", "yellow")
            say("  and everything said and every token passes in the clear", "yellow")
        say(f"  {self._planner.settings.recording.summary}")
        tell_administrator(self._display, self._supervisor.urls[0], self._planner.settings)
        say(f"  logs: {shown(self._planner.places.logs)}")
        say("  stop: Ctrl-C, or ./start_all.sh --stop")


def _any_alive(processes: Mapping[str, ProcessId]) -> bool:
    return any(process.is_alive for process in processes.values())
