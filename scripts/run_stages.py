"""Runs every check and every test; `./run_tests.sh` sets up the environment first.

Groups of stages run one after another, the stages of a group concurrently, so that some compute
while others wait. A stage writes `data/tests/STAGE.xml` (JUnit), `STAGE.slowest.txt` and, if others
ran concurrently, `STAGE.log`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "data" / "tests"
PYTHON = (sys.executable, "-m")
CORES = os.cpu_count() or 1

GATES_NICENESS = 3
"""Half of the other stages' share of a core; gates compute while these wait."""

NOTHING_CHOSEN = 5
"""pytest's exit status when no test was selected; no failure if PYTEST_ARGS selects."""

EVERYWHERE = "not gpu and not nightly"
SLOWEST = 30
GROWTH_LIMIT = 2
"""The run fails if a stage takes more than this multiple of its share."""

SHOWN_LINES = 3
NOT_IN_XML = re.compile("[\x00-\x08\x0b-\x1f]")
"""Control characters, as in coloured output, which XML does not allow."""


@dataclass(frozen=True)
class Stage:
    """One command; a nonzero exit status is a failure."""

    name: str
    command: tuple[str, ...]
    share: float | None = None
    """Share of the CPU time of all default stages; None if only `--all` runs it."""
    is_pytest: bool = False
    niceness: int = 0

    @property
    def slug(self) -> str:
        return re.sub(r"\W+", "_", self.name)

    @property
    def junit(self) -> Path:
        return REPORTS / f"{self.slug}.xml"

    @property
    def log(self) -> Path:
        """File of its output if other stages run concurrently."""
        return REPORTS / f"{self.slug}.log"


def pytest_stage(name: str, *arguments: str, share: float | None = None) -> Stage:
    """Return a stage that runs pytest with PYTEST_ARGS appended."""
    stage = Stage(name, (), share, is_pytest=True)
    added = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    command = (*PYTHON, "pytest", f"--junitxml={stage.junit}", *arguments, *added)
    return replace(stage, command=command)


def page_modules() -> Stage:
    stage = Stage("modules of the pages", (), share=0.02)
    reporters = {"spec": "stdout", "junit": str(stage.junit)}
    options = [
        part
        for name, destination in reporters.items()
        for part in (f"--test-reporter={name}", f"--test-reporter-destination={destination}")
    ]
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/js").rglob("*.test.js"))
    return replace(stage, command=("node", "--test", *options, *files))


def static_checks() -> list[Stage]:
    return [
        Stage("lint", (*PYTHON, "ruff", "check", "."), share=0.01),
        Stage("format", (*PYTHON, "ruff", "format", "--check", "."), share=0.01),
        Stage("types of the pages", ("npm", "run", "--silent", "check"), share=0.01),
        Stage("lint of the pages", ("npm", "run", "--silent", "lint"), share=0.01),
        Stage("format of the pages", ("npm", "run", "--silent", "format"), share=0.01),
        page_modules(),
        Stage("types", (*PYTHON, "mypy"), share=0.07),
    ]


def groups(*, is_everything: bool, left_out: Sequence[str]) -> Iterator[list[Stage]]:
    """Yield the stages of a run.

    Args:
        is_everything: Include the tests that only `--all` runs.
        left_out: "browser" and "gates", if the machine lacks their programs.
    """
    chosen: tuple[str, ...] = ()
    if is_everything:
        chosen = ("-m", f"{EVERYWHERE} and not realtime and not alone and not gate")
    # A file's tests stay in one process, because they share what is computed from a recording.
    # tests/conftest.py determines the order.
    apart = ("--dist", "loadfile", "--no-loadscope-reorder")
    # One process more than cores, since one mostly waits for the systems that it started.
    many = ("-n", str(1 + CORES), "--ignore=tests/browser")
    stages = [pytest_stage("tests", *many, *apart, *chosen, share=0.70)]
    if "browser" not in left_out:
        # Each process starts its own system and up to two browsers.
        few = ("-n", "auto", "--maxprocesses", "4", "--ignore=tests/browser/measured")
        stages.append(
            pytest_stage("browser tests", "tests/browser", *few, *apart, *chosen, share=0.19)
        )
    if is_everything:
        stages.append(Stage("stock clients", (*PYTHON, "scripts.stock_clients")))
        if "gates" not in left_out:
            # First, because they take longest, and in a process each. They count units of the
            # model's own clock, so their figures do not depend on how long computing takes.
            marks = ("-m", f"{EVERYWHERE} and gate")
            gates = pytest_stage("gates", "tests/gates", "-n", "4", *marks)
            stages.insert(0, replace(gates, niceness=GATES_NICENESS))
    yield [*stages, *static_checks()]
    if is_everything:
        yield from real_time_groups(left_out)


