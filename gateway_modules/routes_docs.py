"""The document that describes the sockets, made from the models of their messages."""

from __future__ import annotations

import asyncio
import json
from functools import cache

from fastapi import APIRouter
from starlette.responses import Response

from core.schemas.export.asyncapi import CONTENT_TYPE, asyncapi_document


def make_router() -> APIRouter:
    """Return the router of `GET /api/asyncapi.json`; the document is made when first asked for."""
    router = APIRouter(tags=["documents"])

    @cache
    def document() -> bytes:
        return json.dumps(asyncapi_document(), ensure_ascii=False).encode()

    @router.get("/api/asyncapi.json")
    async def asyncapi() -> Response:
        """Describe the messages of every WebSocket, as AsyncAPI."""
        return Response(await asyncio.to_thread(document), media_type=CONTENT_TYPE)

    return router
