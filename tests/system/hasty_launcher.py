"""The launcher as it is, but in a hurry to start a dead worker again.

`python -m tests.system.hasty_launcher [flags of start_all.sh]`
"""

from __future__ import annotations

from launcher.cli import Setup, create_app
from launcher.supervisor import Pace

MANY = 1_000_000

SETUP = Setup(
    pace=Pace(
        poll_s=0.02,
        ask_s=0.1,
        first_delay_s=0.01,
        longest_delay_s=0.05,
        stable_s=MANY,
        max_failures=MANY,
    ),
)

if __name__ == "__main__":
    create_app(SETUP)()
