"""Programs under supervision, without a launcher around them."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.launched import free_ports
from config import Settings
from launcher.display import Display
from launcher.plan import Kind, ProgramPlan
from launcher.processes import LogFile, until
from launcher.run_folder import RunFolder
from launcher.supervisor import Pace, Supervisor
from tests.service.launched import LIMIT_S

PACE = Pace(poll_s=0.01, ask_s=0.02, ready_limit_s=0.1, first_delay_s=0.01, end_margin_s=LIMIT_S)


def test_a_restarted_gateway_that_never_answers_is_started_again(tmp_path: Path) -> None:
    plan = ProgramPlan(
        kind=Kind.GATEWAY,
        name="gateway",
        command=(sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"),
        environment=os.environ,
        host="127.0.0.1",
        port=free_ports(1),
        scheme="http",
        log=LogFile(tmp_path / "gateway.log", 1_000_000, 1),
        pid_file=tmp_path / "gateway.pid",
    )
    printed, expected = io.StringIO(), "gateway did not become ready; restarting in"

    async def run() -> None:
        settings = Settings.model_validate({"service": {"drain_timeout_s": 0}})
        display = Display(Console(file=printed, soft_wrap=True))
        supervisor = Supervisor(RunFolder(tmp_path), display, PACE, settings)
        supervisor.launch([plan])
        watching = asyncio.create_task(supervisor.watch())
        try:
            assert await until(lambda: expected in printed.getvalue(), PACE.poll_s, LIMIT_S)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await supervisor.stop()

    asyncio.run(run())
