"""Runs the posts of a cluster as Ray actors. The only module that imports Ray.

Imported late, since Ray is optional. No session data passes through Ray.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util import get_node_ip_address, list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launcher.conductor import ClusterError, Conductor, Engine
from launcher.posts import Cluster, Post, code_version
from launcher.scaling import FRONT, SEAT, Bounds, PostStatus

NAMESPACE: Final = "minicpmo-live"
CONDUCTOR: Final = "conductor"
FRONT_RESOURCE: Final = "front"  # custom resource of machines that may run the gateway, 1 each
FRONT_SHARE: Final = 0.9  # at most one front per machine; the rest is for the conductor
ANSWER_LIMIT_S: Final = 10.0  # for an actor whose machine may have failed
CHECK_LIMIT_S: Final = 60.0  # for a process to start on each machine and hash the code
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
        super().__init__(
            cluster, name, get_node_ip_address(), ray.get_runtime_context().get_node_id()
        )


class RayFront(RaySeat):
    """The same; its process's title tells what it runs."""


class RayEngine(Engine):
    """Runs posts as detached actors, which outlive their creator."""

    def names(self) -> list[str]:
        """Return the existing posts, including actors that Ray is restarting."""
        found = [
            str(actor["name"])
            for actor in list_named_actors(all_namespaces=True)
            if actor["namespace"] == NAMESPACE
        ]
        return [name for name in found if name == FRONT or name.startswith(SEAT)]

    def create(self, name: str, cluster: Cluster) -> None:
        """Create an actor with a GPU, or for the front on a machine that may run it."""
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
        """Request GPUs from Ray's autoscaler, if there is one."""
        request_resources(bundles=[{"GPU": 1}] * seats)

    async def status(self, name: str) -> PostStatus:
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
