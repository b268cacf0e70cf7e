"""Who may use which route: a table with one row a route, tried by every kind of caller."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from websockets.exceptions import InvalidStatus

from core.schemas.queue import SESSION_SECRET_HEADER
from gateway import create_app
from gateway_modules.web.security import ADMIN_HEADER
from recording.folder import write_owner
from tests.fakes.fake_worker import Raw
from tests.fakes.gateway_stage import Stage, on_stage, settings_for
from tests.service.test_gateway_sessions import record

PROXIED = {"trusted_proxies": ["127.0.0.0/8"]}  # so that each caller has an address of its own
EVIL = "https://evil.example"
WEBSOCKET = "WS"
NAME = re.compile(r"{(\w+)(?::path)?}")
HOME, AWAY = "203.0.113.1", "203.0.113.2"
STREAM, VOICE, OTHERS = "stream_secret_id", "hdx_secret_id", "adx_of_somebody_else"


class Caller(StrEnum):
    """Who asks."""

    OWNER = "owner"  # of the session and of the recording, by its secret
    NEIGHBOUR = "neighbour"  # calls from the address of the session's socket, without its secret
    STRANGER = "stranger"
    OTHER = "other"  # has a session too, and shows the secret of that one
    ADMIN = "admin"


class Access(StrEnum):
    """To whom a route is open."""

    ALL = "all"
    SESSION = "session"  # its owner, callers of its address, administrators
    RECORDING = "recording"  # its owner, administrators
    ADMIN = "admin"


OPEN_TO = {
    Access.ALL: set(Caller),
    Access.SESSION: {Caller.OWNER, Caller.NEIGHBOUR, Caller.ADMIN},
    Access.RECORDING: {Caller.OWNER, Caller.ADMIN},
    Access.ADMIN: {Caller.ADMIN},
}
REFUSED = {Access.SESSION: 404, Access.RECORDING: 403, Access.ADMIN: 401}


@dataclass(frozen=True)
class Row:
    """One route; names in braces stand for what belongs to the owner."""

    method: str
    route: str
    access: Access = Access.ALL
    body: Raw | None = None

    def path(self, names: Mapping[str, str]) -> str:
        return NAME.sub(lambda found: names.get(found[1], "x"), self.route)

    def json(self, names: Mapping[str, str]) -> Raw | None:
        if self.body is None:
            return None
        return {
            key: NAME.sub(lambda found: names[found[1]], value) if isinstance(value, str) else value
            for key, value in self.body.items()
        }


def admin(method: str, route: str, body: Raw | None = None) -> Row:
    return Row(method, route, Access.ADMIN, body)


RECORDING = "/api/sessions/{recording_id}"
PUBLIC = """
    /health /metrics /status /workers /api/cache /cache /api/sessions /sessions /api/queue
    /api/queue/{ticket_id} /api/config/eta /api/openapi.json /api/asyncapi.json
    /api/frontend_defaults /api/presets /api/presets/{mode}/{preset_id}/audio
    /api/default_ref_audio /api/assets/ref_audio /api/assets/ref_audio/{ref_id}/audio
    /api/sessions/{recording_id} /api/sessions/{recording_id}/recording
    /api/sessions/{recording_id}/assets/{path:path} /api/sessions/{recording_id}/download
    /api/sessions/{recording_id}/comment /api/apps /api/admin/state /api/docs
    / /check /turnbased /half_duplex /omni /audio_duplex /admin /s/{recording_id}
    /static/vendor/{library}/{name:path}
