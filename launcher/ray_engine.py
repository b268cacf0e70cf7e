"""Runs a cluster: posts as Ray actors, and the commands start, scale, status and stop.

The only module that imports Ray; imported late, since Ray is optional. No session data passes
through Ray.
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util import get_node_ip_address, list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from config import CONFIG_FILE, HOME, Settings
from core.files import ensure_admin_token
from core.worker_tls import worker_ca
from launcher.conductor import END_MARGIN_S, ClusterError, ClusterStatus, Conductor, Engine
from launcher.control import EXIT_NOT_RUNNING
from launcher.display import Display
from launcher.plan import COMMAND, SECRET_BYTES, Options
from launcher.posts import Cluster, Post, code_version
from launcher.scaling import FRONT, SEAT, Bounds, PostStatus
from launcher.system import announce_admin
from settings.sections import SecuritySettings
from settings.sources import ENVIRONMENT_PREFIX, environment_name

NAMESPACE: Final = "minicpmo-live"
CONDUCTOR: Final = "conductor"
FRONT_RESOURCE: Final = "front"  # custom resource of machines that may run the gateway, 1 each
FRONT_SHARE: Final = 0.9  # at most one front per machine; the rest is for the conductor
ANSWER_LIMIT_S: Final = 10.0  # for an actor whose machine may have failed
CHECK_LIMIT_S: Final = 60.0  # for a process to start on each machine and hash the code
LOOK_S: Final = 1.0
COLUMNS: Final = ("post", "state", "address", "sessions", "restarts", "on", "doing")
DETACHED: Final = {
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": 0,
    "num_cpus": 0,
    "max_concurrency": 8,
    "get_if_exists": True,
}


class RaySeat(Post):
    def __init__(self, cluster: Cluster, name: str) -> None:
        node = ray.get_runtime_context().get_node_id()
        super().__init__(cluster, name, get_node_ip_address(), node)


class RayFront(RaySeat):
    """The same; its process's title tells what it runs."""


class RayEngine(Engine):
    """Runs posts as detached actors, which outlive their creator."""

    def names(self) -> list[str]:
        """Return the existing posts, placed on a machine or not, or being restarted."""
        found = [
            str(actor["name"])
            for actor in list_named_actors(all_namespaces=True)
            if actor["namespace"] == NAMESPACE
        ]
        return [name for name in found if name == FRONT or name.startswith(SEAT)]

    def create(self, name: str, cluster: Cluster) -> None:
        """Create a post with a GPU, or the front on a machine that may run it, unless it exists."""
        kind, needs = RaySeat, dict[str, Any](num_gpus=1)  # Any: Ray's type
        if name == FRONT:
            kind, needs = RayFront, {"resources": {FRONT_RESOURCE: FRONT_SHARE}}
        ray.remote(kind).options(name=name, **needs, **DETACHED).remote(cluster, name)

    def kill(self, name: str) -> None:
        with suppress(ValueError):  # it does not exist any more
            ray.kill(_actor(name), no_restart=True)

    def draining_nodes(self) -> list[str]:
        """Return the ids of machines that `ray drain-node` or the autoscaler will remove."""
        # Ray has no public API for this.
        return list(ray._private.state.state.get_draining_nodes())

    def request(self, seats: int) -> None:
        """Request machines for this number of seats."""
        request_resources(bundles=[{"GPU": 1}] * seats)

    async def status(self, name: str) -> PostStatus:
        """Return a post's status, once it has been placed on a machine."""
        answer: PostStatus = await _actor(name).status.remote()
        return answer

    async def list_workers(self, name: str, addresses: Sequence[str]) -> int | None:
        waiting: int | None = await _actor(name).list_workers.remote(addresses)
        return waiting

    async def stop(self, name: str) -> None:
        await _actor(name).stop.remote()


def connect(address: str) -> None:
    """Connect to a cluster as a driver, or raise a ClusterError."""
    try:
        if address != "auto":  # Ray would retry for minutes
            place = urlsplit(f"//{address}")
            if not (place.hostname and place.port):
                raise ValueError("write host:port, an IPv6 address in brackets")
            socket.create_connection((place.hostname, place.port), ANSWER_LIMIT_S).close()
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="WARNING")
    except (OSError, ValueError, RuntimeError, RayError) as error:
        raise ClusterError(f"Cannot connect to a Ray cluster at {address}: {error}") from error


def check_versions() -> None:
    """Raise a ClusterError unless all machines run the same code."""
    here = _versions()
    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(_versions).options(num_cpus=0, scheduling_strategy=there)
            asked[node["NodeManagerAddress"], node["NodeID"]] = task.remote()
    for (address, _), answer in asked.items():
        try:
            version = ray.get(answer, timeout=CHECK_LIMIT_S)
        except RayError as error:
            raise ClusterError(
                f"{address} cannot run this code. It needs the same checkout and environment, "
                f"and PYTHONPATH set to the checkout: {error}"
            ) from error
        if version != here:
            raise ClusterError(f"{address} has {version}; this machine has {here}")


def find_conductor() -> Any:  # Any: Ray's handles are untyped
    with suppress(ValueError):
        return _actor(CONDUCTOR)


def create_conductor(cluster: Cluster, bounds: Bounds) -> None:
    """Create a conductor on a machine that may run the front, replacing any earlier one."""
    RayEngine().kill(CONDUCTOR)
    options = {"name": CONDUCTOR, "resources": {FRONT_RESOURCE: 0.01}, **DETACHED}
    ray.remote(Conductor).options(**options).remote(RayEngine(), cluster, bounds)


def ask(method: Any, limit_s: float = ANSWER_LIMIT_S) -> Any:
    """Call a method of the conductor and return its result; a ClusterError if it fails."""
    try:
        return ray.get(method.remote(), timeout=limit_s)
    except RayError as error:
        raise ClusterError(f"The conductor does not respond: {error}") from error


def end_all(names: Sequence[str], limit_s: float) -> None:
    """Stop posts concurrently after their sessions; skip those not yet placed."""
    asked = {}
    for name in names:
        with suppress(ValueError):  # it does not exist any more
            post = _actor(name)
            asked[post.status.remote()] = post
    ending = [asked[answer].stop.remote() for answer in _answered(list(asked), ANSWER_LIMIT_S)]
    _answered(ending, limit_s)


def _answered(calls: list[Any], limit_s: float) -> list[Any]:
    """Wait for calls of posts, or for the limit; return those that have ended."""
    return ray.wait(calls, num_returns=len(calls), timeout=limit_s)[0] if calls else []


def _actor(name: str) -> Any:
    return ray.get_actor(name, namespace=NAMESPACE)


def _versions() -> str:
    return f"Ray {ray.__version__}, Python {platform.python_version()}, code {code_version()}"


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

    Sessions get the cluster's drain time to finish, `limit_s` if the conductor does not respond;
    with `now` they are ended at once.
    """
    connect(address)
    engine = RayEngine()
    with suppress(ValueError, ClusterError):  # there is none, or it has failed
        cluster, _ = ask(_actor(CONDUCTOR).orders)
        limit_s = cluster.settings.service.drain_timeout_s + END_MARGIN_S
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
