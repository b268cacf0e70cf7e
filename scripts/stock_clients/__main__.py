"""Runs unmodified stock clients in pinned versions against this server: `docs/clients.md`.

Run as `python -m scripts.stock_clients`. The first run installs them into separate environments
below data/. The exit status is 0 if every scenario of every client passed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DATA = ROOT / "data" / "stock_clients"
PYTHON = DATA / "python" / "bin" / "python"
NODE = DATA / "node"
TABLE = ROOT / "docs" / "clients.md"
REQUIREMENTS = HERE / "requirements.txt"
SOURCE_ONLY = "docopt"  # has no wheel
SCENARIOS = ("hello", "VAD turn", "barge-in", "tool call", "reconnect", "camera")
LIMIT_S = 1_200.0  # of a client's whole program
READ_BYTES = 64 * 1024
EXAMPLE_HOST = "localhost:8006"  # as written in the examples
ANSWERS = ("This is a fixed", "Part 1 of turn")  # beginnings of the replies of either engine
HEAD = f"""\
# Clients

Written by `python -m scripts.stock_clients`, a stage of `./run_tests.sh --all`: the published
packages against a gateway and a worker with a scripted engine, which says fixed words and calls the
function that it is offered.

| client | version | protocol | {" | ".join(SCENARIOS)} | others | example |
|---|---|---|{"---|" * len(SCENARIOS)}---|---|
"""
FOOT = """
* semantic_vad: the duplex engine responds, and the model decides when; openai-agents,
  @openai/agents and livekit use it by default, in all scenarios but the tool call.
* hello: a text gets a spoken reply; in GPT-Live an appended text, or the context of a call.
* VAD turn: speech gets a reply after it ends; in GPT-Live the model speaks and listens by itself.
* barge-in: speech ends a reply, which is truncated to what was played; in GPT-Live the model falls
  silent.
* tool call: a function is called, and its output gets a reply. GPT-Live has functions by delegation
  only, which this server does not support.
* reconnect: a session is closed during a reply, and the next one starts at once.
* camera: our plugin for LiveKit sends the frames of a camera to the model, which mentions them.
* others: what else LiveKit's sessions do: instructions, cancellation, one reply after another,
  history (add, replace, insert, remove), transcription, turns by hand, text only, options,
  truncation, pictures, a recycled connection, and an agent session that calls a function.
* example: the client's program in the folder `examples`, with only the address changed.

