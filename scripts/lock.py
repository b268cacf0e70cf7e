"""Writes constraints.txt, the exact versions that a set-up installs: `make lock`.

They are those of the environment at hand, which the tests have passed with. Left out is what
depends on the machine: PyTorch, which pyproject.toml pins, and what its builds require exactly.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "minicpmo-live"
FILE = Path(__file__).resolve().parents[1] / "constraints.txt"
OF_THE_MACHINE = re.compile(r"^(torch|triton|nvidia-.*|cuda-.*)$")
HEAD = """\
# Exact versions for scripts/setup.sh, written by `make lock`. Any Python from 3.11 on takes them.
"""


def required(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what a distribution requires here, and with which extras."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def versions() -> dict[str, str]:
    """Return every installed distribution that the project requires, directly or not."""
    ours = distribution(PROJECT).metadata.get_all("Provides-Extra") or []
    waiting = [(PROJECT, frozenset(ours))]
    seen, found = set(waiting), {}
    while waiting:
        for each in required(*waiting.pop()):
            try:
                version = distribution(each[0]).version
            except PackageNotFoundError:
                continue  # of an extra that is not installed
            if each not in seen and not OF_THE_MACHINE.match(each[0]):
                if each[0] != PROJECT:  # an extra may hold another
                    found[each[0]] = version.partition("+")[0]
                waiting.append(each)
            seen.add(each)
    return found


def main() -> int:
    lines = [f"{name}=={version}\n" for name, version in sorted(versions().items())]
    FILE.write_text(HEAD + "".join(lines), encoding="utf8")
    print(f"{FILE.name}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
