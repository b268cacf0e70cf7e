"""Which settings the launcher's commands depend on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from config import load_settings
from launcher.cli import EXIT_USAGE, NEEDED_WHILE_RUNNING, Setup, create_app
from launcher.control import EXIT_NOT_RUNNING
from launcher.run_folder import RunFolder


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


def test_the_data_folder_of_a_file_that_is_no_json_by_now_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMNI_SERVICE_DATA_DIR", raising=False)
    config, data = tmp_path / "config.json", tmp_path / 'the "data"'
    config.write_text(
        json.dumps({"service": {"drain_timeout_s": 2.5, "data_dir": str(data)}})[:-1] + ","
    )
    with RunFolder(data / "run").held():
        given = ["--config", str(config), "--status"]
        status = CliRunner().invoke(create_app(Setup()), given)
    assert status.exit_code == 0, status.output
    found = load_settings(config, only=NEEDED_WHILE_RUNNING).service
    assert (found.data_dir, found.drain_timeout_s) == (data, 2.5)
