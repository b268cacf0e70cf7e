"""Pages and what they are made of. A page of an app that is switched off leads home."""

from __future__ import annotations

import asyncio
from html import escape
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from core.errors import InvalidSessionIdError, NotFoundError
from gateway_modules.service import STATIC, Gateway, GatewayHere
from gateway_modules.session_files import SessionFiles

HOME: Final = "index.html"
VIEWER: Final = "session-viewer.html"
API_PAGE: Final = "api-docs.html"
NO_CACHE: Final = "no-cache"

NOT_THERE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Not found</title>
<link rel="stylesheet" href="/static/plain.css">
<main>
<h1>There is no such recording</h1>
<p>{reason}</p>
<p><a href="/">Home</a></p>
</main>
</html>
"""

router = APIRouter(include_in_schema=False)


def page(name: str) -> Response:
    """Return a page; the home page in place of one that is not built yet."""
    path = STATIC / name
    if not path.is_file():
        path = STATIC / HOME
    return FileResponse(path, media_type="text/html", headers={"Cache-Control": NO_CACHE})


def app_page(gateway: Gateway, app_id: str, name: str) -> Response:
    """Return the page of an app, or lead home if the app is switched off."""
    if not gateway.apps.is_enabled(app_id):
        return RedirectResponse("/", HTTPStatus.FOUND)
    return page(name)


@router.get("/")
async def home() -> Response:
    """Home."""
    return page(HOME)


@router.get("/turnbased")
async def turnbased(gateway: GatewayHere) -> Response:
    """Turn-based chat."""
    return app_page(gateway, "turnbased", "turnbased.html")


@router.get("/half_duplex")
async def half_duplex(gateway: GatewayHere) -> Response:
    """Half duplex."""
    return app_page(gateway, "half_duplex_audio", "half_duplex.html")


@router.get("/omni")
async def omni(gateway: GatewayHere) -> Response:
    """Full duplex with pictures."""
    return app_page(gateway, "omni", "omni.html")


@router.get("/audio_duplex")
async def audio_duplex(gateway: GatewayHere) -> Response:
    """Full duplex with sound alone."""
    return app_page(gateway, "audio_duplex", "audio_duplex.html")


@router.get("/admin")
async def admin() -> Response:
    """Administration; what it shows it asks for with the administrator's token."""
    return page("admin.html")


@router.get("/api/docs")
async def api_docs() -> Response:
    """Show the description of the HTTP interface."""
    return page(API_PAGE)


@router.get("/s/{recording_id}")
async def viewer(recording_id: str, gateway: GatewayHere) -> Response:
    """Show a recording."""
    limits = gateway.settings.limits
    files = SessionFiles(
        gateway.data_dir,
        comment_chars=limits.comment_chars,
        upload_bytes=limits.recording_upload_bytes,
    )
    try:
        if not gateway.settings.recording.enabled:
            raise NotFoundError("Recording is switched off on this server.")
        await asyncio.to_thread(files.folder, recording_id)
    except (InvalidSessionIdError, NotFoundError) as error:
        body = NOT_THERE.format(reason=escape(error.message))
        return HTMLResponse(body, HTTPStatus.NOT_FOUND)
    return page(VIEWER)
