"""Files for browsers: kinds, tags, compression; and the table of libraries."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response

from core.errors import NotFoundError
from gateway_modules.web import files as web_files
from gateway_modules.web.files import NONCE_PLACE, WebFiles, accepts_gzip, json_answer, with_nonce
from gateway_modules.web.vendor_files import LIBRARIES, NODE_FILES, VendorFiles
from tests.source_tree import ROOT

GZIP = {"accept-encoding": "gzip, deflate, br"}
TEXT = b"export const answer = 42;\n" * 100


def ask(files: WebFiles, path: Path, **headers: str) -> Response:
    """Return the answer to one request."""
    told = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return asyncio.run(files.answer(path, told))


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.js", "text/javascript; charset=utf-8"),
        ("a.mjs", "text/javascript; charset=utf-8"),
        ("a.wasm", "application/wasm"),
        ("a.onnx", "application/octet-stream"),
        ("a.css", "text/css; charset=utf-8"),
        ("a.png", "image/png"),
        ("a.unheard-of", "application/octet-stream"),
    ],
)
def test_the_kind_of_a_file_does_not_depend_on_the_machine(
    tmp_path: Path, name: str, media_type: str
) -> None:
    (tmp_path / name).write_bytes(TEXT)
    for headers in ({}, {"accept_encoding": "gzip"}):
        assert ask(WebFiles(), tmp_path / name, **headers).headers["content-type"] == media_type


def test_text_is_compressed_for_who_can_read_it_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "a.js"
    path.write_bytes(TEXT)
    files = WebFiles()
    packed = ask(files, path, accept_encoding="gzip")
    assert gzip.decompress(bytes(packed.body)) == TEXT
    assert packed.headers["vary"] == "Accept-Encoding"
    assert int(packed.headers["content-length"]) < len(TEXT) / 5
    assert ask(files, path, accept_encoding="gzip").body is packed.body
    plain = ask(files, path)
    assert isinstance(plain, FileResponse) and "content-encoding" not in plain.headers
    assert plain.headers["etag"] != packed.headers["etag"]
    for headers, answer in (({}, plain), ({"accept_encoding": "gzip"}, packed)):
        same = ask(files, path, if_none_match=answer.headers["etag"], **headers)
        assert same.status_code == 304 and not same.body
    path.write_bytes(TEXT + b"//")
    assert gzip.decompress(bytes(ask(files, path, accept_encoding="gzip").body)) == TEXT + b"//"


def test_what_is_kept_compressed_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_files, "KEPT_BYTES", 200)
    files, paths = WebFiles(), [tmp_path / f"{index}.js" for index in range(5)]
    for path in paths:
        path.write_bytes(TEXT)
        ask(files, path, accept_encoding="gzip")
    assert sum(map(len, files._packed.values())) <= 200
    assert files._packed_bytes == sum(map(len, files._packed.values()))


def test_small_files_and_sound_are_sent_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_bytes(b"1")
    (tmp_path / "a.wav").write_bytes(TEXT)
    for name in ("a.js", "a.wav"):
        answer = ask(WebFiles(), tmp_path / name, accept_encoding="gzip")
        assert isinstance(answer, FileResponse) and "content-encoding" not in answer.headers
    with pytest.raises(NotFoundError):
        ask(WebFiles(), tmp_path / "b.js")


@pytest.mark.parametrize(
    ("told", "expected"),
    [("", False), ("gzip", True), ("br;q=1, GZIP;q=0.5", True), ("*", True), ("gzip;q=0", False)],
)
def test_who_can_read_gzip(told: str, expected: bool) -> None:
    assert accepts_gzip(Headers({"accept-encoding": told})) is expected


def test_long_json_is_compressed() -> None:
    body = json.dumps({"t": list(range(1_000))}).encode()
    packed = asyncio.run(json_answer(body, Headers(GZIP)))
    assert gzip.decompress(bytes(packed.body)) == body
    assert "content-encoding" not in asyncio.run(json_answer(b"{}", Headers(GZIP))).headers


def test_a_page_gets_a_fresh_nonce_each_time() -> None:
    page = b"<head>" + NONCE_PLACE + b"</head>"
    (first, policy), (second, _) = with_nonce(page), with_nonce(page)
    assert first != second and NONCE_PLACE not in first
    nonce = first.split(b'content="')[1].split(b'"')[0].decode()
    assert f"style-src 'self' 'nonce-{nonce}'" in policy
    assert "unsafe-inline" not in policy and "'wasm-unsafe-eval'" in policy


# Libraries.


def installed_in(folder: Path) -> VendorFiles:
    """Pretend that npm has run."""
    for files in NODE_FILES.values():
        for name in files.values():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("export {};")
    return VendorFiles(folder)


def test_installed_libraries_are_found(tmp_path: Path) -> None:
    vendor = installed_in(tmp_path)
    told = vendor.installed()
    assert set(told) == set(LIBRARIES)
    assert all(told[library] for library in NODE_FILES)
    assert vendor.find("uplot", "uPlot.esm.js").is_file()
    assert vendor.find("silero", "silero_vad.onnx").name == "silero_vad.onnx"


def test_of_a_missing_library_one_learns_what_to_run(tmp_path: Path) -> None:
    vendor = VendorFiles(tmp_path)
    assert not any(vendor.installed()[library] for library in NODE_FILES)
    with pytest.raises(NotFoundError, match="uplot is not installed .*scripts/setup.sh pages"):
        vendor.find("uplot", "uPlot.esm.js")


def test_a_library_that_lacks_one_file_is_not_installed(tmp_path: Path) -> None:
    vendor = installed_in(tmp_path)
    (tmp_path / NODE_FILES["onnxruntime"]["ort-wasm-simd-threaded.wasm"]).unlink()
    assert not vendor.installed()["onnxruntime"]


@pytest.mark.parametrize(
    ("library", "name"),
    [("uplot", "../uplot/package.json"), ("uplot", ""), ("..", "x"), ("lodash", "lodash.js")],
)
def test_nothing_outside_the_table_is_found(tmp_path: Path, library: str, name: str) -> None:
    with pytest.raises(NotFoundError, match="no such library file"):
        installed_in(tmp_path).find(library, name)


def test_the_table_names_packages_of_the_lock_file() -> None:
    wanted = json.loads((ROOT / "package.json").read_text(encoding="utf8"))["dependencies"]
    paths = [path for files in NODE_FILES.values() for path in files.values()]
    assert {
        package for package in wanted for path in paths if path.startswith(f"{package}/")
    } == set(wanted)
    assert all(any(path.startswith(f"{package}/") for package in wanted) for path in paths)
