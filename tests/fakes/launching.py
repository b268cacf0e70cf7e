"""The launcher's command line with stand-ins for its programs, and in more of a hurry.

`python -m tests.fakes.launching [flags of start_all.sh]`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.cli import Setup, create_app
from launcher.plan import Programs
from launcher.supervisor import Pace

# A test of what does not answer or does not end sets it; on a busy machine the others take long.
PATIENCE_S = float(os.environ.get("LAUNCHER_PATIENCE_S", "60"))
STAND_IN = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stand_in.py")))

SETUP = Setup(
    programs=Programs(
        worker=(*STAND_IN, "worker"),
        gateway=(*STAND_IN, "gateway"),
        tiny_checkpoint=(*STAND_IN, "checkpoint"),
        embedded_checkpoint=(*STAND_IN, "checkpoint"),
        cascade=(*STAND_IN, "cascade"),
    ),
    pace=Pace(
        poll_s=0.02,
        ask_s=0.05,
        watch_s=0.1,
        answer_limit_s=PATIENCE_S,
        misses_allowed=2,
        ready_limit_s=120,
        end_margin_s=PATIENCE_S,
        first_delay_s=0.05,
        longest_delay_s=0.2,
        stable_s=30,
        max_failures=3,
        retry_s=0.3,
    ),
)

if __name__ == "__main__":
    create_app(SETUP)()
