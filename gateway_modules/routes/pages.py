"""Routes of the pages, their defaults, presets, voices and libraries, and AsyncAPI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from html import escape
from http import HTTPStatus
from typing import Final, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from config import FrontendDefaults
from core.errors import InvalidSessionIdError, NotFoundError
from core.protocols.events import MS_PER_S
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.export.message_schemas import CONTENT_TYPE, asyncapi_document
from gateway_modules.administration import AUDIO_DUPLEX, HALF_DUPLEX, OMNI, TURN_BASED
from gateway_modules.pages import MISSING_PAGE, Preset, PresetSounds
from gateway_modules.routes.admin import Name
from gateway_modules.routes.sessions import existing_recording, on_store_away
from gateway_modules.service import AdminOnly, ApiRouter, GatewayHere, gateway_of
from gateway_modules.voices import RefAudio
from gateway_modules.web.responses import NO_CACHE, on_error, problems
from recording.bucket import BucketError

VIEWER: Final = "session-viewer.html"
# Path -> (app that has to be enabled, if any; file).
PAGES: Final[Mapping[str, tuple[str | None, str]]] = {
    "/": (None, "index.html"),
    "/check": (None, "check.html"),
    "/turnbased": (TURN_BASED, "turnbased.html"),
    "/half_duplex": (HALF_DUPLEX, "half_duplex.html"),
    "/omni": (OMNI, "omni.html"),
    "/audio_duplex": (AUDIO_DUPLEX, "audio_duplex.html"),
    "/admin": (None, "admin.html"),
    "/api/docs": (None, "api-docs.html"),
}

READ: Final = ["GET", "HEAD"]  # monitors ask for the head alone
router = APIRouter(include_in_schema=False)
assets = ApiRouter(tags=["assets"])
documents = ApiRouter(tags=["documents"])


async def on_http_problem(request: Request, error: Exception) -> Response:
    """Answer the framework's errors; browsers get a page for a missing one."""
    assert isinstance(error, HTTPException)
    is_page = _wants_page(request) and not request.url.path.startswith(("/api/", "/static/"))
    if error.status_code == HTTPStatus.NOT_FOUND and is_page:
        return _missing(request, "page")
    return await on_error(request, error)


def _wants_page(request: Request) -> bool:
    """Whether a browser navigates, as opposed to a program or a script."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


async def page(request: Request, name: str) -> Response:
    pages = gateway_of(request).pages
    return await pages.files.answer(pages.folder / name, request.scope)


def _page_route(app_id: str | None, name: str) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        if app_id is not None and not gateway_of(request).apps.is_enabled(app_id):
            return RedirectResponse("/", HTTPStatus.FOUND)
        return await page(request, name)

    return route


for _address, (_app_id, _file) in PAGES.items():
    router.add_api_route(_address, _page_route(_app_id, _file), methods=READ, name=_file)


@router.api_route("/s/{recording_id}", methods=READ)
async def viewer(recording_id: str, request: Request, gateway: GatewayHere) -> Response:
    """Show a recording."""
    if not gateway.settings.recording.enabled:
        return _missing(request, "recording_off")
    try:
        await asyncio.to_thread(existing_recording, recording_id, gateway)
    except (InvalidSessionIdError, NotFoundError):
        return _missing(request, "recording")
    except BucketError as error:
        answer = await on_store_away(request, error)
        is_page = _wants_page(request)
        return _missing(request, "recording_store", HTTPStatus.BAD_GATEWAY) if is_page else answer
    return await page(request, VIEWER)


def _missing(
    request: Request,
    what: Literal["page", "recording", "recording_off", "recording_store"],
    status: HTTPStatus = HTTPStatus.NOT_FOUND,
) -> Response:
    gateway, accepted = gateway_of(request), request.headers.get("accept-language", "").split(",")
    chosen = [request.query_params.get("lang"), gateway.settings.service.default_lang]
    lang = gateway.languages.pick([*chosen, *(part.partition(";")[0] for part in accepted)])
    texts = gateway.languages.texts(lang)
    keys = {"title": f"missing.{what}.title", "text": f"missing.{what}.text"}
    shown = {name: texts[key] for name, key in {**keys, "home": "missing.home"}.items()}
    body = MISSING_PAGE.format(lang=lang, **{name: escape(text) for name, text in shown.items()})
    return HTMLResponse(body, status, {"Vary": "Accept-Language"})


@cache
def asyncapi_json() -> bytes:
    return json.dumps(asyncapi_document(), ensure_ascii=False).encode()


@documents.get("/api/asyncapi.json")
async def asyncapi() -> Response:
    """Return the AsyncAPI document of all WebSockets."""
    return Response(await asyncio.to_thread(asyncapi_json), media_type=CONTENT_TYPE)


@assets.head("/static/vendor/{library}/{name:path}", include_in_schema=False)
@assets.get("/static/vendor/{library}/{name:path}", include_in_schema=False)
async def library_file(
    library: Name, name: Name, request: Request, gateway: GatewayHere
) -> Response:
    """Return a library's file; the error for one not installed names the command."""
    path = await asyncio.to_thread(gateway.pages.library_file, library, name)
    return await gateway.pages.files.answer(path, request.scope)


