"""Stands in for `worker.py`, `gateway.py`, the makers of checkpoints and the cascade's fetch.

`python stand_in.py ROLE [flags of the real program]`. What it does is read from two variables:
STAND_IN_DEEDS, JSON of `{program name: Deeds}`, and STAND_IN_TRACE, a file it appends events to.
Only the standard library: it has to start in a moment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

EXIT_BROKEN = 3
EXIT_ANEW = 75  # what the launcher understands as a wish


@dataclass(frozen=True)
class Deeds:
    """What one program does.

    Attributes:
        load_s: time from the first question about its health until it is ready.
        breaks: it ends at once, with a last word.
        breaks_if: a file; while it exists, the program ends at once, also if it runs already.
        fails: it reports that its model cannot be loaded.
        drain_s: how long it goes on after SIGTERM.
        ignores_term: it does not care about SIGTERM.
        begins_anew_if: a file; when it exists, the program removes it and asks to be started again.
    """

    load_s: float = 0.0
    breaks: bool = False
    breaks_if: str = ""
    fails: bool = False
    drain_s: float = 0.0
    ignores_term: bool = False
    begins_anew_if: str = ""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Program:
    """One running stand-in."""

    def __init__(self, name: str) -> None:
        """Read what to do.

        Args:
            name: of the program.
        """
        self.name = name
        deeds = json.loads(os.environ.get("STAND_IN_DEEDS", "{}"))
        self.deeds = Deeds(**deeds.get(name, {}))
        self.trace("start")

    def trace(self, event: str) -> None:
        """Write down what happened, in the order in which it does on this machine."""
        path = os.environ.get("STAND_IN_TRACE")
        if path:
            with Path(path).open("a", encoding="utf8") as file:
                file.write(f"{self.name} {event}\n")

    def break_if_due(self) -> None:
        """End as a crash does, if that is what this program does."""
        flag = self.deeds.breaks_if
        if self.deeds.breaks or (flag and Path(flag).exists()):
            print("RuntimeError: out of memory, said the stand-in", flush=True)
            os._exit(EXIT_BROKEN)
        wish = self.deeds.begins_anew_if
        if wish and Path(wish).exists():
            Path(wish).unlink()
            os._exit(EXIT_ANEW)

    def on_term(self) -> None:
        self.trace("term")
        if self.deeds.ignores_term:
            return
        time.sleep(self.deeds.drain_s)
        self.trace("end")
        os._exit(0)

    @cached_property
    def begun_s(self) -> float:
        """When its health was read first, so that a slow launcher too sees it load."""
        return time.monotonic()

    @property
    def progress(self) -> float:
        if not self.deeds.load_s:
            return 1.0
        return min(1.0, (time.monotonic() - self.begun_s) / self.deeds.load_s)

    def health(self, flags: argparse.Namespace) -> dict[str, object]:
        is_ready = self.progress >= 1.0
        if flags.role == "gateway":
            return {"status": "healthy", "ready": is_ready, "workers_ready": 1}
        if self.deeds.fails:
            error = "no such checkpoint, said the stand-in"
            return {"status": "error", "worker_status": "error", "error": error}
        return {
            "status": "healthy" if is_ready else "initializing",
            "worker_status": "idle" if is_ready else "loading",
            "model_loaded": is_ready,
            "load_progress": self.progress,
            "load_stage": "pretending to load",
            "gpu_id": flags.gpu_id,
        }


def serve(program: Program, flags: argparse.Namespace) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps(program.health(flags)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer((flags.host, flags.port), Handler)
    if flags.ssl_certfile:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(flags.ssl_certfile, flags.ssl_keyfile)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def make_checkpoint(program: Program, place: Path) -> None:
    place.mkdir(parents=True)
    time.sleep(program.deeds.load_s)
    (place / "config.json").write_text("{}", encoding="utf8")


def fetch(program: Program, folder: Path) -> None:
    """Tell how far a fetch is that fetches nothing."""
    folder.mkdir(parents=True, exist_ok=True)

    def tell(**facts: object) -> None:
        told = {"done_bytes": 240_000_000, "total_bytes": 600_000_000, **facts}
        (folder / "progress.json").write_text(json.dumps(told), encoding="utf8")

    tell(state="fetching")
    while program.progress < 1.0:
        time.sleep(0.02)
    if program.deeds.fails:
        tell(state="failed", problem="no place has it, said the stand-in")
        sys.exit(EXIT_BROKEN)
    tell(state="complete")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("worker", "gateway", "checkpoint", "cascade"))
    parser.add_argument("place", nargs="?", type=Path)
    parser.add_argument("--role", dest="part")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--worker-index", type=int)
    parser.add_argument("--gpu-id", type=int)
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-keyfile")
    flags, _ = parser.parse_known_args()
    name = f"worker_{flags.worker_index}" if flags.role == "worker" else flags.role
    if flags.part == "desk":
        name = "desk"
    elif flags.part == "door":
        name = f"door_{flags.port - int(os.environ['OMNI_SERVICE_GATEWAY_PORT'])}"
    program = Program(name)
    signal.signal(signal.SIGTERM, lambda number, frame: program.on_term())
    print(f"{name} says hello: {' '.join(sys.argv[1:])}", flush=True)
    program.break_if_due()
    if flags.role == "checkpoint":
        make_checkpoint(program, flags.place)
        return
    if flags.role == "cascade":
        fetch(program, flags.place)
        return
    serve(program, flags)
    while True:
        time.sleep(0.02)
        program.break_if_due()


if __name__ == "__main__":
    main()
