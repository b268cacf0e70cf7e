"""Reports of a test run: JUnit files, the slowest tests, and the stages' shares of CPU time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 30
GROWTH_LIMIT = 2
"""The run fails if a stage takes more than this multiple of its share."""

SHOWN_LINES = 3
NOT_IN_XML = re.compile("[\x00-\x08\x0b-\x1f]")
"""Control characters, as in coloured output, which XML does not allow."""


@dataclass(frozen=True)
class Outcome:
    name: str
    share: float | None
    has_passed: bool
    wall_s: float
    cpu_s: float

    @property
    def sentence(self) -> str:
        verdict = "passed in" if self.has_passed else "FAILED after"
        return f"{self.name}: {verdict} {self.wall_s:.0f} s"


def last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-SHOWN_LINES:])


def write_junit(path: Path, outcome: Outcome, output: str) -> None:
    """Write a JUnit file with one case, for commands that write none."""
    suite = ElementTree.Element("testsuite", name=outcome.name, tests="1")
    case = ElementTree.SubElement(
        suite, "testcase", classname=outcome.name, name=outcome.name, time=f"{outcome.wall_s:.3f}"
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


def shares(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, float]]:
    """Return the stages that have a budget, with their shares of the total CPU time."""
    judged = [outcome for outcome in outcomes if outcome.share is not None]
    whole_s = sum(outcome.cpu_s for outcome in judged)
    return [(outcome, outcome.cpu_s / whole_s if whole_s else 0.0) for outcome in judged]


def outgrown(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a message for each stage that exceeds its budget.

    A stage with budget `s` is compared with the time of all others, which have `1 - s`: relative
    to the total, a stage with half of it could never exceed twice its share.
    """
    found = []
    for outcome, share in shares(outcomes):
        if outcome.share is None:
            continue
        others_s = sum(each.cpu_s for each, _ in shares(outcomes)) - outcome.cpu_s
        expected_s = others_s * outcome.share / (1 - outcome.share)
        if outcome.cpu_s > GROWTH_LIMIT * expected_s:
            found.append(
                f"{outcome.name} took {share:.0%} of the CPU time; its budget is "
                f"{outcome.share:.0%} (scripts/run_stages.py). Speed it up, or raise the budget."
            )
    return found


def table(outcomes: Sequence[Outcome], wall_s: float) -> str:
    """Return a table of wall time, CPU time and share; stages may have run in parallel."""
    taken = {outcome.name: share for outcome, share in shares(outcomes)}
    lines = [f"{'stage':24}{'wall s':>8}{'cpu s':>8}{'share':>8}{'budget':>8}"]
    for outcome in outcomes:
        share = f"{taken[outcome.name]:.0%}" if outcome.name in taken else "–"
        budget = f"{outcome.share:.0%}" if outcome.share is not None else "–"
        lines.append(
            f"{outcome.name:24}{outcome.wall_s:8.0f}{outcome.cpu_s:8.0f}{share:>8}{budget:>8}"
        )
    lines.append(f"{'all':24}{wall_s:8.0f}{sum(outcome.cpu_s for outcome in outcomes):8.0f}")
    return "\n".join(lines)
