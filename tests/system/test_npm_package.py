"""The client as an npm package: what is packed installs without a network, and talks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tests.system.running import LIMIT_S, RunningSystem
from tests.system.test_browser_clients import node

README = ROOT / "packages" / "javascript" / "README.md"
PROGRAM = re.compile(r"^```javascript\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANSWER = re.compile(r"^(?:listens$|says ')", re.MULTILINE)
SECONDS = 14  # nine of the recording, and five behind it
NAME = "minicpmo-live"
TYPED = """
import { Client, play, SessionEndedError, type EndReason } from "minicpmo-live";

const client: Client = new Client("http://localhost:8006");
const call = client.duplex({ withPictures: true });
call.on("speak", ({ audioBase64, sampleRateHz }) => {
  const text: string = audioBase64, rate: number = sampleRateHz;
  console.log(text, rate);
});
call.on("ended", ({ reason }) => {
  const why: EndReason = reason;
  console.log(why.code);
});
export async function main(samples: Float32Array): Promise<void> {
  for await (const { result } of play(call, samples, { restS: 1 }))
    console.log(result.is_listen, result.text);
}
"""
MISTAKES = (
    'client.duplex({ withPictures: "yes" });',
    'call.on("spoken", () => {});',
    'play(call, "sound");',
    "console.log(new SessionEndedError().message);",
)


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(node()).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "NO_PROXY": "*", "no_proxy": "*"}
    texts = [str(part) for part in command]
    return subprocess.run(
        texts, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S
    )


def said(*command: str | Path, folder: Path) -> str:
    done = run(*command, folder=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("npm")
    built, project = folder / "built", folder / "project"
    project.mkdir()
    said(node(), ROOT / "scripts" / "build_client.mjs", built, folder=ROOT)
    packed = said("npm", "pack", built, "--pack-destination", folder, folder=folder).split()[-1]
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    caches = ("--cache", folder / "cache")  # an empty one: nothing may be needed from it
    said("npm", "install", "--offline", "--no-audit", *caches, folder / packed, folder=project)
    return project


def test_its_program_runs_as_it_stands(installed: Path, system: RunningSystem) -> None:
    [text] = PROGRAM.findall(README.read_text(encoding="utf8"))
    text = text.replace("http://localhost:8006", system.url)
    (installed / "program.js").write_text(text.replace("examples/", f"{ROOT}/examples/"))
    answers = ANSWER.findall(said(node(), "program.js", folder=installed))
    assert len(answers) == SECONDS


def test_its_types_fit_what_it_does_and_nothing_else(installed: Path) -> None:
    tsc = ROOT / "node_modules" / "typescript" / "bin" / "tsc"
    strict = ("--strict", "--noEmit", "--target", "es2022", "--module", "nodenext")
    browser = (*strict, "--lib", "es2023,dom,dom.iterable", "--types", "")
    (installed / "typed.ts").write_text(TYPED)
    said(node(), tsc, *browser, "typed.ts", folder=installed)
    (installed / "wrong.ts").write_text(TYPED + "\n".join(MISTAKES))
    wrong = run(node(), tsc, *browser, "wrong.ts", folder=installed).stdout
    assert len(re.findall(r"wrong\.ts\(\d+,\d+\): error", wrong)) == len(MISTAKES), wrong


def test_it_needs_nothing_else(installed: Path) -> None:
    packages = {path.name for path in (installed / "node_modules").glob("[!.]*")}
    assert packages == {NAME}
