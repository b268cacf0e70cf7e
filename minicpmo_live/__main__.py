"""The command `minicpmo-live`: the server's command line, if the server is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent
MISSING: Final = 2  # exit status


def main() -> None:
    # The only place that makes the server's folder importable: docs/decisions/0008-one-wheel.md.
    server = PACKAGE / "server"
    is_clone = not server.is_dir()
    folder = str(PACKAGE.parent if is_clone else server)
    sys.path.insert(0, folder)
    others = os.environ.get("PYTHONPATH")  # for child processes
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else folder
    try:
        from launcher.command import app
    except ModuleNotFoundError as error:
        # As `install_command` of the settings, which an installation without extras cannot import.
        install = "scripts/setup.sh worker" if is_clone else "pip install 'minicpmo-live[worker]'"
        print(f"{error.name} is missing; a server needs: {install}", file=sys.stderr)
        sys.exit(MISSING)
    app(prog_name="minicpmo-live")


if __name__ == "__main__":
    main()