class DefaultVoice(WireModel):
    """The server's own voice."""

    name: str = Field(description="Display name.")
    duration: float = Field(description="Length, s.")
    sample_rate: int = Field(limits.INPUT_SAMPLE_RATE_HZ, description="Samples per second.")
    samples: int = Field(description="Number of samples.")
    base64: str = Field(description="Base64 of float32 samples, mono.")


class RefAudioList(WireModel):
    """The uploaded voices."""

    total: int = Field(ge=0, description="Number of voices.")
    ref_audios: list[RefAudio] = Field(description="Oldest first.")


class RefAudioUpload(WireModel):
    """A voice to store."""

    name: str = Field(max_length=limits.ID_MAX_CHARS, description="Display name.")
    audio_base64: str = Field(description="Base64 of a sound file of any kind.")


class RefAudioChanged(WireModel):
    """Result of an upload or a deletion."""

    success: bool = Field(description="It worked.")
    id: str = Field(description="The voice.")
    name: str | None = Field(None, description="Display name.")
    message: str = Field("", description="Result as text for people.")


@assets.get("/api/frontend_defaults")
async def frontend_defaults(gateway: GatewayHere) -> FrontendDefaults:
    """Return the defaults of the pages."""
    return gateway.settings.frontend_defaults(gateway.languages.names)


@assets.get("/api/presets")
def presets(gateway: GatewayHere) -> dict[str, list[Preset]]:
    """List the presets of every mode; their audio is fetched separately."""
    return gateway.presets.list_all()


@assets.get("/api/presets/{mode}/{preset_id}/audio", responses=problems(400, 404))
async def preset_audio(mode: Name, preset_id: Name, gateway: GatewayHere) -> PresetSounds:
    """Return the audio of a preset."""
    return await gateway.voices.run(gateway.presets.sounds_of, mode, preset_id)


@assets.get("/api/default_ref_audio", responses=problems(400, 404))
async def default_ref_audio(gateway: GatewayHere) -> DefaultVoice:
    """Return the server's own voice."""
    path = gateway.voices.default_path
    if path is None:
        raise NotFoundError("This server has no default voice.")
    audio = await gateway.voices.run(gateway.voices.read, path)
    return DefaultVoice(
        name=path.stem,
        duration=round(audio.duration_ms / MS_PER_S, 3),
        samples=audio.count,
        base64=audio.to_base64(),
    )


@assets.get("/api/assets/ref_audio")
def ref_audios(gateway: GatewayHere) -> RefAudioList:
    """List the uploaded voices."""
    voices = gateway.voices.list_all()
    return RefAudioList(total=len(voices), ref_audios=voices)


@assets.get(
    "/api/assets/ref_audio/{ref_id}/audio", response_class=FileResponse, responses=problems(404)
)
def ref_audio_sound(ref_id: Name, gateway: GatewayHere) -> FileResponse:
    """Return an uploaded voice as a WAV file, or the requested ranges of it."""
    path = gateway.voices.path_of(ref_id)
    return FileResponse(path, media_type="audio/wav", headers={"Cache-Control": NO_CACHE})


@assets.post(
    "/api/assets/ref_audio",
    dependencies=[AdminOnly],
    responses=problems(400, 401, 403, 413, 422, 507),
)
async def upload_ref_audio(body: RefAudioUpload, gateway: GatewayHere) -> RefAudioChanged:
    """Store a voice: half a second to 30 s of audio in any file format."""
    voice = await gateway.voices.run(gateway.voices.upload, body.name, body.audio_base64)
    return RefAudioChanged(success=True, id=voice.id, name=voice.name, message="Stored.")


@assets.delete(
    "/api/assets/ref_audio/{ref_id}",
    dependencies=[AdminOnly],
    responses=problems(401, 403, 404, 507),
)
def delete_ref_audio(ref_id: Name, gateway: GatewayHere) -> RefAudioChanged:
    """Delete an uploaded voice."""
    gateway.voices.delete(ref_id)
    return RefAudioChanged(success=True, id=ref_id, message="Deleted.")
