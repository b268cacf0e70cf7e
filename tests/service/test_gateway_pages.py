"""Pages and what they load: kinds, compression, libraries, what is not there."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import wave
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import httpx
import pytest

from gateway import create_app
from gateway_modules import service
from gateway_modules.pages import Pages
from gateway_modules.service import STATIC
from gateway_modules.web.responses import IMMUTABLE
from tests.fakes.gateway_stage import Stage, on_stage, settings_for

BROWSER = {"Accept": "text/html,application/xhtml+xml", "Accept-Language": "zh-CN,zh;q=0.9"}


def build_of(folder: Path) -> Pages:
    """Return pages as if they had been built."""
    files = {
        "index.html": '<script src="/static/v-0123456789ab/pages/index.js"></script>',
        "pages/index.js": "import(`/static/v-0123456789ab/vendor/uplot/index.js`);" * 20,
        "vendor/uplot/index.js": "export {};" * 100,
        "vendor/uplot/index.css": "a{color:red}" * 100,
        "vendor/onnxruntime/index.js": "export {};" * 100,
        "vendor/onnxruntime/ort.wasm": "0" * 1_000,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Pages(folder, folder / "vendor", "0123456789ab")


def with_pages(
    tmp_path: Path,
    pages: Pages,
    visit: Callable[[httpx.AsyncClient], Awaitable[None]],
    **sections: Mapping[str, object],
) -> None:
    """Visit a gateway that serves certain pages; `sections` as of `settings_for`."""

    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service, "find_pages", lambda *_, **__: pages)
            app = create_app(settings_for(tmp_path / "data", **sections))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await visit(client)

    asyncio.run(run())


def test_files_of_a_page_are_immutable_and_not_rate_limited(tmp_path: Path) -> None:
    async def visit(client: httpx.AsyncClient) -> None:
        peer = {"X-Forwarded-For": "203.0.113.9"}
        html = (await client.get("/", headers=peer)).text
        (name,) = re.findall(r'src="([^"]+)"', html)
        for url in [name, name.replace("pages/index.js", "vendor/uplot/index.js")] * 10:
            answer = await client.get(url, headers=peer)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, IMMUTABLE)
        for other in (name.replace("0123456789ab", "0" * 12), "/static/pages/index.js"):
            answer = await client.get(other, headers=peer)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
        while (await client.get("/", headers=peer)).status_code != 429:
            pass

    with_pages(
        tmp_path,
        build_of(tmp_path / "built"),
        visit,
        limits={"requests_per_minute": 10},
        security={"trusted_proxies": ["127.0.0.0/8"]},
    )


@on_stage()
async def test_files_are_compressed_and_not_sent_twice(stage: Stage) -> None:
    url = "/static/shared/icons/sprite.svg"
    answer = await stage.http.get(url)
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["cache-control"] == "no-cache"
    plain = await stage.http.get(url, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content
    assert plain.content == (STATIC / "shared" / "icons" / "sprite.svg").read_bytes()
    again = await stage.http.get(url, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content
    head = await stage.http.head(url)
    assert head.status_code == 200 and not head.content


@on_stage()
async def test_sockets_are_never_compressed(stage: Stage) -> None:
    async with stage.client("/ws/duplex/adx_1", {"Accept-Encoding": "gzip"}) as client:
        await client.expect("queue_done")
        response = client.connection.response
        assert response is not None and "sec-websocket-extensions" not in response.headers


# Libraries.


def test_installed_libraries_are_served_with_their_kinds(tmp_path: Path) -> None:
    kinds = {
        "uplot/index.js": "text/javascript; charset=utf-8",
        "uplot/index.css": "text/css; charset=utf-8",
        "onnxruntime/ort.wasm": "application/wasm",
        "silero/silero_vad.onnx": "application/octet-stream",
    }

    async def visit(client: httpx.AsyncClient) -> None:
        for name, kind in kinds.items():
            answer = await client.get(f"/static/vendor/{name}")
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind), name
            assert answer.headers["etag"] and answer.headers["x-content-type-options"] == "nosniff"
        for path in (
            "uplot/package.json",
            "uplot/..%2findex.html",
            "react/a.js",
            "uplot/",
            "%2e/x",
            "uplot/%00",
            f"uplot/{'%E4%BD%A0' * 128}",
        ):
            assert (await client.get(f"/static/vendor/{path}")).status_code == 404, path

    with_pages(tmp_path, build_of(tmp_path / "built"), visit)


def test_a_missing_librarys_error_names_the_command(tmp_path: Path) -> None:
    async def visit(client: httpx.AsyncClient) -> None:
        answer = await client.get("/static/vendor/uplot/index.js")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert "scripts/setup.sh pages" in answer.json()["detail"]
        assert (await client.get("/")).status_code == 200

    with_pages(tmp_path, Pages(STATIC, tmp_path / "nowhere"), visit)


# What pages may do.


@on_stage()
async def test_pages_may_run_our_own_scripts_and_webassembly_and_nothing_else(stage: Stage) -> None:
    policy = (await stage.http.get("/")).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert rules["worker-src"] == rules["style-src"] == rules["default-src"] == "'self'"
    assert rules["media-src"] == rules["connect-src"] == "'self' blob:"
    assert "unsafe-inline" not in policy and "'unsafe-eval'" not in policy and "http" not in policy


# What is not there.


@on_stage()
async def test_browsers_get_a_localized_404_page_and_programs_json(stage: Stage) -> None:
    for path in ("/nowhere", "/s/nobody", "/s/no.body"):
        answer = await stage.http.get(path, headers=BROWSER)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert '<html lang="zh">' in answer.text and "返回首页" in answer.text
        answer = await stage.http.get(path, headers=BROWSER, params={"lang": "en"})
        assert '<html lang="en">' in answer.text and "Go to the start page" in answer.text
    for path in ("/api/nothing", "/static/nothing.js"):
        answer = await stage.http.get(path, headers=BROWSER)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await stage.http.get("/nowhere")).json()["code"] == "not_found"


@on_stage(recording={"enabled": False}, service={"default_lang": "zh"})
async def test_without_recording_the_viewer_says_so(stage: Stage) -> None:
    answer = await stage.http.get("/s/anything", headers={"Accept-Language": "en"})
    assert answer.status_code == 404 and "录制已关闭" in answer.text


@on_stage()
async def test_the_device_check_is_open_to_all(stage: Stage) -> None:
    for app in ("turnbased", "half_duplex_audio", "omni", "audio_duplex"):
        await stage.http.put(f"/api/admin/apps/{app}", json={"enabled": False})
    answer = await stage.http.get("/check")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")


# Voices.


@on_stage()
async def test_an_uploaded_voice_can_be_listened_to(stage: Stage) -> None:
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\x00\x10\x00\xf0" * 8_000)
    encoded = base64.b64encode(sound.getvalue()).decode()
    upload = {"name": "Mine", "audio_base64": encoded}
    voice = (await stage.http.post("/api/assets/ref_audio", json=upload)).json()
    url = f"/api/assets/ref_audio/{voice['id']}/audio"
    answer = await stage.http.get(url, headers={"Accept": "text/html"})
    assert answer.headers["content-type"] == "audio/wav" and answer.content[:4] == b"RIFF"
    part = await stage.http.get(url, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"RIFF")
    for unknown in ("nobody", "..", "..%2f..%2fstate.db"):
        answer = await stage.http.get(f"/api/assets/ref_audio/{unknown}/audio")
        assert answer.status_code == 404