def real_time_groups(left_out: Sequence[str]) -> Iterator[list[Stage]]:
    marks = ("-m", f"{EVERYWHERE} and realtime", "-rP")
    ignored = [f"--ignore=tests/{name}" for name in ("browser", "gates") if name in left_out]
    pages = "tests/browser/measured"
    two = ("-n", "2", "--dist", "loadfile")
    tests = pytest_stage("real-time tests", "tests", f"--ignore={pages}", *two, *ignored, *marks)
    beside = [tests]
    if "browser" not in left_out:
        # All of them mostly wait, so none lacks a core.
        beside.insert(0, pytest_stage("real-time pages", pages, *marks))
    yield beside
    marks = ("-m", f"{EVERYWHERE} and alone", "-rP")
    yield [pytest_stage("measured alone", "tests", *ignored, *marks)]


@dataclass(frozen=True)
class Outcome:
    stage: Stage
    code: int  # exit status
    wall_s: float
    cpu_s: float

    @property
    def has_passed(self) -> bool:
        is_empty = self.stage.is_pytest and self.code == NOTHING_CHOSEN
        return self.code == 0 or (is_empty and bool(os.environ.get("PYTEST_ARGS")))

    @property
    def sentence(self) -> str:
        verdict = "passed in" if self.has_passed else "FAILED after"
        return f"{self.stage.name}: {verdict} {self.wall_s:.0f} s"


def run(stage: Stage, begun: list[subprocess.Popen[bytes]], *, is_alone: bool) -> Outcome:
    """Run a stage, added to `begun`; its output goes to the terminal only if no other stage runs.

    Budgets are in CPU time, including child processes, because wall time depends on the load of the
    machine, and more for a stage that computes than for one that waits.
    """
    started_s = time.monotonic()
    where = f"-- {stage.name}: started, output in {os.path.relpath(stage.log, ROOT)}"
    print(f"\n== {stage.name}" if is_alone else where, flush=True)
    command = ("nice", "-n", str(stage.niceness), *stage.command)
    with nullcontext() if is_alone else stage.log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    begun.append(process)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Outcome(stage, process.returncode, time.monotonic() - started_s, cpu_s)


def report(outcome: Outcome) -> None:
    """Write the reports of a stage, and print how it ended."""
    stage, has_log = outcome.stage, outcome.stage.log.exists()
    output = stage.log.read_text(encoding="utf8", errors="replace") if has_log else ""
    if not stage.junit.exists():
        write_junit(stage.junit, outcome, output)
    write_slowest(stage.junit)
    if has_log:
        print(f"\n== {stage.name}")
        print(last_lines(output) if outcome.has_passed else output.rstrip())
    print(f"   {outcome.sentence}", flush=True)


def run_group(stages: Sequence[Stage]) -> list[Outcome]:
    """Run stages concurrently: one more than cores, because most of them wait."""
    outcomes = []
    begun: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(1 + CORES) as pool:
        runs = [pool.submit(run, stage, begun, is_alone=len(stages) == 1) for stage in stages]
        try:
            for ended in as_completed(runs):
                outcomes.append(ended.result())
                report(outcomes[-1])
        finally:  # after Ctrl-C some still run or wait
            pool.shutdown(wait=False, cancel_futures=True)
            for process in begun:
                process.terminate()
    return outcomes


