"""Lighthouse's scores of every page, as a telephone loads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.browser.browsers import QUIET_FLAGS, find_chromium
from tests.browser.looks import PageKind, present_pages
from tests.source_tree import ROOT
from tests.system.running import RunningSystem
from tests.system.test_browser_clients import node

pytestmark = pytest.mark.alone

VERSION = "12.8.2"
FOLDER = ROOT / "data" / f"lighthouse-{VERSION}"  # 185 MB, which no other test needs
PROGRAM = FOLDER / "node_modules" / "lighthouse" / "cli" / "index.js"
CATEGORIES = ("performance", "accessibility", "best-practices")
LEAST_SCORE = 0.95
# A load beside other programs scores less; what the page itself costs, it costs each time.
MAX_LOADS = 3
LIMIT_S = 180.0
PAGES = (*present_pages(), PageKind("api_docs", "/api/docs", "api-docs.html"))


@pytest.fixture(scope="session", autouse=True)
def install() -> None:
    if not PROGRAM.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        flags = ("--prefix", str(FOLDER), "--no-audit", "--no-fund", "--ignore-scripts")
        subprocess.run(("npm", "install", *flags, f"lighthouse@{VERSION}"), check=True)


def load(url: str, report: Path) -> tuple[dict[str, float], list[str]]:
    """Load a page as Lighthouse's slow telephone does.

    Returns:
        The score of each category, 0 to 1, and the audits that cost some of it.

    Raises:
        CalledProcessError: the browser answered too late.
    """
    quiet = [re.sub("=(.*)", r'="\1"', flag) for flag in QUIET_FLAGS]  # values may have spaces
    flags = ["--headless=new", *quiet, *(["--no-sandbox"] if os.getuid() == 0 else [])]
    command = [
        *(node(), str(PROGRAM), url, "--quiet", "--output=json", f"--output-path={report}"),
        f"--only-categories={','.join(CATEGORIES)}",
        f"--chrome-flags={' '.join(flags)}",
    ]
    variables = os.environ | {"CHROME_PATH": find_chromium()}
    subprocess.run(command, env=variables, timeout=LIMIT_S, check=True)
    found = json.loads(report.read_text(encoding="utf8"))
    audits = [
        found["audits"][reference["id"]]
        for category in found["categories"].values()
        for reference in category["auditRefs"]
        if reference["weight"] > 0
    ]
    costly = [
        f"{audit['title']}: {audit.get('displayValue', audit['score'])}"
        for audit in audits
        if audit["score"] is not None and audit["score"] < LEAST_SCORE
    ]
    return {name: found["categories"][name]["score"] or 0.0 for name in CATEGORIES}, costly


@pytest.mark.parametrize("kind", PAGES, ids=str)
def test_lighthouse_finds_little_to_mend(
    site: RunningSystem, recording: str, kind: PageKind, tmp_path: Path
) -> None:
    url = site.url + kind.path.format(recording=recording)
    failures = []
    for _ in range(MAX_LOADS):
        try:
            found, costly = load(url, tmp_path / "report.json")
        except subprocess.CalledProcessError as error:
            failures.append(f"Lighthouse ended with {error.returncode}")
            continue
        if min(found.values()) >= LEAST_SCORE:
            return
        failures.append(f"{found} {costly}")
    pytest.fail("\n".join(failures))
