"""Which settings the launcher's commands depend on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli import EXIT_USAGE, Setup, create_app
from launcher.control import EXIT_NOT_RUNNING


def test_a_value_that_is_invalid_by_now_prevents_neither_status_nor_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SERVICE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("OMNI_SERVICE_GATEWAY_PORT", "none")
    launcher, runner = create_app(Setup()), CliRunner()
    assert runner.invoke(launcher, []).exit_code == EXIT_USAGE
    assert runner.invoke(launcher, ["--status"]).exit_code == EXIT_NOT_RUNNING
    assert runner.invoke(launcher, ["--stop"]).exit_code == 0
