"""What browsers get is shorter than what is in the repository, and does the same."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePath

import pytest

from gateway_modules.web.files import as_written, compact
from tests.page_tree import STATIC
from tests.source_tree import ROOT
from tests.system.test_browser_clients import node

SCRIPT = (
    b"// @ts-check\n/** Why. */\nexport function sum(left, right) {\n  return left + right;\n}\n"
)
SAME_TREES = ROOT / "tests" / "js" / "same-trees.mjs"


def test_comments_and_blanks_do_not_travel() -> None:
    short = compact(PurePath("a.js"), SCRIPT)
    assert short == b"export function sum(left,right){return left+right;}"
    assert as_written(PurePath("a.js"), SCRIPT) == SCRIPT


@pytest.mark.parametrize("name", ["a.json", "a.css", "node_modules/a/b.js"])
def test_everything_else_goes_out_as_it_is(name: str) -> None:
    assert compact(PurePath(name), SCRIPT) == SCRIPT


def written(folder: Path, name: str, body: bytes) -> Path:
    """Write a file below a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def same_trees(folder: Path, other: Path) -> subprocess.CompletedProcess[str]:
    """Compare the syntax trees of the scripts in two folders."""
    return subprocess.run(
        [node(), SAME_TREES, folder, other], capture_output=True, text=True, check=False
    )


def test_every_script_of_ours_keeps_its_meaning(tmp_path: Path) -> None:
    for path in STATIC.rglob("*.js"):
        name = path.relative_to(STATIC).as_posix()
        written(tmp_path, name, compact(path, path.read_bytes()))
    told = same_trees(STATIC, tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert int(told.stdout) == len(list(STATIC.rglob("*.js")))


def test_the_comparison_finds_what_differs(tmp_path: Path) -> None:
    left = written(tmp_path, "left/a.js", b"export const go = () => void (ready && open());").parent
    right = written(tmp_path, "right/a.js", b"export const go=()=>{};").parent
    told = same_trees(left, right)
    assert told.returncode == 1 and "a.js" in told.stderr
