"""Files for browsers: kinds, tags, compression."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response

from core.errors import NotFoundError
from gateway_modules.relay.telemetry import History
from gateway_modules.web import responses as web_files
from gateway_modules.web.responses import (
    WebFiles,
    accepts_gzip,
    json_answer,
)

GZIP = {"accept-encoding": "gzip, deflate, br"}
TEXT = b"export const answer = 42;\n" * 100


def ask(files: WebFiles, path: Path, **headers: str) -> Response:
    told = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return asyncio.run(files.answer(path, {"headers": told.raw}))


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
def test_media_types_do_not_depend_on_the_machine(
    tmp_path: Path, name: str, media_type: str
) -> None:
    (tmp_path / name).write_bytes(TEXT)
    for headers in ({}, {"accept_encoding": "gzip"}):
        assert (
            ask(WebFiles(tmp_path), tmp_path / name, **headers).headers["content-type"]
            == media_type
        )


def test_text_is_compressed_once_for_clients_that_accept_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.js"
    path.write_bytes(TEXT)
    files = WebFiles(tmp_path)
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


def test_the_cache_of_compressed_files_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_files, "PACKED_MAX", 3)
    files, paths = WebFiles(tmp_path), [tmp_path / f"{index}.js" for index in range(5)]
    for path in paths:
        path.write_bytes(TEXT)
        ask(files, path, accept_encoding="gzip")
    assert files._packed.cache_info().currsize == 3


def test_small_files_and_sound_are_sent_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_bytes(b"1")
    (tmp_path / "a.wav").write_bytes(TEXT)
    for name in ("a.js", "a.wav"):
        answer = ask(WebFiles(tmp_path), tmp_path / name, accept_encoding="gzip")
        assert isinstance(answer, FileResponse) and "content-encoding" not in answer.headers
    with pytest.raises(NotFoundError):
        ask(WebFiles(tmp_path), tmp_path / "b.js")


@pytest.mark.parametrize(
    ("told", "expected"),
    [("", False), ("gzip", True), ("br;q=1, GZIP;q=0.5", True), ("*", True), ("gzip;q=0", False)],
)
def test_accepting_gzip(told: str, expected: bool) -> None:
    assert accepts_gzip(Headers({"accept-encoding": told})) is expected


def test_long_json_is_compressed() -> None:
    long, short = (History(period_s=1, t=list(map(float, range(n))), series={}) for n in (1_000, 1))
    packed = json_answer(long, Headers(GZIP))
    assert gzip.decompress(bytes(packed.body)) == long.model_dump_json().encode()
    assert "content-encoding" not in json_answer(short, Headers(GZIP)).headers
