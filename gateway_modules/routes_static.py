"""Libraries the pages load when they need them, and which of them are installed."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from core.schemas import limits
from gateway_modules.service import GatewayHere

Name = Annotated[str, Path(max_length=limits.ID_MAX_CHARS)]

router = APIRouter(tags=["assets"])


@router.get("/api/libraries")
async def libraries(gateway: GatewayHere) -> dict[str, bool]:
    """Say of each library the pages can use whether it is installed."""
    return await asyncio.to_thread(gateway.vendor.installed)


@router.head("/static/vendor/{library}/{name:path}", include_in_schema=False)
@router.get("/static/vendor/{library}/{name:path}", include_in_schema=False)
async def vendor_file(
    library: Name, name: Name, request: Request, gateway: GatewayHere
) -> Response:
    """Return a file of a library; of one that is not installed, say what to run."""
    path = await asyncio.to_thread(gateway.vendor.find, library, name)
    return await gateway.web_files.answer(path, request.headers)
