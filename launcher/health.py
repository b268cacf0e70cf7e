"""Asking a program over HTTP how it is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import BaseModel, ValidationError

from core.schemas.worker import WorkerHealth, WorkerStatus


@dataclass(frozen=True)
class Health:
    """What a program answered.

    Attributes:
        answers: it spoke.
        is_ready: it does its work.
        progress: of loading, 0 to 1, if it says.
        stage: what it is doing, for a person to read.
        problem: why it never will be ready, if so.
    """

    answers: bool = False
    is_ready: bool = False
    progress: float | None = None
    stage: str = "starting"
    problem: str | None = None


class GatewayAnswer(BaseModel):
    """The part of the gateway's answer that matters here."""

    status: str
    ready: bool = True
    workers_ready: int | None = None


class HealthClient:
    """Asks; one connection pool for all programs of this machine."""

    def __init__(self, limit_s: float) -> None:
        """Prepare for plain HTTP.

        Args:
            limit_s: longest wait for one answer.
        """
        # Proxies from the environment are for other machines.
        self._plain = httpx.AsyncClient(trust_env=False, timeout=limit_s)
        self._limit_s = limit_s

    async def close(self) -> None:
        """Close the connections."""
        await self._plain.aclose()

    async def worker(self, url: str) -> Health:
        """Ask a worker."""
        answer = await self._get(self._plain, url)
        return Health() if answer is None else read_worker(answer)

    async def gateway(self, url: str, trusted: ssl.SSLContext | None) -> Health:
        """Ask the gateway.

        Args:
            url: of its health route.
            trusted: what its certificate is checked against; None for plain HTTP.
        """
        if trusted is None:
            answer = await self._get(self._plain, url)
        else:
            # A new connection each time: this is what shows that a new client gets through.
            async with httpx.AsyncClient(
                trust_env=False, timeout=self._limit_s, verify=trusted
            ) as client:
                answer = await self._get(client, url)
        return Health() if answer is None else read_gateway(answer)

    async def _get(self, client: httpx.AsyncClient, url: str) -> httpx.Response | None:
        try:
            return await client.get(url)
        except httpx.HTTPError:
            return None


def read_worker(answer: httpx.Response) -> Health:
    """Understand a worker's answer; one that is no worker's is a program not yet up."""
    if answer.status_code != httpx.codes.OK:
        return Health(answers=True, stage=f"answers with HTTP {answer.status_code}")
    try:
        told = WorkerHealth.model_validate_json(answer.content)
    except ValidationError:
        return Health(answers=True, stage="answers, but not as a worker does")
    if told.worker_status is WorkerStatus.ERROR or told.status == "error":
        return Health(answers=True, stage="error", problem=told.error or "it gave no reason")
    stage = told.load_stage or "loading the model"
    return Health(
        answers=True,
        is_ready=told.model_loaded,
        progress=1.0 if told.model_loaded else told.load_progress,
        stage=told.worker_status.value if told.model_loaded else stage,
    )


def read_gateway(answer: httpx.Response) -> Health:
    """Understand the gateway's answer."""
    if answer.status_code != httpx.codes.OK:
        return Health(answers=True, stage=f"answers with HTTP {answer.status_code}")
    try:
        told = GatewayAnswer.model_validate_json(answer.content)
    except ValidationError:
        return Health(answers=True, stage="answers, but not as a gateway does")
    stage = "ready" if told.ready else "waiting for workers"
    return Health(answers=True, is_ready=told.ready, stage=stage)


def trust(certfile: Path, *, is_self_made: bool) -> ssl.SSLContext:
    """Return what the gateway's certificate is checked against.

    Args:
        certfile: its certificate.
        is_self_made: ours names this machine; a given one may name the world's view of it only.
    """
    if is_self_made:
        return ssl.create_default_context(cafile=str(certfile))
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