def last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-SHOWN_LINES:])


def write_junit(path: Path, outcome: Outcome, output: str) -> None:
    """Write a JUnit file with one case, for commands that write none."""
    name = outcome.stage.name
    suite = ElementTree.Element("testsuite", name=name, tests="1")
    case = ElementTree.SubElement(
        suite, "testcase", classname=name, name=name, time=f"{outcome.wall_s:.3f}"
    )
    suite.set("failures", "0" if outcome.has_passed else "1")
    if not outcome.has_passed:
        ElementTree.SubElement(case, "failure").text = NOT_IN_XML.sub("", output)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def write_slowest(junit: Path) -> None:
    """Write the slowest cases of a JUnit file to a file next to it."""
    cases = [
        (float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}")
        for case in ElementTree.parse(junit).iter("testcase")
    ]
    cases.sort(reverse=True)
    lines = [f"{seconds:8.2f} s  {name}\n" for seconds, name in cases[:SLOWEST]]
    junit.with_suffix(".slowest.txt").write_text("".join(lines), encoding="utf8")


def shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the shares of the CPU time that the stages with a budget have of their total."""
    judged = {each.stage.name: each.cpu_s for each in outcomes if each.stage.share is not None}
    whole_s = sum(judged.values())
    return {name: cpu_s / whole_s if whole_s else 0.0 for name, cpu_s in judged.items()}


def outgrown(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a message for each stage that exceeds its budget.

    A stage with budget `s` is compared with the time of all others, which have `1 - s`: relative
    to the total, a stage with half of it could never exceed twice its share.
    """
    found, taken = [], shares(outcomes)
    for stage in (outcome.stage for outcome in outcomes):
        if stage.share is None:
            continue
        share = taken[stage.name]
        if share > GROWTH_LIMIT * (1 - share) * stage.share / (1 - stage.share):
            found.append(
                f"{stage.name} took {share:.0%} of the CPU time; its budget is "
                f"{stage.share:.0%} (scripts/run_stages.py). Speed it up, or raise the budget."
            )
    return found


def table(outcomes: Sequence[Outcome], wall_s: float) -> str:
    """Return a table of wall time, CPU time and share; stages may have run in parallel."""
    taken = shares(outcomes)
    lines = [f"{'stage':24}{'wall s':>8}{'cpu s':>8}{'share':>8}{'budget':>8}"]
    for outcome in outcomes:
        name, wanted = outcome.stage.name, outcome.stage.share
        share = f"{taken[name]:.0%}" if name in taken else "–"
        budget = f"{wanted:.0%}" if wanted is not None else "–"
        lines.append(f"{name:24}{outcome.wall_s:8.0f}{outcome.cpu_s:8.0f}{share:>8}{budget:>8}")
    lines.append(f"{'all':24}{wall_s:8.0f}{sum(outcome.cpu_s for outcome in outcomes):8.0f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="include the tests marked for --all")
    parser.add_argument(
        "--without", action="append", default=[], choices=["browser", "gates"], dest="left_out"
    )
    given = parser.parse_args()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    begun_s = time.monotonic()
    outcomes = []
    for group in groups(is_everything=given.all, left_out=given.left_out):
        outcomes += run_group(group)
    print("\n" + table(outcomes, time.monotonic() - begun_s))
    if given.left_out:
        print(f"\nSkipped, because programs are missing: {', '.join(given.left_out)}")
    failed = [outcome.stage.name for outcome in outcomes if not outcome.has_passed]
    if failed:
        print(f"\nFailed: {', '.join(failed)}")
    is_whole = not (given.all or given.left_out or os.environ.get("PYTEST_ARGS"))
    grown = outgrown(outcomes) if is_whole and not failed else []
    for sentence in grown:
        print(sentence)
    return 1 if failed or grown else 0


if __name__ == "__main__":
    sys.exit(main())