""".split()
SOCKET_PATHS = ("/ws/", "/v1/")
OPENAI_SOCKETS = [Row(WEBSOCKET, "/v1/realtime"), Row(WEBSOCKET, "/v1/live/sessions")]
# PCM, because every other format starts a process that encodes it.
SPOKEN: Raw = {"model": "x", "input": "Hi", "voice": "alloy", "response_format": "pcm"}
OPENAI = [
    Row("GET", "/v1/models"),
    Row("GET", "/v1/models/{model_id}"),
    Row("POST", "/v1/chat/completions", body={"model": "x", "messages": [{"role": "user"}]}),
    Row("POST", "/v1/audio/speech", body=SPOKEN),
    Row("POST", "/v1/audio/transcriptions"),
    Row("GET", "/v1/audio/voices"),
    admin("POST", "/v1/audio/voices"),
    Row("POST", "/v1/realtime/client_secrets", body={}),
    Row("POST", "/v1/realtime/sessions", body={}),
    Row("POST", "/v1/realtime/calls"),
    Row("POST", "/v1/realtime/calls/{call_id}/hangup"),
    Row("DELETE", "/v1/realtime/calls/{call_id}"),
    Row("POST", "/v1/live/sessions", body={"transport": {"type": "webrtc", "sdp": ""}}),
    Row("POST", "/v1/live/sessions/{call_id}/hangup"),
]
TABLE = [
    *(Row("GET", route) for route in PUBLIC),
    Row("HEAD", "/api/sessions/{recording_id}/assets/{path:path}"),
    Row("HEAD", "/static/vendor/{library}/{name:path}"),
    Row("HEAD", "/health"),
    Row("POST", "/api/chat", body={"messages": [{"role": "user", "content": "Hi"}]}),
    *OPENAI,
    Row("POST", "/api/admin/logout"),
    Row("POST", "/api/admin/login", body={"token": "{token}"}),
    Row("POST", "/api/streaming/stop", Access.SESSION, {"session_id": "{session_id}"}),
    Row("POST", "/api/half_duplex/stop", Access.SESSION, {"session_id": "{session_id}"}),
    Row("POST", "/api/duplex/stop", Access.SESSION, {"session_id": "{session_id}"}),
    Row("POST", f"{RECORDING}/comment", Access.RECORDING, {"comment": "Mine."}),
    Row("POST", f"{RECORDING}/upload-recording", Access.RECORDING),
    Row("DELETE", RECORDING, Access.RECORDING),
    admin("POST", "/api/streaming/stop", {"all": True}),
    admin("DELETE", "/api/queue/{ticket_id}"),
    admin("PUT", "/api/config/eta", {"eta_chat_s": 7}),
    admin("POST", "/api/assets/ref_audio", {"name": "x", "audio_base64": ""}),
    admin("DELETE", "/api/assets/ref_audio/{ref_id}"),
    admin("GET", "/api/admin/recordings"),
    admin("GET", "/api/admin/history"),
    admin("GET", "/api/admin/logs"),
    admin("GET", "/api/admin/audit"),
    admin("GET", "/api/admin/apps"),
    admin("PUT", "/api/admin/apps/{app_id}", {"enabled": True}),
    admin("PUT", "/api/admin/apps", {"app_id": "omni", "enabled": True}),
    admin("GET", "/api/admin/intake"),
    admin("PUT", "/api/admin/intake", {"paused": False}),
    admin("GET", "/api/admin/workers"),
    admin("PUT", "/api/admin/workers", {"workers": "refused, so that the worker stays"}),
    admin("PUT", "/api/admin/workers/{worker_id}", {"draining": False}),
    admin("POST", "/api/admin/workers/{worker_id}/restart"),
    admin("POST", "/api/admin/sessions/{session_id}/stop"),
    admin("POST", "/api/admin/cleanup", {"dry_run": True}),
    Row(WEBSOCKET, "/ws/streaming/{session_id}"),
    Row(WEBSOCKET, "/ws/half_duplex/{session_id}"),
    Row(WEBSOCKET, "/ws/duplex/{session_id}"),
    Row(WEBSOCKET, "/ws/chat"),
    *OPENAI_SOCKETS,
    Row("GET", "/static"),
]
# For clients whose base URL has no path.
BARE = [replace(row, route=row.route.removeprefix("/v1")) for row in (*OPENAI, *OPENAI_SOCKETS)]
SOCKET_ROWS = [row for row in (*TABLE, *BARE) if row.method == WEBSOCKET]
HTTP_ROWS = [row for row in (*TABLE, *BARE) if row.method != WEBSOCKET]


def test_every_route_has_a_row(tmp_path: Path) -> None:
    routes = set()
    for route in iter_route_contexts(create_app(settings_for(tmp_path)).routes):
        methods = getattr(route, "methods", None)
        is_socket = methods is None and str(route.path).startswith(SOCKET_PATHS)
        known = {WEBSOCKET} if is_socket else set(methods or {"GET"})
        # A route of the framework's own answers HEAD like GET.
        routes |= {(method, route.path) for method in known if known != {"GET", "HEAD"}}
        routes |= {("GET", route.path)} if known == {"GET", "HEAD"} else set()
    assert routes == {(row.method, row.route) for row in TABLE}


class Scene:
    """Sessions and recordings of one client, a session of another, and the callers."""

    def __init__(self, stage: Stage, stack: AsyncExitStack) -> None:
        self.stage = stage
        self.http = stage.http_client()
        self._stack = stack
        self._secrets: dict[str, str] = {}

    async def join(self, kind: str, session_id: str, address: str = HOME) -> None:
        """Have somebody in a session until the end."""
        path, headers = f"/ws/{kind}/{session_id}", {"X-Forwarded-For": address}
        client = await self._stack.enter_async_context(self.stage.client(path, headers))
        if kind == "streaming":
            await client.say("prefill", messages=[{"role": "user", "content": "Hi"}])
        else:
            await client.say("prepare")
        self._secrets[session_id] = (await client.expect("queue_done"))["session_secret"]
        await client.hear()

    async def wait(self, session_id: str) -> Raw:
        """Have somebody wait for a worker until the end; return what `queued` told."""
        path, headers = f"/ws/duplex/{session_id}", {"X-Forwarded-For": HOME}
        client = await self._stack.enter_async_context(self.stage.client(path, headers))
        return await client.expect("queued")

    def keep(self, recording_id: str) -> None:
        write_owner(record(self.stage, recording_id), self._secrets[STREAM])

    async def ask(self, row: Row, caller: Caller, **more: str) -> httpx.Response:
        """Try a route as somebody; what one caller ends, the next one still finds."""
        is_target = caller in OPEN_TO[Access.SESSION] & OPEN_TO[row.access]
        mine = (caller if is_target else Caller.OWNER).value
        kind = {"/api/streaming/stop": STREAM, "/api/half_duplex/stop": VOICE}.get(row.route)
        session_id = kind or f"adx_{mine}"
        names = {
            "session_id": session_id,
            "recording_id": f"rec_{mine}",
            "token": self.stage.admin_headers[ADMIN_HEADER],
        }
        secret = STREAM if row.access is Access.RECORDING else session_id
        headers = {
            Caller.OWNER: {SESSION_SECRET_HEADER: self._secrets[secret]},
            Caller.NEIGHBOUR: {"X-Forwarded-For": HOME},
            Caller.OTHER: {"X-Forwarded-For": HOME, SESSION_SECRET_HEADER: self._secrets[OTHERS]},
            Caller.ADMIN: self.stage.admin_headers,
            Caller.STRANGER: {},
        }[caller]
        sent = {"X-Forwarded-For": AWAY, **headers, **more}
        self.http.cookies.clear()  # of an earlier login
        return await self.http.request(
            row.method, row.path(names), json=row.json(names), headers=sent
        )

    @property
    def told_to_owners(self) -> set[str]:
        return {*self._secrets, *self._secrets.values()}


@asynccontextmanager
async def scene(stage: Stage) -> AsyncIterator[Scene]:
    """Set the scene; at the end everybody leaves."""
    async with AsyncExitStack() as stack:
        set_up = Scene(stage, stack)
        await stack.enter_async_context(set_up.http)
        await set_up.join("streaming", STREAM)
        await set_up.join("half_duplex", VOICE)
        await set_up.join("duplex", OTHERS, AWAY)
        for caller in (Caller.OWNER, Caller.NEIGHBOUR, Caller.ADMIN):
            await set_up.join("duplex", f"adx_{caller}")
            set_up.keep(f"rec_{caller}")
        yield set_up


@on_stage(workers=7, security=PROXIED)
async def test_each_route_is_restricted_to_its_roles(stage: Stage) -> None:
    async with scene(stage) as people:
        for row in HTTP_ROWS:
            for caller in sorted(Caller, key=lambda one: one in OPEN_TO[row.access]):
                answer = await people.ask(row, caller)
                what = (row.method, row.route, caller, answer.text[:200])
                if caller not in OPEN_TO[row.access]:
                    assert answer.status_code == REFUSED[row.access], what
                else:
                    assert answer.status_code not in (401, 403), what
                    is_there = row.access in (Access.SESSION, Access.RECORDING)
                    assert not (is_there and answer.status_code == 404), what


@on_stage(workers=6, security=PROXIED)
async def test_a_foreign_origin_changes_nothing_and_opens_no_socket(stage: Stage) -> None:
    async with scene(stage) as people:
        for row in HTTP_ROWS:
            answer = await people.ask(row, Caller.ADMIN, Origin=EVIL)
            assert "access-control-allow-origin" not in answer.headers, row.route
            if row.method not in ("GET", "HEAD"):
                told = answer.json()
                assert (answer.status_code, told.get("error", told)["code"]) == (
                    403,
                    "origin_refused",
                )
        for row in SOCKET_ROWS:
            with pytest.raises(InvalidStatus, match="403"):
                async with stage.client(row.path({}), {"Origin": EVIL}):
                    pass


@on_stage(workers=6, security=PROXIED)
async def test_ids_of_others_are_masked(stage: Stage) -> None:
    async with scene(stage) as people:
        waiting = await people.wait("adx_waits")
        secret = {*people.told_to_owners, waiting["ticket_id"], waiting["session_secret"]}
        for row in HTTP_ROWS:
            if row.method == "GET" and row.access is Access.ALL:
                answer = await people.ask(row, Caller.STRANGER)
                assert not {one for one in secret if one in answer.text}, row.route
        listed = (await stage.http.get("/api/queue")).json()
        assert [one["ticket_id"] for one in listed["items"]] == [waiting["ticket_id"]]
        own = {SESSION_SECRET_HEADER: waiting["session_secret"]}
        (item,) = (await people.http.get("/api/queue", headers=own)).json()["items"]
        sessions = (await people.http.get("/sessions", headers=own)).json()["sessions"]
        shown = {one["session_id"] for one in sessions}
        assert (item["ticket_id"], item["session_id"]) == (waiting["ticket_id"], "adx_waits")
        assert shown & people.told_to_owners == set() and "adx_waits" in shown
