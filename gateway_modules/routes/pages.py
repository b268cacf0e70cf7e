"""Pages, the libraries they load, and the document that describes the sockets."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.errors import InvalidSessionIdError, NotFoundError
from core.schemas import limits
from core.schemas.export.asyncapi import CONTENT_TYPE, asyncapi_document
from gateway_modules.service import GatewayHere, gateway_of
from gateway_modules.web.answers import on_http_exception
from gateway_modules.web.files import IMMUTABLE, NO_CACHE, NONCE_PLACE, is_immutable, with_nonce
from gateway_modules.web.pages import Missing, missing_page, wants_page

HOME: Final = "index.html"
VIEWER: Final = "session-viewer.html"
API_PAGE: Final = "api-docs.html"

Name = Annotated[str, Path(max_length=limits.ID_MAX_CHARS)]

router = APIRouter(include_in_schema=False)
assets = APIRouter(tags=["assets"])


async def on_http_problem(request: Request, error: Exception) -> Response:
    """Return errors of the framework; a browser gets a page for a missing one."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and wants_page(request):
        return _missing(request, Missing.PAGE)
    return await on_http_exception(request, error)


async def page(request: Request, name: str) -> Response:
    gateway = gateway_of(request)
    path = gateway.pages.folder / name
    content = await asyncio.to_thread(path.read_bytes)
    if NONCE_PLACE not in content:
        return await gateway.web_files.answer(path, request.headers)
    content, policy = with_nonce(content, gateway.recordings.media_origin)
    headers = {"Content-Security-Policy": policy, "Cache-Control": NO_CACHE}
    return HTMLResponse(content, headers=headers)


async def app_page(request: Request, app_id: str, name: str) -> Response:
    """Return the page of an app, or redirect home if the app is switched off."""
    if not gateway_of(request).apps.is_enabled(app_id):
        return RedirectResponse("/", HTTPStatus.FOUND)
    return await page(request, name)


@router.get("/")
async def home(request: Request) -> Response:
    """Home."""
    return await page(request, HOME)


@router.get("/check")
async def check(request: Request) -> Response:
    """Check microphone, speaker and camera."""
    return await page(request, "check.html")


@router.get("/turnbased")
async def turnbased(request: Request) -> Response:
    """Turn-based chat."""
    return await app_page(request, "turnbased", "turnbased.html")


@router.get("/half_duplex")
async def half_duplex(request: Request) -> Response:
    """Half duplex."""
    return await app_page(request, "half_duplex_audio", "half_duplex.html")


@router.get("/omni")
async def omni(request: Request) -> Response:
    """Full duplex with pictures."""
    return await app_page(request, "omni", "omni.html")


@router.get("/audio_duplex")
async def audio_duplex(request: Request) -> Response:
    """Full duplex with sound alone."""
    return await app_page(request, "audio_duplex", "audio_duplex.html")


@router.get("/admin")
async def admin(request: Request) -> Response:
    """Administration; what it shows it asks for with the administrator's token."""
    return await page(request, "admin.html")


@router.get("/api/docs")
async def api_docs(request: Request) -> Response:
    """Show the description of the HTTP interface."""
    return await page(request, API_PAGE)


@router.get("/s/{recording_id}")
async def viewer(recording_id: str, request: Request, gateway: GatewayHere) -> Response:
    """Show a recording."""
    if not gateway.settings.recording.enabled:
        return _missing(request, Missing.RECORDING_OFF)
    try:
        await asyncio.to_thread(gateway.files.check, recording_id)
    except (InvalidSessionIdError, NotFoundError):
        return _missing(request, Missing.RECORDING)
    return await page(request, VIEWER)


def _missing(request: Request, missing: Missing) -> Response:
    gateway = gateway_of(request)
    return missing_page(request, missing, gateway.languages, gateway.settings.service.default_lang)


def make_documents() -> APIRouter:
    """Return the router of `GET /api/asyncapi.json`; the document is made on the first request."""
    documents = APIRouter(tags=["documents"])

    @cache
    def document() -> bytes:
        return json.dumps(asyncapi_document(), ensure_ascii=False).encode()

    @documents.get("/api/asyncapi.json")
    async def asyncapi() -> Response:
        """Describe the messages of every WebSocket, as AsyncAPI."""
        return Response(await asyncio.to_thread(document), media_type=CONTENT_TYPE)

    return documents


@assets.head("/static/vendor/{library}/{name:path}", include_in_schema=False)
@assets.get("/static/vendor/{library}/{name:path}", include_in_schema=False)
async def library_file(
    library: Name, name: Name, request: Request, gateway: GatewayHere
) -> Response:
    """Return a file of a library; of one that is not installed, say what to run."""
    path = await asyncio.to_thread(gateway.pages.library_file, library, name)
    kept = IMMUTABLE if is_immutable(request.scope) else NO_CACHE
    return await gateway.web_files.answer(path, request.headers, kept)
