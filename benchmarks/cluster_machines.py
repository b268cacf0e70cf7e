"""Machines of a Ray cluster on one computer: network namespaces with a raylet each.

Without namespaces the machines share one address. All processes end with the context manager;
`ray stop` is not used, because it kills processes by name.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from launcher.ray_variables import machine_variables

RAY = (sys.executable, "-P", "-m", "ray.scripts.scripts")
LAUNCHER = (sys.executable, "-P", "-m", "launcher")
HEAD_PORT = 26_379
START_LIMIT_S = 120.0
LOOK_S = 0.1
LOCAL = "127.0.0.1"
STAT_PARENT = 1  # of the fields of /proc/pid/stat behind the name


@dataclass
class Machine:
    """One machine.

    Attributes:
        prefix: of a command to run on it.
        link: its virtual network interface; empty if machines share an address.
        ray: the process of its raylet.
    """

    name: str
    address: str
    prefix: tuple[str, ...] = ()
    link: str = ""
    ray: subprocess.Popen[bytes] | None = None

    def pids(self, word: str = "") -> list[int]:
        """Return descendants of the raylet's process with a word in their command."""
        if self.ray is None:
            return []
        found, parents = [], {self.ray.pid}
        table = list(_parents())
        while parents:
            found += sorted(parents)
            parents = {pid for pid, parent in table if parent in parents}
        return [pid for pid in found if word in _command(pid)]

    def kill(self) -> None:
        """Kill all processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.ray is not None:
            self.ray.wait()
            self.ray = None

    def cut(self) -> None:
        """Disconnect the network."""
        _ip("link", "set", self.link, "down")


@dataclass
class Machines:
    """Starts machines, and the launcher on the first.

    Attributes:
        folder: of logs, token and data of all machines.
        all: the first is the head, the only one that may run the gateway.
    """

    folder: Path
    bridge: str
    all: list[Machine] = field(default_factory=list)

    def environment(self, machine: Machine) -> dict[str, str]:
        """Return the environment of a machine's programs, with Ray's token and TLS."""
        base = {name: v for name, v in os.environ.items() if not name.startswith(("OMNI_", "RAY_"))}
        names = [machine.address, "localhost", LOCAL, socket.gethostname()]
        return base | machine_variables(self.folder, machine.name, list(dict.fromkeys(names)))

    def add(self, gpus: int) -> Machine:
        """Start another machine."""
        number = len(self.all)
        machine = Machine(f"m{number}", LOCAL)
        if self.bridge:
            machine = _namespace(self.bridge, number)
        self.all.append(machine)
        head = self.all[0]
        place = f"{head.address}:{HEAD_PORT}"
        flags = [f"--num-gpus={gpus}", "--num-cpus=1", "--object-store-memory=100000000"]
        flags.append(f"--node-ip-address={machine.address}")
        if machine is head:
            flags += ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false"]
            flags += ['--resources={"front": 1}', f"--temp-dir={self.folder / 'r'}"]
        else:
            flags.append(f"--address={place}")
        with (self.folder / f"{machine.name}.log").open("wb") as log:
            machine.ray = subprocess.Popen(
                (*machine.prefix, *RAY, "start", "--block", *flags),
                env=self.environment(machine),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for("a raylet", lambda: b"runtime started" in self._log(machine), START_LIMIT_S)
        return machine

    def launch(self, *flags: str) -> str:
        """Run `start_all.sh --ray` on the head; return its output."""
        head = self.all[0]
        done = subprocess.run(
            (*head.prefix, *LAUNCHER, "--ray", f"{head.address}:{HEAD_PORT}", *flags),
            env=self.environment(head),
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

    def _log(self, machine: Machine) -> bytes:
        if machine.ray is None or machine.ray.poll() is not None:
            text = (self.folder / f"{machine.name}.log").read_text(encoding="utf8")
            raise RuntimeError(f"{machine.name} has ended\n{text}")
        return (self.folder / f"{machine.name}.log").read_bytes()


def wait_for(what: str, is_true: Callable[[], object], limit_s: float) -> float:
    """Wait for a condition; return the time in s.

    Raises:
        RuntimeError: it timed out.
    """
    begin_s = time.monotonic()
    while not is_true():
        if time.monotonic() - begin_s > limit_s:
            raise RuntimeError(f"not reached in {limit_s:g} s: {what}")
        time.sleep(LOOK_S)
    return time.monotonic() - begin_s


def may_have_namespaces() -> bool:
    try:
        return not subprocess.run(("unshare", "-n", "true"), capture_output=True).returncode
    except OSError:
        return False


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Create machines; all of them end with the block."""
    with ExitStack() as stack:
        bridge = ""
        if may_have_namespaces():
            bridge = f"mlb{os.getpid() % 10_000}"
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


def _namespace(bridge: str, number: int) -> Machine:
    name = f"m{number}"
    space, outer, inner = _space(bridge, name), f"{bridge}{name}", "eth0"
    address = f"{_subnet()}.{number + 1}"
    _ip("netns", "add", space)
    _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
    _ip("link", "set", outer, "master", bridge, "up")
    for arguments in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{address}/24", "dev", inner),
        ("link", "set", inner, "up"),
    ):
        _ip("-n", space, *arguments)
    return Machine(name, address, ("ip", "netns", "exec", space), outer)


def _space(bridge: str, name: str) -> str:
    return f"{bridge}_{name}"


def _subnet() -> str:
    return f"10.77.{os.getpid() % 250}"


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True)


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (path / "stat").read_text(encoding="utf8").rpartition(")")[2].split()
            yield int(path.name), int(fields[STAT_PARENT])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
