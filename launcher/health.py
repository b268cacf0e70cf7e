"""Health checks of the programs over HTTP."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import httpx
from pydantic import BaseModel, ValidationError

from core.schemas.worker import WorkerHealth, WorkerStatus
from core.worker_tls import SNI
from launcher.plan import Kind, ProgramPlan


@dataclass(frozen=True)
class Health:
    """The state of a program."""

    answers: bool = False
    is_ready: bool = False
    progress: float | None = None  # loading progress, 0 to 1, if known
    stage: str = "starting"  # current activity, for display
    problem: str | None = None  # reason why it will never be ready
    sessions: int = 0  # sessions on a worker
    slots: int | None = None  # sessions that a worker can serve in time; None until it is ready


class GatewayAnswer(BaseModel):
    status: str
    ready: bool = True


async def check_health(plan: ProgramPlan, tls: ssl.SSLContext | None, limit_s: float) -> Health:
    """Query a program over a new connection; `tls` is None for plain HTTP."""
    # The proxies of the environment are not for local programs.
    client = httpx.AsyncClient(trust_env=False, timeout=limit_s, verify=tls or False)
    extensions = SNI if plan.kind.has_internal_tls else None
    try:
        async with client:
            answer = await client.get(plan.health_url, extensions=extensions)
    except httpx.HTTPError:
        return Health()
    if answer.status_code != httpx.codes.OK:
        return Health(answers=True, stage=f"answers with HTTP {answer.status_code}")
    return read_worker(answer) if plan.kind is Kind.WORKER else read_gateway(answer)


def read_worker(answer: httpx.Response) -> Health:
    """Interpret a worker's response; an unexpected one counts as starting."""
    try:
        health = WorkerHealth.model_validate_json(answer.content)
    except ValidationError:
        return Health(answers=True, stage="answers, but not as a worker does")
    if health.worker_status is WorkerStatus.ERROR or health.status == "error":
        return Health(answers=True, stage="error", problem=health.error or "no reason given")
    if health.model_loaded:
        sessions, slots = health.active_sessions or 0, health.capacity or health.slots
        return Health(True, True, 1.0, health.worker_status.value, sessions=sessions, slots=slots)
    return Health(True, False, health.load_progress, health.load_stage or "loading the model")


def read_gateway(answer: httpx.Response) -> Health:
    try:
        is_ready = GatewayAnswer.model_validate_json(answer.content).ready
    except ValidationError:
        return Health(answers=True, stage="answers, but not as a gateway does")
    return Health(True, is_ready, stage="ready" if is_ready else "waiting for workers")
