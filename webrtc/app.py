"""HTTP API of the WebRTC process, used by the gateway only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from config import Settings
from core.errors import OmniError
from core.schemas.openai_errors import parse_body
from core.schemas.webrtc import CALLS_PATH, CallOffer
from core.serving.server import SecretGate
from gateway_modules.web.messages import unless_disconnected
from gateway_modules.web.responses import (
    OPENAI_PREFIX,
    RETRY_AFTER_S,
    RETRY_STATUSES,
    error_answer,
    on_client_gone,
)
from webrtc.calls import Calls, GatewayAddress, RefusedError


def create_app(settings: Settings, gateway: GatewayAddress) -> FastAPI:
    calls = Calls(gateway, settings.webrtc, settings.openai.max_wait_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await calls.close()

    app = FastAPI(title="WebRTC", lifespan=lifespan, openapi_url=None)
    app.state.calls = calls
    app.add_exception_handler(OmniError, _on_omni_error)
    app.add_exception_handler(RefusedError, _on_refused)
    app.add_exception_handler(ClientDisconnect, on_client_gone)
    secret = settings.security.worker_secret
    app.add_middleware(SecretGate, secret=secret.get_secret_value() if secret else None)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "healthy", "ready": True, "calls": len(calls)})

    @app.post(CALLS_PATH)
    async def begin(request: Request) -> Response:
        offer = parse_body(CallOffer, await request.body())
        answer = await unless_disconnected(request, calls.begin(offer))
        return JSONResponse(answer.model_dump())

    @app.delete(CALLS_PATH + "/{call_id}")
    async def hang_up(call_id: str) -> Response:
        await calls.hang_up(call_id)
        return Response()

    return app


async def _on_omni_error(request: Request, error: Exception) -> Response:
    return error_answer(error, OPENAI_PREFIX)  # passed on by the gateway unchanged


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if error.status in RETRY_STATUSES else {}
    return Response(error.body, error.status, headers, media_type="application/json")
