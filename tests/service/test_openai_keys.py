"""Client secrets, voices and addresses as OpenAI's own client uses them, unmodified."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from websockets.asyncio.client import connect

from core.errors import RateLimitedError
from core.schemas.realtime_session import SessionPatch
from gateway_modules.web import security
from gateway_modules.web.security import ClientSecrets
from tests.fakes.gateway_stage import PATIENT, Stage, on_stage, until
from tests.fakes.stock_client import stock_client
from tests.service.test_openai_chat import HELLO, KEY, client_of, wav

SESSION: Any = {"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}


@on_stage(security={"api_keys": [KEY]})
async def test_a_client_secret_is_a_key_that_expires(stage: Stage) -> None:
    async with client_of(stage) as client:
        made = await client.realtime.client_secrets.create(
            session=SESSION, expires_after={"anchor": "created_at", "seconds": 60}
        )
    assert made.value.startswith("ek_") and made.session.type == "realtime"
    whole = made.session.to_dict()
    assert whole["instructions"] == "Be brief." and whole["model"] == "minicpm-o-4.5"
    assert str(whole["id"]).startswith("sess_")
    async with client_of(stage, made.value) as page:
        assert (await page.models.list()).data
        with pytest.raises(openai.AuthenticationError, match="cannot make another"):
            await page.realtime.client_secrets.create()
    async with client_of(stage, made.value[:-1]) as stranger:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await stranger.models.list()


@on_stage(security={"api_keys": [KEY]})
async def test_a_session_starts_with_the_settings_of_its_secret(stage: Stage) -> None:
    async with client_of(stage) as client:
        made = await client.realtime.client_secrets.create(session=SESSION)
    async with (
        client_of(stage, made.value) as page,
        page.realtime.connect(
            model="gpt-realtime", websocket_connection_options=PATIENT
        ) as connection,
    ):
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(session={"type": "realtime"})
        await until(lambda: len(stage.worker.told) == 2)
    assert stage.worker.told[0] == {"type": "session.update", "session": SESSION}


@on_stage(openai={"accept_any_model": False})
async def test_a_secret_names_the_model_of_sessions_that_name_none(stage: Stage) -> None:
    """As the pages of OpenAI's guide to WebRTC and clients without `?model=` do."""
    live: Any = {"type": "realtime", "model": "minicpm-o-4.5-live"}
    unserved: Any = {**live, "model": "gpt-realtime"}
    async with client_of(stage) as client:
        made = await client.realtime.client_secrets.create(session=live)
        with pytest.raises(openai.NotFoundError):
            await client.realtime.client_secrets.create(session=unserved)
    whole = made.session.to_dict()
    assert whole["model"] == live["model"] and whole["minicpmo"] == {"engine": "live"}
    for named, used in (("", live["model"]), ("?model=minicpm-o-4.5-turn", "minicpm-o-4.5-turn")):
        url = f"ws://127.0.0.1:{stage.port}/v1/realtime{named}"
        async with connect(
            url, additional_headers={"Authorization": f"Bearer {made.value}"}
        ) as page:
            await page.recv()
        assert stage.worker.queries[-1]["model"] == used


@on_stage()
async def test_the_beta_has_the_secret_inside_the_session(stage: Stage) -> None:
    async with client_of(stage) as client:
        made = await client.post(
            "/realtime/sessions", body={"voice": "alloy", "model": "gpt-4o"}, cast_to=dict[str, Any]
        )
    assert made["audio"]["output"]["voice"] == "alloy" and made["object"] == "realtime.session"
    found = stage.gateway.client_secrets.find(made["client_secret"]["value"])
    assert found == {"voice": "alloy", "model": "gpt-4o"}


def test_secrets_expire_and_their_number_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "SECRETS_MAX", 2)
    now_s = [1_000.0]
    kept = ClientSecrets(lambda: now_s[0])
    plain, brief = SessionPatch(), SessionPatch(instructions="Be brief.")
    first, second = kept.make(brief, 10, ""), kept.make(plain, 20, "")
    assert first.expires_at == 1_010
    with pytest.raises(RateLimitedError):
        kept.make(plain, 10, "")
    now_s[0] = 1_009.9
    assert kept.find(first.value) == {"instructions": "Be brief."}
    now_s[0] = 1_010.0
    assert kept.find(first.value) is None and kept.find(second.value) == {}
    assert kept.find(kept.make(plain, 10, "").value) == {}
    assert kept.find("ek_") is None and kept.find("") is None


def test_one_client_has_at_most_half_of_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "SECRETS_MAX", 4)
    kept, plain = ClientSecrets(), SessionPatch()
    for _ in range(2):
        kept.make(plain, 10, "a stranger")
    with pytest.raises(RateLimitedError):
        kept.make(plain, 10, "a stranger")
    assert kept.find(kept.make(plain, 10, "somebody else").value) == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": 7_201}}, "expires_after.seconds"),
        ({"session": 1}, "session"),
        ({"session": {"instructions": "a" * 70_000}}, "session"),
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"tools": [{"type": "mcp", "name": "x"}]}}, "session.tools[0].type"),
    ],
)
@on_stage()
async def test_an_invalid_secret_request_names_its_field(
    stage: Stage, body: dict[str, Any], param: str
) -> None:
    async with client_of(stage) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.realtime.client_secrets.create(**body)
    assert raised.value.status_code == 400 and raised.value.param == param


@on_stage()
async def test_an_administrator_registers_a_voice(stage: Stage) -> None:
    sample = ("ada.wav", base64.b64decode(wav(1.0)), "audio/wav")
    asked: dict[str, Any] = {"name": "Ada", "audio_sample": sample, "consent": "cons_1"}
    headers = dict(stage.admin_headers)
    async with client_of(stage) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.audio.voices.create(**asked)
        made = await client.audio.voices.create(**asked, extra_headers=headers)
        assert (made.name, made.object, made.type) == ("Ada", "audio.voice", "audio_sample")
        listed = await client.get("/audio/voices", cast_to=dict[str, Any])
        assert [voice["id"] for voice in listed["data"]] == [made.id]
        for wrong, param in (
            ({"name": " "}, "name"),
            ({"name": "a" * 81}, "name"),
            ({"audio_sample": b"no sound"}, "audio_sample"),
            ({"type": "prompt", "prompt": "deep"}, "type"),
        ):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.audio.voices.create(**{**asked, **wrong}, extra_headers=headers)
            assert raised.value.param == param
        huge = ("a.wav", bytes(11 * 1024 * 1024), "audio/wav")
        with pytest.raises(openai.APIStatusError) as too_big:
            await client.audio.voices.create(
                **{**asked, "audio_sample": huge}, extra_headers=headers
            )
        assert too_big.value.status_code == 413
    assert stage.gateway.voices.get(made.id) is not None


@on_stage(security={"api_keys": [KEY]})
async def test_a_base_url_may_have_no_path(stage: Stage) -> None:
    bare = f"http://127.0.0.1:{stage.port}"
    async with stock_client(bare, KEY) as client:
        assert (await client.models.list()).data
        answer = await client.chat.completions.create(model="x", messages=HELLO)
        assert answer.choices[0].message.content == "Hello"
        spoken = await client.audio.speech.create(model="x", voice="x", input="Hi")
        assert spoken.content
        assert (await client.realtime.client_secrets.create()).value
        with pytest.raises(openai.APIStatusError) as raised:
            await client.audio.speech.create(model="x", voice="x", input="")
        assert raised.value.param == "input"
    async with stock_client(bare, "no") as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.models.list()
    assert refused.value.body == {
        "message": "Incorrect API key provided.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
