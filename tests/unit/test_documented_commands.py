"""Every command and program in the documentation is executed by a test, or says why not."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config import Settings, load_settings
from core.store import Store
from core.telemetry import call_ids
from tests.documents import EXECUTED, PAGES, blocks
from tests.source_tree import ROOT

NAMED_FILE = re.compile(r"`((?:tests|scripts)/[\w/.]+)`")
UNITS = sorted((ROOT / "deploy").glob("*.service"))
INSTALLED = "/srv/minicpmo-live"


@pytest.mark.parametrize("page", [path.name for path in PAGES])
def test_a_block_is_executed_or_says_why_not(page: str) -> None:
    for number, block in enumerate(blocks(page)):
        test = EXECUTED.get((page, number))
        assert (test is None) != (block.reason is None), f"block {number}: {block.text[:60]}"
        if test:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf8")
        for named in NAMED_FILE.findall(block.reason or ""):
            assert (ROOT / named).exists(), named


def test_every_executed_block_exists() -> None:
    assert all(number < len(blocks(page)) for page, number in EXECUTED)


@pytest.mark.parametrize("page", ["deploy.md", "embedded.md"])
def test_settings_in_the_documentation_are_valid(page: str) -> None:
    assert blocks(page)[0].language == "json"
    Settings.model_validate(json.loads(blocks(page)[0].text))


def test_variables_of_services_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    block = blocks("deploy.md")[12]
    assert block.language == "ini"
    for line in block.text.splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    settings = load_settings()
    assert settings.service.workers == ("10.0.0.2:22400", "10.0.0.3:22400")
    assert settings.service.desk == "10.0.0.1:8005"


def test_the_trace_id_is_what_the_command_prints() -> None:
    pytest.importorskip("opentelemetry.trace")
    printed = subprocess.check_output(["bash", "-euc", blocks("operate.md")[2].text], text=True)
    assert int(printed, 16) == call_ids("adx_1", "any").trace_id


def test_what_would_be_deleted_is_listed(tmp_path: Path) -> None:
    recording = tmp_path / "data" / "sessions" / "adx_20200101_1"
    recording.mkdir(parents=True)
    os.utime(recording, (0, 0))
    command = blocks("operate.md")[6].text.replace(
        ".venv/bin/python session", f"{sys.executable} {ROOT}/session"
    )
    env = {**os.environ, "OMNI_SERVICE_DATA_DIR": str(tmp_path / "data")}
    listed = subprocess.check_output(["bash", "-euc", command], env=env, text=True)
    assert recording.name in listed and recording.is_dir()


def test_the_state_is_what_was_backed_up(tmp_path: Path) -> None:
    back_up, restore = (block.text for block in blocks("operate.md")[4:6])
    store = Store(tmp_path / "data")

    def keep(app: str) -> None:
        with store.transaction() as state:
            state.execute("INSERT INTO apps VALUES (?, 1)", (app,))

    keep("before")
    subprocess.run(["bash", "-euc", back_up], cwd=tmp_path, check=True)
    keep("after")
    shutil.copytree(tmp_path / "data", tmp_path / "backup" / "data")  # its log is not merged yet
    shutil.move(tmp_path / "copy.db", tmp_path / "backup")
    subprocess.run(["bash", "-euc", restore], cwd=tmp_path / "backup", check=True)
    restored = Store(tmp_path / "backup" / "data")
    assert restored.rows("SELECT app_id FROM apps") == [("before",)]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_starts_a_program_with_options_that_it_has(
    unit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf8"), re.MULTILINE)
    program, *options = line.replace("%i", "8006").split()
    if program == f"{INSTALLED}/start_all.sh":
        assert os.access(ROOT / "start_all.sh", os.X_OK)
        options = ["-m", "launcher", *options]
    else:
        assert program == f"{INSTALLED}/.venv/bin/python"
    # As a program, but where what it imports is loaded already.
    monkeypatch.chdir(ROOT)
    is_module = options[0] == "-m"
    name, *given = options[is_module:]
    monkeypatch.setattr(sys, "argv", [name, *given, "--help"])
    start = runpy.run_module if is_module else runpy.run_path
    with pytest.raises(SystemExit) as ended:
        start(name, run_name="__main__")
    assert not ended.value.code
