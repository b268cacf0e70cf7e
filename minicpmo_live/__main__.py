"""The command `minicpmo-live`: the server's command line, if the server is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent
INSTALL: Final = "pip install 'minicpmo-live[worker]'"
MISSING: Final = 2  # exit status


def main() -> None:
    # The only place that makes the server's folder importable: docs/decisions/0008-one-wheel.md.
    server = PACKAGE / "server"
    folder = str(server if server.is_dir() else PACKAGE.parent)
    sys.path.insert(0, folder)
    others = os.environ.get("PYTHONPATH")  # for child processes
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else folder
    try:
        from launcher.command import app
    except ModuleNotFoundError as error:
        print(f"{error.name} is missing; a server needs: {INSTALL}", file=sys.stderr)
        sys.exit(MISSING)
    app(prog_name="minicpmo-live")


if __name__ == "__main__":
    main()