openai-node requires TLS for Realtime and gets it. Not tested: these packages' classes for WebRTC
in browsers; `tests/browser/test_webrtc.py` calls from Chromium without them.
"""


@dataclass(frozen=True)
class Client:
    """A client: its package, the program of its scenarios, and its example."""

    name: str
    program: str
    example: str = ""


CLIENTS = (
    Client("openai", "run_openai.py", "openai_realtime.py"),
    Client("openai-agents", "run_agents.py", "openai_agents.py"),
    Client("livekit-plugins-openai", "run_livekit.py", "livekit_realtime.py"),
    Client("pipecat-ai", "run_pipecat.py", "pipecat_realtime.py"),
    Client("openai (npm)", "run_openai_node.mjs", "openai_node.mjs"),
    Client("@openai/agents (npm)", "run_agents_js.mjs"),
)


@dataclass
class Results:
    """Errors of one client by protocol and scenario; an empty text is a success."""

    client: Client
    status: int | None  # of its program; it prints what failed, and ends with 0
    problems: dict[str, dict[str, str]] = field(default_factory=dict)
    example_problem: str | None = None
    log: str = ""

    @property
    def has_passed(self) -> bool:
        runs = [problem for each in self.problems.values() for problem in each.values()]
        return self.status == 0 and bool(runs) and not any(runs) and not self.example_problem


def install() -> None:
    """Create the environments, unless they match the requirements."""
    wanted = REQUIREMENTS.read_text() + (HERE / "package-lock.json").read_text()
    stamp = DATA / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(DATA, ignore_errors=True)
    NODE.mkdir(parents=True)
    run = subprocess.check_call
    run((sys.executable, "-m", "venv", str(DATA / "python")))
    only = ("--only-binary=:all:", f"--no-binary={SOURCE_ONLY}")
    run((str(PYTHON), "-m", "pip", "install", "--quiet", *only, "-r", str(REQUIREMENTS)))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, NODE)
    run(("npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"), cwd=NODE)
    stamp.write_text(wanted)


async def results_of(client: Client, server: str) -> Results:
    if client.program.endswith(".py"):
        program = HERE / client.program
    else:  # modules are resolved from the program's folder
        for name in (client.program, "scenarios.mjs"):
            shutil.copy(HERE / name, NODE)
        program = NODE / client.program
    status, log = await _run(program, server)
    made = Results(client, status, log=log)
    if client.example:
        url = json.loads(server)["url"].partition("://")[2].removesuffix("/v1")
        text = (ROOT / "examples" / client.example).read_text(encoding="utf8")
        copy = (DATA if program.suffix == ".py" else NODE) / client.example
        copy.write_text(text.replace(EXAMPLE_HOST, url), encoding="utf8")
        status, output = await _run(copy)
        is_answered = status == 0 and any(answer in output for answer in ANSWERS)
        made.example_problem = "" if is_answered else output or "no output"
        made.log += made.example_problem
    for line in made.log.splitlines():
        if line.startswith('{"scenario"'):
            result = json.loads(line)
            protocol, scenario = result["scenario"].split("/")
            made.problems.setdefault(protocol, {})[scenario] = result["problem"]
    return made


async def _run(program: Path, *arguments: str) -> tuple[int | None, str]:
    """Run a client's program; return its exit status and output."""
    process = await asyncio.create_subprocess_exec(
        str(PYTHON) if program.suffix == ".py" else "node",
        str(program),
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1"},
    )
    assert process.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(LIMIT_S):
            while read := await process.stdout.read(READ_BYTES):
                output += read
            await process.wait()
    except TimeoutError:
        output += f"It did not end within {LIMIT_S:g} s.\n".encode()
    finally:
        if process.returncode is None:
            process.kill()
    return await process.wait(), output.decode(errors="replace")


def versions() -> dict[str, str]:
    lines = [line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    found = {name.lower(): version for name, version in lines}
    packages = json.loads((HERE / "package.json").read_text())["dependencies"]
    return {**found, **{f"{name} (npm)": version for name, version in packages.items()}}


def rows(results: Sequence[Results]) -> Iterator[str]:
    known = versions()
    for each in results:
        for protocol, problems in sorted(each.problems.items(), reverse=True):
            cells = [_cell(problems.get(scenario)) for scenario in SCENARIOS]
            others = [problem for name, problem in problems.items() if name not in SCENARIOS]
            cells.append(f"{others.count('')} of {len(others)} passed" if others else "–")
            cells.append(_cell(each.example_problem))
            about = (each.client.name, known[each.client.name], protocol)
            yield f"| {' | '.join((*about, *cells))} |\n"


def _cell(problem: str | None) -> str:
    if problem is None:
        return "–"
    return "failed" if problem else "passed"


async def serve_and_run(folder: Path) -> list[Results]:
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.openai_server", str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        while not (line := await server.stdout.readline()).startswith(b'{"url"'):
            assert line, "the server has exited"
        draining = asyncio.create_task(server.stdout.read())
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(results_of(each, line.decode())) for each in CLIENTS]
        server.stdin.close()
        await asyncio.gather(server.wait(), draining)
    finally:
        if server.returncode is None:
            server.kill()
    return [run.result() for run in runs]


def main() -> int:
    install()
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(serve_and_run(Path(folder)))
    table = "".join(rows(results))
    TABLE.write_text(HEAD + table + FOOT, encoding="utf8")
    print(table)
    for each in results:
        if not each.has_passed:
            print(f"== {each.client.name}\n{each.log}")
    return 0 if all(each.has_passed for each in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
