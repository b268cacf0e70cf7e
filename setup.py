"""Lays the wheel out: the client as `minicpmo_live`, and the whole server in a folder of it.

The server's top-level names (`core`, `config`, `worker`, ...) would meet others' in site-packages:
docs/decisions/0008-one-wheel.md. An editable installation has the repository as it is.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CLIENT = "minicpmo_live"
SERVER = f"{CLIENT}/server"
PROGRAMS = ("config", "gateway", "session_cleanup", "session_recorder", "worker")
NOT_SERVED = ("training",)  # packages for those who have the repository
# The build of the pages is served only while it fits the sources, so these come with it.
FILES = ("assets", "examples", "static", "package-lock.json", "scripts/build_pages.mjs")
PAGES = Path("build") / "pages"
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


class BuildServer(build_py):
    """Builds the client's package, and puts the server beside it as it stands in the repository."""

    def finalize_options(self) -> None:
        """Leave the server's packages out of the top level of a wheel."""
        super().finalize_options()
        self.server_packages = [name for name in self.packages if "." not in name]
        if not self.editable_mode:
            self.packages = [name for name in self.packages if name.partition(".")[0] == CLIENT]

    def run(self) -> None:
        """Copy the client, then the server."""
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(Path(self.build_lib) / CLIENT, ignore_errors=True)  # of an earlier build
        super().run()
        _build_pages()
        folders = [name for name in self.server_packages if name not in (CLIENT, *NOT_SERVED)]
        for name in (*folders, *(f"{name}.py" for name in PROGRAMS), *FILES, _newest_pages()):
            target = Path(self.build_lib) / SERVER / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=IGNORED)
            else:
                shutil.copy(ROOT / name, target)


def _build_pages() -> None:
    """Build the pages, unless they are up to date.

    Raises:
        SystemExit: Node or the pages' libraries are missing.
    """
    node = subprocess.run([ROOT / "scripts" / "find_node.sh"], capture_output=True, text=True)
    if node.returncode or not (ROOT / "node_modules").is_dir():
        raise SystemExit("To build the pages run first: scripts/setup.sh pages")
    program = Path(node.stdout.strip()) / "node"
    subprocess.run([program, ROOT / "scripts" / "build_pages.mjs"], check=True)


def _newest_pages() -> str:
    """Return where the newest build of the pages lies."""
    builds = (ROOT / PAGES).glob("v-*/manifest.json")
    newest = max(builds, key=lambda path: path.stat().st_mtime)
    return str(newest.parent.relative_to(ROOT))


setup(cmdclass={"build_py": BuildServer})
