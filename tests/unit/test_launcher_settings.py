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


@pytest.mark.parametrize("text", ["{", "[]", '{"service": 1}'])
def test_a_file_that_is_no_configuration_by_now_is_named_and_ignored_by_status_and_stop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    monkeypatch.setenv("OMNI_SERVICE_DATA_DIR", str(tmp_path))
    launcher, runner = create_app(Setup()), CliRunner()
    given = ["--config", str(config)]
    assert runner.invoke(launcher, given).exit_code == EXIT_USAGE
    assert runner.invoke(launcher, [*given, "--status"]).exit_code == EXIT_NOT_RUNNING
    assert runner.invoke(launcher, [*given, "--stop"]).exit_code == 0
    assert "config.json" in caplog.text and "service.data_dir" in caplog.text
    missing = ["--config", str(tmp_path / "missing.json"), "--stop"]
    assert runner.invoke(launcher, missing).exit_code == EXIT_USAGE
