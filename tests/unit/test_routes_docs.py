"""The gateway serves the protocol's document."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.testclient import TestClient

from core.schemas.export.message_schemas import asyncapi_document
from gateway_modules.routes.pages import documents


def test_the_document_is_served() -> None:
    app = FastAPI()
    app.include_router(documents)
    answer = TestClient(app).get("/api/asyncapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == asyncapi_document()
