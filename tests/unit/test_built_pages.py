"""The build of the pages: what it holds, how much browsers load, and when it is served."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from core.errors import NotFoundError
from gateway_modules.pages import BUILT_FOLDER, Pages, find_pages
from gateway_modules.web.responses import LEVEL
from tests.browser.looks import PAGES, PageKind
from tests.source_tree import ROOT
from tests.system.test_browser_clients import node

MAX_OPENING_BYTES = 35_000  # JavaScript that a page opens with, compressed
MAX_BYTES = 150_000  # with all that may come late, libraries included; source: what was asked for
MAX_FILES = 5  # that the HTML of a page names: styles, icon, one or two scripts, what runs early
IN_HTML = re.compile(r'(?:src|href)="/static/(v-[0-9a-f]{12})/([^"#]+)"')
CHOSEN = {"onnxruntime"}
"""Libraries that nobody gets without asking for them: a second voice detector."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "scripts").mkdir()
    shutil.copytree(ROOT / "static", root / "static")
    for name in ("package-lock.json", "scripts/build_pages.mjs"):
        shutil.copy(ROOT / name, root / name)
    (root / "node_modules").symlink_to(ROOT / "node_modules")
    build(root)
    return root


def build(root: Path) -> None:
    subprocess.run([node(), root / "scripts" / "build_pages.mjs"], check=True, cwd=root)


def built(root: Path) -> Pages:
    """Return the pages as the gateway finds them."""
    return find_pages(root, wants_sources=False)


def bytes_sent(path: Path) -> int:
    return len(gzip.compress(path.read_bytes(), LEVEL))


def test_the_client_is_one_file_that_node_imports(root: Path) -> None:
    client = built(root).folder / "client" / "index.js"
    program = f"console.log(Object.keys(await import({json.dumps(str(client))})).join())"
    command = [node(), "--input-type=module", "--eval", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert {"Client", "DuplexSession", "play"} <= set(done.stdout.strip().split(","))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_opens_with_little_and_can_load_little(root: Path, page: PageKind) -> None:
    pages = built(root)
    html = (pages.folder / page.file).read_text(encoding="utf8")
    named = IN_HTML.findall(html.split("<body")[0])
    assert {version for version, _ in named} == {f"v-{pages.version}"}
    assert len(named) <= MAX_FILES, named
    scripts = [pages.folder / name for _, name in named if name.endswith(".js")]
    assert sum(map(bytes_sent, scripts)) <= MAX_OPENING_BYTES
    stem = Path(page.file).stem
    everything = sorted({*scripts, *(pages.folder / "pages").glob(f"{stem}*.js")})
    text = "".join(path.read_text(encoding="utf8") for path in everything)
    libraries = {name for name in os.listdir(pages.libraries) if f'"{name}"' in text} - CHOSEN
    everything += [pages.libraries / name / "index.js" for name in libraries]
    assert sum(bytes_sent(path) for path in everything if path.is_file()) <= MAX_BYTES


def test_every_address_in_a_built_file_has_the_version_of_the_build(root: Path) -> None:
    pages = built(root)
    for path in [*pages.folder.glob("*.html"), *(pages.folder / "pages").glob("*")]:
        text = path.read_text(encoding="utf8")
        assert re.findall(r"""["'`]/static/(?!v-[0-9a-f]{12}/)[^"'`]*""", text) == [], path.name


def test_a_build_is_served_while_it_is_up_to_date_and_built_once(root: Path) -> None:
    before = built(root)
    assert before.folder.is_relative_to(root / BUILT_FOLDER) and before.version
    manifest = before.folder / "manifest.json"
    made_at = manifest.stat().st_mtime_ns
    build(root)
    assert manifest.stat().st_mtime_ns == made_at
    added = root / "static" / "shared" / "added.js"
    added.write_text("export {};\n")
    assert built(root) == Pages(root / "static", before.libraries)
    build(root)
    after = built(root)
    assert after.version not in ("", before.version) and before.folder.is_dir()
    added.unlink()
    assert built(root) == before
    assert find_pages(root, wants_sources=True).folder == root / "static"


def test_the_versions_in_use_last_are_kept(root: Path) -> None:
    """A running gateway serves a version that set-up has chosen, whenever that was built."""
    used = built(root)
    os.utime(used.folder, (0, 0))  # built long ago
    build(root)  # and chosen again
    added = root / "static" / "shared" / "added.js"
    for number in range(2):
        added.write_text(f"export const number = {number};\n")
        build(root)
    added.unlink()
    assert built(root) == used
    assert len(list((root / BUILT_FOLDER).glob("v-*"))) == 3


def test_a_broken_manifest_counts_as_no_build(tmp_path: Path) -> None:
    folder = tmp_path / BUILT_FOLDER / "v-000000000000"
    folder.mkdir(parents=True)
    for text in ("", "[]", json.dumps({"version": 1})):
        (folder / "manifest.json").write_text(text)
        assert built(tmp_path).folder == tmp_path / "static"


# Libraries.


@pytest.mark.parametrize(
    "file",
    [
        "marked/index.js",
        "msgpack/index.js",
        "noto-sans-sc/index.css",
        "onnxruntime/index.js",
        "onnxruntime/ort-wasm-simd-threaded.wasm",
        "silero/silero_vad.onnx",
        "uplot/index.css",
        "uplot/index.js",
    ],
)
def test_installed_libraries_are_found(root: Path, file: str) -> None:
    assert built(root).library_file(*file.split("/")).is_file()


def test_the_style_sheet_of_the_chinese_font_finds_its_parts(root: Path) -> None:
    sheet = built(root).library_file("noto-sans-sc", "index.css")
    parts = re.findall(r"url\(([^)]+)\)", sheet.read_text(encoding="utf8"))
    assert len(parts) > 90 and all((sheet.parent / part.strip("\"'")).is_file() for part in parts)


@pytest.mark.parametrize(
    ("is_installed", "command"),
    [
        (False, "scripts/setup.sh pages"),
        (True, r"pip install --force-reinstall --no-deps minicpmo_live-\*\.whl"),
    ],
)
def test_of_a_missing_library_one_learns_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool, command: str
) -> None:
    monkeypatch.setattr("settings.fields.IS_INSTALLED", is_installed)
    with pytest.raises(NotFoundError, match=f"uplot/index.js is not .*Run {command} there"):
        built(tmp_path).library_file("uplot", "index.js")


@pytest.mark.parametrize(
    ("is_installed", "command"),
    [(False, "scripts/setup.sh worker"), (True, r"pip install 'minicpmo-live\[worker\]'")],
)
def test_of_a_missing_voice_detector_one_learns_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool, command: str
) -> None:
    monkeypatch.setattr("settings.fields.IS_INSTALLED", is_installed)
    monkeypatch.setattr("gateway_modules.pages.find_spec", lambda package: None)
    with pytest.raises(NotFoundError, match=f"Run {command} there"):
        built(tmp_path).library_file("silero", "silero_vad.onnx")


@pytest.mark.parametrize("name", ["../../manifest.json", "", "../marked/none.js", "/etc/passwd"])
def test_nothing_outside_the_libraries_is_found(root: Path, name: str) -> None:
    with pytest.raises(NotFoundError):
        built(root).library_file("uplot", name)
