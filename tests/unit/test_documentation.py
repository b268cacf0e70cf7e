"""The documentation can be built as a site, in which no link leads nowhere."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.source_tree import ROOT


def test_the_site_is_built_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(config)
    assert caplog.messages == []
    assert (tmp_path / "start" / "index.html").is_file()


def test_zensical_builds_the_same_pages_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = (sys.executable, "-m", "zensical", "build", "--strict")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "start" / "index.html").is_file()
