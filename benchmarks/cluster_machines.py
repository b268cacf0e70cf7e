"""Simulated machines of a Ray cluster: a network namespace each, with its own raylet.

Where namespaces are not permitted, the machines share one address. Everything ends with the block
that made it; `ray stop` is not used, since it kills processes by name.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import processes
from benchmarks.launched import ASK_S, wait_until
from launcher.ray_variables import machine_variables

RAY = (sys.executable, "-P", "-m", "ray.scripts.scripts")
LAUNCHER = (sys.executable, "-P", "-m", "launcher")
HEAD_PORT = 26_379
START_LIMIT_S = 120.0
LOCAL = "127.0.0.1"


@dataclass
class Machine:
    name: str
    address: str
    prefix: tuple[str, ...] = ()  # prefix of a command that runs there
    link: str = ""  # its network interface; empty where machines share an address
    gpus: int = 0  # GPUs that it announces
    is_front: bool = False  # it may run the gateway
    ray: subprocess.Popen[bytes] | None = None  # command that runs its raylet

    def pids(self, word: str = "") -> list[int]:
        """Return the processes below the raylet's command whose command line contains `word`."""
        family = [] if self.ray is None else processes.family(self.ray.pid)
        return [pid for pid in family if word in _command(pid)]

    def kill(self) -> None:
        """Kill all its processes at once; their connections end, unlike in a power failure."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.ray is not None:
            self.ray.wait()
            self.ray = None

    def disconnect(self) -> None:
        """Drop every packet from and to it, as a power failure also does; its processes go on."""
        _ip("link", "set", self.link, "down")


@dataclass
class Machines:
    """Makes machines, and runs the launcher on the one that runs the gateway."""

    folder: Path  # logs, the token and the data of all machines
    bridge: str
    all: list[Machine] = field(default_factory=list)  # the first is the head

    @property
    def front(self) -> Machine:
        return next(machine for machine in self.all if machine.is_front)

    def environment(self, machine: Machine) -> dict[str, str]:
        """Return the environment of a machine's programs, Ray's token and TLS included."""
        kept = {name: v for name, v in os.environ.items() if not name.startswith(("OMNI_", "RAY_"))}
        names = [machine.address, "localhost", LOCAL, socket.gethostname()]
        return {
            **kept,
            **machine_variables(self.folder, machine.name, list(dict.fromkeys(names))),
            "RAY_gcs_storage": "rocksdb",  # so that a restarted head has its state
            "RAY_gcs_storage_path": str(self.folder / "gcs"),
        }

    def add(self, gpus: int = 0, *, is_front: bool | None = None) -> Machine:
        """Start another machine; by default only the head may run the gateway."""
        number = len(self.all)
        machine = Machine(f"m{number}", LOCAL, gpus=gpus)
        machine.is_front = number == 0 if is_front is None else is_front
        if self.bridge:
            _namespace(machine, self.bridge, number)
        self.all.append(machine)
        self.restart(machine)
        return machine

    def restart(self, machine: Machine) -> None:
        """Start a machine's raylet, and wait until it has joined."""
        head = self.all[0]
        flags = [f"--num-gpus={machine.gpus}", "--num-cpus=1", "--object-store-memory=100000000"]
        flags.append(f"--node-ip-address={machine.address}")
        if machine.is_front:
            flags.append('--resources={"front": 1}')
        if machine is head:
            flags += ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false"]
            flags.append(f"--temp-dir={self.folder / 'r'}")
            # A returning head would find its own address in it, and take it for another cluster's.
            (self.folder / "r" / "ray_current_cluster").unlink(missing_ok=True)
        else:
            flags.append(f"--address={head.address}:{HEAD_PORT}")
        with self._log_file(machine).open("wb") as log:
            machine.ray = subprocess.Popen(
                (*machine.prefix, *RAY, "start", "--block", *flags),
                env=self.environment(machine),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until("a raylet", lambda: self._has_started(machine), START_LIMIT_S, ASK_S)

    def launch(self, *flags: str) -> str:
        """Run `start_all.sh --ray` on the gateway's machine; return its output."""
        head, front = self.all[0], self.front
        done = subprocess.run(
            (*front.prefix, *LAUNCHER, "--ray", f"{head.address}:{HEAD_PORT}", *flags),
            env=self.environment(front),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{flags}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def _has_started(self, machine: Machine) -> bool:
        text = self._log_file(machine).read_text(encoding="utf8", errors="replace")
        if machine.ray is None or machine.ray.poll() is not None:
            raise RuntimeError(f"{machine.name} has ended\n{text}")
        return "runtime started" in text

    def _log_file(self, machine: Machine) -> Path:
        return self.folder / f"{machine.name}.log"


def may_have_namespaces() -> bool:
    try:
        return not subprocess.run(("unshare", "-n", "true"), capture_output=True).returncode
    except OSError:
        return False


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Provide the network; all machines end with the block."""
    with ExitStack() as stack:
        bridge = ""
        if may_have_namespaces():
            bridge = f"ml{secrets.token_hex(3)}"  # the kernel removes earlier ones with a delay
            _ip("link", "add", bridge, "type", "bridge")
            stack.callback(_ip, "link", "del", bridge)
            _ip("addr", "add", f"{_subnet()}.254/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
        made = Machines(folder, bridge)
        stack.callback(_end, made)
        yield made


def _end(made: Machines) -> None:
    for machine in made.all:
        machine.kill()
        if machine.link:
            _ip("netns", "del", _space(made.bridge, machine.name))


def _namespace(machine: Machine, bridge: str, number: int) -> None:
    space = _space(bridge, machine.name)
    machine.address = f"{_subnet()}.{number + 1}"
    machine.prefix, machine.link = ("ip", "netns", "exec", space), f"{bridge}{machine.name}"
    _ip("netns", "add", space)
    _ip("link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", space)
    _ip("link", "set", machine.link, "master", bridge, "up")
    for arguments in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{machine.address}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
    ):
        _ip("-n", space, *arguments)


def _space(bridge: str, name: str) -> str:
    return f"{bridge}_{name}"


def _subnet() -> str:
    return f"10.77.{os.getpid() % 250}"


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
