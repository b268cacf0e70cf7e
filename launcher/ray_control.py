"""Commands for a cluster: start, scale, status, stop."""

from __future__ import annotations

import os
import secrets
import signal
import time
from typing import Final

from config import CONFIG_FILE, HOME, Settings
from core.files import ensure_admin_token
from core.worker_tls import worker_ca
from launcher.conductor import ClusterError, ClusterStatus
from launcher.control import EXIT_NOT_RUNNING
from launcher.display import Display
from launcher.plan import COMMAND, SECRET_BYTES, Options
from launcher.posts import Cluster, code_version
from launcher.ray_engine import (
    CONDUCTOR,
    RayEngine,
    ask,
    check_versions,
    connect,
    create_conductor,
    end_all,
    find_conductor,
)
from launcher.scaling import FRONT, Bounds
from launcher.system import announce_admin
from settings.sections import SecuritySettings
from settings.sources import ENVIRONMENT_PREFIX, environment_name

LOOK_S: Final = 1.0
COLUMNS: Final = ("post", "state", "address", "sessions", "restarts", "on", "doing")


def make_cluster(settings: Settings, options: Options) -> Cluster:
    """Return the configuration of all machines, with generated secrets where it has none."""
    file = options.config or HOME / CONFIG_FILE
    text = file.read_text(encoding="utf8") if options.config or file.is_file() else "{}"
    security, made = settings.security, {"worker_tls": "true"}
    if security.worker_secret is None:
        made["worker_secret"] = secrets.token_urlsafe(SECRET_BYTES)
    if security.ticket_secret is None:
        made["ticket_secret"] = secrets.token_urlsafe(2 * SECRET_BYTES)
    if security.admin_token is None and not security.insecure_admin:
        made["admin_token"] = ensure_admin_token(settings.service.data_dir)
    fields = security.model_dump(exclude_unset=True) | made
    settings = settings.model_copy(update={"security": SecuritySettings.model_validate(fields)})
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)
    }
    variables |= {environment_name(f"security.{key}"): value for key, value in made.items()}
    ca = "" if security.worker_certfile else worker_ca(settings).read_text(encoding="ascii")
    return Cluster(settings, text, variables, ca, options.backend, code_version())


def start(
    address: str, settings: Settings, options: Options, display: Display, *, detach: bool
) -> int:
    """Start a cluster, or change its number of seats, then print events.

    With `detach` return once it serves, otherwise when interrupted, which stops nothing.
    """
    connect(address)
    check_versions()
    conductor, bounds = find_conductor(), options.workers
    if conductor is None:
        create_conductor(make_cluster(settings, options), bounds or Bounds(1, 1))
    else:
        display.say("The cluster is running; only --workers has an effect.")
        cluster, before = ask(conductor.orders)
        if bounds not in (None, before):
            create_conductor(cluster, bounds)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _follow(settings, display, detach=detach)
    except KeyboardInterrupt:
        display.say(f"The cluster continues; stop it with {COMMAND} --ray {address} --stop")
    return 0


def _follow(settings: Settings, display: Display, *, detach: bool) -> None:
    shown: dict[str, str] = {}
    was_serving = False
    problem = ""
    while True:
        try:
            conductor = find_conductor()  # another command may have replaced it
            if conductor is None:
                raise ClusterError("The cluster was stopped.")
            status: ClusterStatus = ask(conductor.status)
        except ClusterError as error:
            if str(error) != problem:
                problem = str(error)
                display.error(problem)
            time.sleep(LOOK_S)
            continue
        problem = ""
        now = {post.name: f"{post.phase} {post.note} {post.address}" for post in status.posts}
        for name in now.keys() | shown.keys():
            if now.get(name) != shown.get(name):
                display.say(f"{name}: {now.get(name, 'ended')}")
        shown = now
        if status.is_serving and not was_serving:
            front = next(post for post in status.posts if post.name == FRONT)
            display.say(f"Ready: {front.url}", "bold green")
            announce_admin(display, front.url, settings)
            if detach:
                return
        was_serving = status.is_serving
        time.sleep(LOOK_S)


def show_status(address: str, display: Display) -> int:
    """Print what runs; return 0 if a cluster does and 3 if none does."""
    connect(address)
    conductor = find_conductor()
    if conductor is None:
        display.say("Not running.")
        return EXIT_NOT_RUNNING
    status: ClusterStatus = ask(conductor.status)
    seats = f"{status.want} wanted, of {status.bounds}"
    display.print(f"Seats: {seats}; clients waiting: {status.waiting}")
    rows = []
    for post in status.posts:
        sessions = "-" if post.slots is None else f"{post.sessions} of {post.slots}"
        place = (post.url, sessions, post.restarts, post.runs_on, post.note)
        rows.append((post.name, post.phase, *place))
    display.table(COLUMNS, rows)
    return 0


def stop(address: str, display: Display, limit_s: float, *, now: bool) -> int:
    """Stop the conductor, then the gateway, then the workers.

    Sessions get `limit_s` to finish; with `now` they are ended at once.
    """
    connect(address)
    engine = RayEngine()
    engine.kill(CONDUCTOR)
    names = engine.names()
    if not names:
        display.say("Not running.")
        return 0
    for group in ([FRONT], sorted(set(names) - {FRONT})):
        group = [name for name in group if name in names]
        if not now:
            display.say(f"Stopping {', '.join(group)}; running sessions may finish first.")
            end_all(group, limit_s)
        for name in group:
            engine.kill(name)
    display.say("Stopped.")
    return 0
