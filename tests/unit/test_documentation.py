"""The documentation can be built as a site, in which no link leads nowhere."""

from __future__ import annotations

import logging
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
