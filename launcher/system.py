"""One run of the system, from the checks before the start to the removal of its files."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import chain

from config import Settings, SettingsError
from core.files import TOKEN_FILE, ensure_admin_token
from gateway_modules.web.certificates import Certificate, gateway_tls, lan_addresses
from launcher.default_models import DefaultModels
from launcher.display import Display
from launcher.machine import PortError, check_port, find_gpus
from launcher.plan import COMMAND, Backend, Planner
from launcher.processes import end_processes
from launcher.run_folder import Phase, RunFolder
from launcher.supervisor import Pace, StartError, Supervisor
from settings.workers import EVERY_ADDRESS, local_address

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # source: POSIX shells, 128 + SIGINT
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class System:
    def __init__(self, planner: Planner, folder: RunFolder, display: Display, pace: Pace) -> None:
        self._planner = planner
        self._folder = folder
        self._display = display
        self._pace = pace
        self._service = planner.settings.service
        self._supervisor = Supervisor(folder, display, pace, planner.settings)
        self._models = DefaultModels(planner, display, pace)
        self._is_up = False

    async def run(self) -> int:
        """Run until a signal or a failed start; return the exit code. A second signal hurries."""
        work = asyncio.create_task(self._start_and_watch())

        def on_signal() -> None:
            if work.done() or work.cancelling():
                self._supervisor.hurry.set()
            else:
                work.cancel()

        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        try:
            await work
        except asyncio.CancelledError:
            self._display.say("Stopping; once more to end running sessions at once.")
            return 0 if self._is_up else EXIT_INTERRUPTED
        except (StartError, PortError, SettingsError, OSError) as error:
            self._display.error(str(error))
        finally:
            await self._models.stop_download()
            await self._supervisor.stop()
            self._display.say("Stopped.")
        return EXIT_FAILED

    async def _start_and_watch(self) -> None:
        gpus = await asyncio.to_thread(find_gpus, os.environ)
        await self._clean_up()
        tls = await asyncio.to_thread(gateway_tls, self._service)
        if tls and tls.made and tls.made.is_new:
            place = tls.certfile.parent
            self._display.say(f"Generated a self-signed certificate in {place}")
        workers, *others = self._planner.groups(gpus, tls)
        for plan in chain(*reversed(others), workers):  # the gateway's is named first
            check_port(plan.host, plan.port, plan.kind.port_setting)
        await self._prepare_default()
        for plan in workers:
            self._display.say(f"Starting {plan.name} on {plan.runs_on}, port {plan.port}")
        if len(workers) > len(gpus) > 0:
            self._display.say("There are more workers than GPUs: some share a GPU.", "yellow")
        await self._supervisor.start(workers)
        self._supervisor.urls = await asyncio.to_thread(self._urls, "https" if tls else "http")
        for plans in others:
            await self._supervisor.start(plans)
        self._announce(tls.made if tls else None)
        self._supervisor.set_phase(Phase.READY)
        self._is_up = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._supervisor.watch([self._planner.log_file("launcher")]))
            if self._planner.settings.model.embedded == "auto":
                group.create_task(self._watch_download())

    async def _clean_up(self) -> None:
        leftovers = self._folder.leftovers()
        if leftovers:
            self._display.say(f"Stopping its leftover processes: {', '.join(leftovers)}")
        limit_s = self._service.drain_timeout_s + self._pace.end_margin_s
        await end_processes(leftovers.values(), self._pace.poll_s, limit_s)
        self._models.forget_download()

    async def _prepare_default(self) -> None:
        """Provide the default checkpoint if none is configured, or raise a StartError."""
        model = self._planner.settings.model
        if model.model_path or self._planner.options.backend is Backend.FAKE:
            return
        await self._models.ensure_checkpoint()
        if model.embedded in ("auto", "cascade"):
            await self._models.start_download()
        if model.embedded == "cascade" and (problem := await self._models.watch_download()):
            raise StartError(f"model.embedded is cascade, but {problem}")

    async def _watch_download(self) -> None:
        if problem := await self._models.watch_download():
            self._display.say(
                f"The cascade could not be downloaded, so nano is used: {problem}. The next start "
                "resumes the download.",
                "yellow",
            )

    def _urls(self, scheme: str) -> list[str]:
        port, host = self._service.gateway_port, self._service.gateway_host
        hosts = ["localhost", *lan_addresses()] if host in EVERY_ADDRESS else [host]
        return [f"{scheme}://{local_address(name, port)}" for name in hosts]

    def _announce(self, certificate: Certificate | None) -> None:
        say = self._display.say
        say("Ready.", "bold green")
        for url in self._supervisor.urls:
            say(f"  {url}", "bold")
        if (doors := self._service.doors) > 1:
            first = self._service.gateway_port
            say(f"  {doors} doors on ports {first} to {first + doors - 1}")
        if certificate:
            say(f"  self-signed certificate, valid until {certificate.expires:%Y-%m-%d}; SHA-256:")
            say(f"  {certificate.fingerprint}")
            say("  browsers warn once; compare the fingerprint there")
        elif not self._service.https:
            say("  without TLS, browsers allow the microphone only on http://localhost,", "yellow")
            say("  and all traffic is unencrypted", "yellow")
        say(f"  {self._planner.settings.recording.summary}")
        announce_admin(self._display, self._supervisor.urls[0], self._planner.settings)
        say(f"  logs: {self._planner.logs}")
        say(f"  stop: Ctrl-C, or {COMMAND} --stop")


def announce_admin(display: Display, url: str, settings: Settings) -> None:
    """Print where the admin token is, and what `show_admin_link` prints; raises as that does."""
    security = settings.security
    if security.admin_token is not None:
        display.say(f"  administration: {url}/admin, with security.admin_token")
    elif security.insecure_admin:
        display.say(f"  administration: {url}/admin, open to everyone", "yellow")
    else:
        place = settings.service.data_dir / TOKEN_FILE
        display.say(f"  administration: {url}/admin, with the token in {place}")
    show_admin_link(display, url, settings)


def show_admin_link(display: Display, url: str, settings: Settings) -> None:
    """In a terminal, print the link that contains a generated admin token.

    The token is in the link's fragment, which browsers send to no server; no log gets the link.
    OSError if the token can be neither read nor written.
    """
    if settings.security.admin_token is None and not settings.security.insecure_admin:
        display.show(f"  {url}/admin#token={ensure_admin_token(settings.service.data_dir)}")
