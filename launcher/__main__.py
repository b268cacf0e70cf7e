"""The command: `python -m launcher`."""

from __future__ import annotations

from launcher.cli import Setup, create_app

if __name__ == "__main__":
    create_app(Setup())(prog_name="start_all.sh")
