"""Calls over WebRTC: their offers go to the process that ends WebRTC, and its answers back.

That process opens a WebSocket of ours for each call with the client's own key, so that the queue,
limits and recordings are those of every other session.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final, Literal

import httpx
from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, Response

from core.errors import BadRequestError, NotAvailableError, WorkerUnreachableError
from core.schemas.common import WireModel
from core.schemas.openai_errors import parse_body
from core.schemas.webrtc import CALLS_PATH, SDP_MAX_CHARS, CallAnswer, CallOffer
from core.schemas.worker import WORKER_SECRET_HEADER
from gateway_modules.openai.routes import NeedsKey, check_model, served_model, shown_key
from gateway_modules.service import Gateway, GatewayHere
from gateway_modules.web.client_request import text_of

SDP: Final = "application/sdp"
INSTALL: Final = "pip install 'minicpmo-live[webrtc]' and set webrtc.enabled"
OFF: Final = f"WebRTC is not served here: {INSTALL}, or use a WebSocket."
TIMEOUT_S: Final = 30.0  # of an answer, beside the wait in the queue
PARTS_MAX: Final = 4

Json = dict[str, Any]  # Any: JSON
SESSION: Final[TypeAdapter[Json]] = TypeAdapter(Json)

router = APIRouter(tags=["openai"], dependencies=[NeedsKey])


class Transport(WireModel):
    """How a GPT-Live session is carried."""

    type: Literal["webrtc"]
    sdp: str


class LiveCall(WireModel):
    """The body of `POST /v1/live/sessions`."""

    transport: Transport
    session: Json = Field(default_factory=dict)


LIVE_CALL: Final[TypeAdapter[LiveCall]] = TypeAdapter(LiveCall)


@router.post("/realtime/calls")
async def create_call(request: Request, gateway: GatewayHere) -> Response:
    """Answer an offer: the SDP alone, or as multipart/form-data with a session beside it."""
    _check_enabled(gateway)
    sdp, session = await _offer(request)
    asked = request.query_params.get("model") or session.get("model")
    answered = await _begin(request, gateway, "realtime", sdp, session, asked)
    if isinstance(answered, Response):
        return answered
    headers = {"Location": f"/v1/realtime/calls/{answered.call_id}"}
    return Response(answered.sdp, int(HTTPStatus.CREATED), headers, media_type=SDP)


@router.post("/live/sessions")
async def create_live_session(request: Request, gateway: GatewayHere) -> Response:
    """Begin a GPT-Live session over WebRTC."""
    _check_enabled(gateway)
    body = parse_body(LIVE_CALL, await text_of(request))
    asked = body.session.get("model")
    answered = await _begin(request, gateway, "live", body.transport.sdp, body.session, asked)
    if isinstance(answered, Response):
        return answered
    transport = {"type": "webrtc", "sdp": answered.sdp}
    return JSONResponse({"session": {"id": answered.call_id}, "transport": transport})


@router.post("/realtime/calls/{call_id}/hangup", name="hang_up_call")
@router.delete("/realtime/calls/{call_id}", name="delete_call")
@router.post("/live/sessions/{call_id}/hangup", name="hang_up_live_session")
async def hang_up(call_id: str, gateway: GatewayHere) -> Response:
    """End a call; its id is known to whom it was given."""
    _check_enabled(gateway)
    answer = await _ask(gateway, "DELETE", f"{CALLS_PATH}/{call_id}")
    return Response(answer.content, answer.status_code, media_type=_kind(answer))


def _check_enabled(gateway: Gateway) -> None:
    """Raises NotAvailableError where WebRTC is off."""
    if not gateway.settings.webrtc.enabled:
        raise NotAvailableError(OFF)


async def _offer(request: Request) -> tuple[str, Json]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == SDP:
        sdp, session = (await request.body()).decode("utf-8", "replace"), "{}"
    elif kind == "multipart/form-data":
        async with request.form(max_files=PARTS_MAX, max_fields=PARTS_MAX) as form:
            parts = {name: await _text(value) for name, value in form.items()}
        sdp, session = parts.get("sdp", ""), parts.get("session", "{}")
    else:
        raise BadRequestError(f"content-type: send {SDP} or multipart/form-data.")
    if not sdp:
        raise BadRequestError("sdp: it is missing.")
    try:
        read = json.loads(session)
    except (ValueError, RecursionError):
        raise BadRequestError("session: it is not JSON.") from None
    if not isinstance(read, dict):
        raise BadRequestError("session: it is not an object.")
    return sdp, read


async def _text(part: str | UploadFile) -> str:
    return part if isinstance(part, str) else (await part.read()).decode("utf-8", "replace")


async def _begin(
    request: Request,
    gateway: Gateway,
    protocol: Literal["realtime", "live"],
    sdp: str,
    session: Json,
    asked: object,
) -> CallAnswer | Response:
    """Have an offer answered; an error of the WebRTC process is passed on as its response."""
    if len(sdp) > SDP_MAX_CHARS:
        raise BadRequestError(f"sdp: {len(sdp)} characters; {SDP_MAX_CHARS} are allowed.")
    model = asked if isinstance(asked, str) and asked else served_model(gateway)
    check_model(gateway, model)
    offer = CallOffer(
        protocol=protocol,
        sdp=sdp,
        session=session,
        model=model,
        key=shown_key(request),
        client=gateway.access.client_address(request),
    )
    answer = await _ask(gateway, "POST", CALLS_PATH, offer)
    if answer.status_code != HTTPStatus.OK:
        retry = answer.headers.get("retry-after")
        headers = {"Retry-After": retry} if retry else {}
        return Response(answer.content, answer.status_code, headers, media_type=_kind(answer))
    return CallAnswer.model_validate_json(answer.content)


def _kind(answer: httpx.Response) -> str | None:
    kind: str | None = answer.headers.get("content-type")
    return kind


async def _ask(
    gateway: Gateway, method: str, path: str, offer: CallOffer | None = None
) -> httpx.Response:
    """Raises WorkerUnreachableError if the WebRTC process does not answer."""
    webrtc, secret = gateway.settings.webrtc, gateway.settings.security.worker_secret
    headers = {WORKER_SECRET_HEADER: secret.get_secret_value()} if secret else {}
    limit_s = TIMEOUT_S + gateway.settings.openai.max_wait_s
    async with httpx.AsyncClient(
        base_url=webrtc.url, trust_env=False, verify=False, timeout=limit_s
    ) as client:
        try:
            content = offer.to_json() if offer else None
            return await client.request(method, path, headers=headers, content=content)
        except httpx.HTTPError as error:
            raise WorkerUnreachableError("The WebRTC process does not answer.") from error
