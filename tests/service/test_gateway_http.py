"""What the gateway says of itself, what administrators may do, and what every answer carries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from core.store import Store
from gateway import create_app
from gateway_modules.administration import AppRegistry, load_eta
from gateway_modules.queue.worker_connection import utc_now
from gateway_modules.web.security import ADMIN_HEADER
from settings.embedded import CASCADE_FOLDER, PROGRESS_FILE
from tests.fakes.gateway_stage import HOST, Stage, on_stage, settings_for, until

TOKEN = "a long enough token"


# Status.


@on_stage(workers=2)
async def test_health_distinguishes_alive_from_ready(stage: Stage) -> None:
    health = (await stage.http.get("/health")).json()
    assert health["status"] == "healthy"
    assert (health["ready"], health["workers_ready"]) == (True, 2)
    assert health["timestamp"]
    for worker in stage.gateway.pool.workers.values():
        stage.gateway.pool.directory.report_unreachable(worker)
    for one in stage.workers:
        one.script.status = "loading"
    health = (await stage.http.get("/health")).json()
    assert (health["status"], health["ready"], health["workers_ready"]) == ("healthy", False, 0)


@on_stage(workers=2)
async def test_status_and_workers_counts(stage: Stage) -> None:
    status = (await stage.http.get("/status")).json()
    assert status["gateway_healthy"] is True
    assert (status["total_workers"], status["idle_workers"]) == (2, 2)
    assert status["running_tasks"] == []
    async with stage.client("/ws/duplex/adx_1") as client:
        await client.expect("queue_done")
        status = (await stage.http.get("/status")).json()
        assert (status["busy_workers"], status["duplex_workers"]) == (1, 1)
        (task,) = status["running_tasks"]
        assert task["session_id"] == "adx_1"
        assert 100 < task["estimated_remaining_s"] <= 120
        workers = (await stage.http.get("/workers")).json()
        assert workers["total"] == 2
        assert [one["worker_id"] for one in workers["workers"]] == ["worker_0", "worker_1"]
        queue = (await stage.http.get("/api/queue")).json()
        assert (queue["queue_length"], queue["items"]) == (0, [])
        assert len(queue["running_tasks"]) == 1


@on_stage()
async def test_status_shows_the_progress_of_the_cascades_download(stage: Stage) -> None:
    async def told(client: httpx.AsyncClient = stage.http) -> object:
        return (await client.get("/status")).json()["fetch"]

    assert await told() is None
    file = stage.gateway.settings.service.data_dir / CASCADE_FOLDER / PROGRESS_FILE
    file.parent.mkdir(parents=True)
    file.write_text('{"state": "fet')
    assert await told() is None
    file.write_text('{"state": "failed", "done_bytes": 3, "total_bytes": 7, "problem": "no /disk"}')
    facts = {"state": "failed", "done_bytes": 3, "total_bytes": 7}
    assert await told() == {**facts, "problem": "no /disk"}
    async with stage.http_client() as stranger:
        assert await told(stranger) == {**facts, "problem": None}


@on_stage()
async def test_only_administrators_read_what_went_wrong_on_a_worker(stage: Stage) -> None:
    problem = "FileNotFoundError: /srv/models/weights.safetensors"
    stage.gateway.pool.workers["worker_0"].service.record_error(problem, utc_now())
    async with stage.http_client() as stranger:
        for client, shown in ((stage.http, problem), (stranger, None)):
            [worker] = (await client.get("/workers")).json()["workers"]
            assert (worker["last_error"], worker["error"]) == (shown, None)


@on_stage()
async def test_metrics_count_sessions_waits_bytes_and_requests(stage: Stage) -> None:
    async with stage.client("/ws/duplex/adx_1") as client:
        await client.expect("queue_done")
        await client.say("prepare")
        await client.expect("prepared")
        text = (await stage.http.get("/metrics")).text
        assert 'omni_gateway_sessions{mode="audio_duplex"} 1.0' in text
        assert 'omni_gateway_workers{status="duplex_active"} 1.0' in text
    await stage.check_quiet()
    await stage.http.get("/api/sessions/nobody/comment")
    text = (await stage.http.get("/metrics")).text
    assert 'omni_gateway_sessions{mode="audio_duplex"} 0.0' in text
    assert 'queue_wait_seconds_count{mode="audio_duplex",outcome="assigned"} 1.0' in text
    assert 'omni_gateway_bytes_total{direction="up",mode="audio_duplex"}' in text
    route = 'route="/api/sessions/{recording_id}/comment",status="404"'
    assert f'omni_gateway_requests_total{{method="GET",{route}}} 1.0' in text


def test_before_the_start_only_health_answers(tmp_path: Path) -> None:
    async def ask() -> None:
        transport = httpx.ASGITransport(create_app(settings_for(tmp_path)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/health")).json()["ready"] is False
            for path in ("/status", "/workers", "/cache", "/api/queue", "/sessions"):
                answer = await client.get(path)
                assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
            request = {"messages": [{"role": "user", "content": "Hi"}]}
            assert (await client.post("/api/chat", json=request)).status_code == 503
            assert (await client.get("/")).status_code == 200

    asyncio.run(ask())


# Estimates.


@on_stage()
async def test_expected_durations_change_at_once_and_are_kept(stage: Stage) -> None:
    before = (await stage.http.get("/api/config/eta")).json()
    assert before["config"]["eta_omni_duplex_s"] == 90
    assert before["ema_chat_s"] is None and before["ema_chat_samples"] == 0
    change = {"eta_omni_duplex_s": 33.5, "ema_alpha": 0.5}
    async with (
        stage.client("/ws/duplex/omni_1") as first,
        stage.client("/ws/duplex/omni_2") as second,
    ):
        await first.expect("queue_done")
        assert (await second.expect("queued"))["eta_seconds"] > 80
        after = (await stage.http.put("/api/config/eta", json=change)).json()
        assert (after["config"]["eta_omni_duplex_s"], after["ema_alpha"]) == (33.5, 0.5)
        assert after["config"]["eta_chat_s"] == before["config"]["eta_chat_s"]
        while (await second.expect("queue_update"))["eta_seconds"] > 33.5:
            continue  # told before the change
    await stage.http.put("/api/config/eta", json={"eta_chat_s": 7})
    kept = load_eta(stage.gateway.store, stage.settings.service)
    assert (kept.eta_omni_duplex_s, kept.eta_chat_s, kept.eta_streaming_s) == (33.5, 7, 20)
    for wrong in (
        {"eta_chat_s": 0},
        {"eta_chat_s": 86_401},
        {"eta_chat_s": 8.9e307},
        {"ema_alpha": 1.5},
        {"eta_chat_s": None},
        {"eta_chat_s": "x"},
    ):
        answer = await stage.http.put("/api/config/eta", json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_json")


# Administration.


@on_stage(security={"insecure_admin": True})
async def test_insecure_admin_is_open_to_everybody(stage: Stage) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.5"}
    assert (await stage.http.get("/api/admin/apps", headers=elsewhere)).status_code == 200


@on_stage(security={"admin_token": TOKEN})
async def test_a_login_gives_a_cookie_that_is_not_the_token(stage: Stage) -> None:
    state = (await stage.http.get("/api/admin/state")).json()
    assert state == {"needs_token": True, "is_admin": False}
    assert (await stage.http.post("/api/admin/login", json={"token": "x"})).status_code == 401
    answer = await stage.http.post("/api/admin/login", json={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert (await stage.http.get("/api/admin/state")).json()["is_admin"] is True
    assert (await stage.http.get("/api/admin/apps")).status_code == 200
    await stage.http.post("/api/admin/logout")
    assert (await stage.http.get("/api/admin/apps")).status_code == 401


@on_stage(security={"admin_token": TOKEN})
async def test_wrong_tokens_are_rate_limited(stage: Stage) -> None:
    wrong, codes = {"X-Admin-Token": "wrong"}, list[int]()
    while codes[-1:] != [429]:  # slowly tried, more than ten are answered
        codes.append((await stage.http.get("/api/admin/apps", headers=wrong)).status_code)
    assert len(codes) > 10 and set(codes[:-1]) == {401}


@on_stage()
async def test_apps_are_switched_and_the_switch_survives(stage: Stage) -> None:
    names = [app["app_id"] for app in (await stage.http.get("/api/apps")).json()["apps"]]
    assert names == ["turnbased", "half_duplex_audio", "omni", "audio_duplex"]
    answer = await stage.http.put("/api/admin/apps/half_duplex_audio", json={"enabled": False})
    assert answer.json() == {
        "success": True,
        "app": {
            "app_id": "half_duplex_audio",
            "name": "Half-Duplex Audio",
            "route": "/half_duplex",
            "enabled": False,
        },
    }
    assert len((await stage.http.get("/api/apps")).json()["apps"]) == 3
    everything = (await stage.http.get("/api/admin/apps")).json()["apps"]
    assert [app["enabled"] for app in everything] == [True, False, True, True]
    assert (await stage.http.put("/api/admin/apps/no", json={"enabled": True})).status_code == 404
    assert (await stage.http.put("/api/admin/apps/omni", json={})).status_code == 422
    assert not AppRegistry(Store(stage.gateway.settings.service.data_dir)).is_enabled(
        "half_duplex_audio"
    )


@on_stage(workers=2)
async def test_a_drained_worker_gets_no_new_sessions(stage: Stage) -> None:
    path = "/api/admin/workers/worker_0"
    assert (await stage.http.put(path, json={"draining": True})).json()["is_draining"] is True
    async with stage.client("/ws/duplex/adx_1") as client:
        assert (await client.expect("queue_done"))["worker_id"] == "worker_1"
    await stage.http.put(path, json={"draining": False})
    answer = await stage.http.put("/api/admin/workers/worker_9", json={"draining": True})
    assert answer.status_code == 404


@on_stage()
async def test_recordings_are_cleaned_up_on_demand(stage: Stage) -> None:
    wish = {"dry_run": True, "retention_days": -1, "max_storage_gb": -1}
    answer = await stage.http.post("/api/admin/cleanup", json=wish)
    assert answer.json()["status"] == "skipped"
    for field in ("retention_days", "max_storage_gb"):
        answer = await stage.http.post("/api/admin/cleanup", json={field: 1e308})
        assert (answer.status_code, field in answer.json()["detail"]) == (422, True)
    wish = {"dry_run": True, "retention_days": 1}
    report = (await stage.http.post("/api/admin/cleanup", json=wish)).json()
    assert (report["status"], report["scanned"], report["dry_run"]) == ("ok", 0, True)


@on_stage()
async def test_the_end_of_a_conversation_asks_for_a_cleanup(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(stage.gateway.cleanup, "request", lambda: asked.append("one"))
    async with stage.client("/ws/duplex/adx_1") as client:
        await client.expect("queue_done")
        assert asked == []
    await stage.check_quiet()
    assert len(asked) == 1
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (await stage.http.post("/api/chat", json=chat)).is_success
    assert len(asked) == 2


# Every answer.


@on_stage()
async def test_responses_have_security_headers(stage: Stage) -> None:
    for path in ("/", "/health", "/nowhere", "/static/plain.css"):
        headers = (await stage.http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["permissions-policy"] == "camera=(self), microphone=(self)"
        assert headers["referrer-policy"]
        assert headers["x-request-id"]
        assert "server" not in headers
    assert (await stage.http.get("/")).headers["cache-control"] == "no-cache"


@on_stage()
async def test_errors_have_one_format(stage: Stage) -> None:
    for method, path, status, code in (
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/health", 405, "not_found"),
        ("GET", "/api/presets/omni/nobody/audio", 404, "not_found"),
    ):
        answer = await stage.http.request(method, path)
        assert answer.status_code == status
        assert answer.json() == {"detail": answer.json()["detail"], "code": code}
    secret = "do not repeat me"
    answer = await stage.http.put("/api/admin/intake", json={"paused": secret})
    assert answer.status_code == 422 and secret not in answer.text


@on_stage(security={"allowed_origins": ["https://friend.example"]})
async def test_an_unexpected_error_is_a_response_like_all_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: AppRegistry) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(AppRegistry, "get_enabled_apps", fail)
    answer = await stage.http.get("/api/apps", headers={"Origin": "https://friend.example"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "mistake" not in answer.text
    for header in ("x-request-id", "access-control-allow-origin", "content-security-policy"):
        assert answer.headers[header]
    assert 'route="/api/apps",status="500"} 1.0' in (await stage.http.get("/metrics")).text


@on_stage()
async def test_long_paths_do_not_fill_the_log(stage: Stage) -> None:
    with capture_logs() as lines:
        assert (await stage.http.get("/" + "x" * 5_000)).status_code == 404
    [line] = [one for one in lines if one["event"] == "request"]
    assert len(line["path"]) < 500


@on_stage()
async def test_bodies_have_a_limit(stage: Stage) -> None:
    answer = await stage.http.put("/api/admin/intake", content=b" " * (1024 * 1024 + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_big")


@on_stage(limits={"requests_per_minute": 1}, security={"trusted_proxies": ["127.0.0.0/8"]})
async def test_requests_are_rate_limited_per_address(stage: Stage) -> None:
    for address, expected in (("203.0.113.1", [200, 429]), ("203.0.113.2", [200])):
        headers = {"X-Forwarded-For": address}
        codes = [(await stage.http.get("/api/apps", headers=headers)).status_code for _ in expected]
        assert codes == expected
    assert (await stage.http.get("/api/apps")).status_code == 200  # this machine is not counted


@on_stage()
async def test_the_interface_is_described(stage: Stage) -> None:
    document = (await stage.http.get("/api/openapi.json")).json()
    assert {"/health", "/api/chat", "/api/queue", "/api/sessions/{recording_id}"} <= set(
        document["paths"]
    )
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert route.get("description"), f"{method} {path} is not described"
    routes = [route for methods in document["paths"].values() for route in methods.values()]
    assert all(len(set(route["tags"])) == len(route["tags"]) > 0 for route in routes)
    ids = [route["operationId"] for route in routes]
    assert sorted(set(ids)) == sorted(ids) and all(name.isidentifier() for name in ids)
    schemes = document["components"]["securitySchemes"]
    assert (schemes["AdminToken"]["in"], schemes["AdminToken"]["name"]) == ("header", ADMIN_HEADER)
    for path, method in (("/api/config/eta", "put"), ("/api/assets/ref_audio", "post")):
        assert document["paths"][path][method]["security"] == [{"AdminToken": []}]
    assert "security" not in document["paths"]["/health"]["get"]
    text = json.dumps(document)
    known = document["components"]["schemas"]
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(known)
    page = (await stage.http.get("/api/docs")).text
    assert "https://" not in page and "/api-docs.js" in page
    assert (await stage.http.get("/docs")).status_code == 404


@on_stage()
async def test_pages_answer(stage: Stage) -> None:
    for path in ("/", "/turnbased", "/half_duplex", "/omni", "/audio_duplex", "/admin"):
        answer = await stage.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
    for path in ("/", "/s/nowhere", "/health"):
        answer = await stage.http.head(path)
        assert (answer.status_code, answer.content) == (404 if "nowhere" in path else 200, b"")
    for path in ("/static/..%2fconfig.py", "/static/%2e%2e/gateway.py", "/static//etc/passwd"):
        assert (await stage.http.get(path)).status_code == 404


@on_stage(service={"default_lang": "zh"}, duplex={"max_kv_tokens": 4096})
async def test_the_frontend_defaults(stage: Stage) -> None:
    defaults = (await stage.http.get("/api/frontend_defaults")).json()
    assert defaults["playback_delay_ms"] == 200
    assert (defaults["default_lang"], defaults["max_kv_tokens"]) == ("zh", 4096)
    assert defaults["half_duplex"]["vad_threshold"] == 0.8
    assert defaults["limits"]["live_message_bytes"] == 2 * 1024 * 1024
    assert "token" not in json.dumps(defaults["limits"])


@on_stage(security={"allowed_origins": ["https://friend.example"]})
async def test_allowed_origins_may_use_the_interface(stage: Stage) -> None:
    friend = {"Origin": "https://friend.example"}
    answer = await stage.http.get("/api/apps", headers=friend)
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"
    answer = await stage.http.post("/api/duplex/stop", json={"session_id": "x"}, headers=friend)
    assert answer.status_code == 404
    async with stage.client("/ws/duplex/adx_1", friend) as client:
        await client.expect("queue_done")


@on_stage(security={"allowed_origins": ["https://Friend.example:443/"]})
async def test_pages_of_an_origin_may_read_answers_however_it_is_written(stage: Stage) -> None:
    answer = await stage.http.get("/api/apps", headers={"Origin": "https://friend.example"})
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"


@on_stage(security={"worker_secret": "between ourselves"})
async def test_workers_receive_the_secret(stage: Stage) -> None:
    async with stage.client("/ws/duplex/adx_1", {"X-Worker-Secret": "guess"}) as client:
        await client.expect("queue_done")
        await until(lambda: stage.worker.headers)
    assert stage.worker.headers[0]["x-worker-secret"] == "between ourselves"
    assert stage.worker.headers[0]["host"].startswith(HOST)
