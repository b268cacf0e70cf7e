"""HTTP interface of a worker: status and requests."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, computed_field

from core.schemas import limits
from core.schemas.common import Id, WireModel

WORKER_SECRET_HEADER = "X-Worker-Secret"  # secret common to gateway and workers of other machines
SUPERVISED_VARIABLE = "STARTED_BY_LAUNCHER"  # set by a launcher that restarts workers
RESTART_EXIT_CODE = 75  # of a worker that wants to be restarted; EX_TEMPFAIL of sysexits(3)
WORKER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # in logs, metrics, recordings and addresses


class WorkerStatus(StrEnum):
    """Status of a worker."""

    LOADING = "loading"
    IDLE = "idle"
    ERROR = "error"
    OFFLINE = "offline"  # set by the gateway for a worker it cannot reach
    BUSY_CHAT = "busy_chat"
    BUSY_STREAMING = "busy_streaming"
    BUSY_HALF_DUPLEX = "busy_half_duplex"
    DUPLEX_ACTIVE = "duplex_active"
    DUPLEX_PAUSED = "duplex_paused"

    @property
    def is_busy(self) -> bool:
        return self.value.startswith(("busy_", "duplex_"))


class ModelKind(StrEnum):
    """Kind of model that a worker serves."""

    FULL = "full"  # the published model
    TINY_RANDOM = "tiny_random"  # random weights, meaningless output
    NANO = "nano"  # trained at toy size on a few dialogues
    CASCADE = "cascade"  # speech recognition, a language model and speech synthesis
    FAKE = "fake"  # no model at all: fixed sentences and a tone
    UNKNOWN = "unknown"


SUGGESTIONS_MAX = 20  # ours: sentences a checkpoint may suggest
SUGGESTION_MAX_CHARS = 200
MODEL_NAME_MAX_CHARS = 80

Suggestion = Annotated[str, StringConstraints(min_length=1, max_length=SUGGESTION_MAX_CHARS)]


class ModelFacts(WireModel):
    """The loaded model."""

    name: str = Field(max_length=MODEL_NAME_MAX_CHARS, description="Display name.")
    kind: ModelKind = Field(description="Kind of model.")
    parameters: int | None = Field(None, ge=0, description="Number of weights without the vocoder.")
    device: str = Field(description="cpu, or cuda and the GPU's name.")
    dtype: str | None = Field(None, description="Type of its weights.")
    try_saying: tuple[Suggestion, ...] = Field((), max_length=SUGGESTIONS_MAX)
    """Sentences it can answer."""

    @computed_field(description="It shows the system, not the model's abilities.")  # type: ignore[prop-decorator]
    @property
    def is_demonstration(self) -> bool:
        return self.kind not in (ModelKind.FULL, ModelKind.UNKNOWN)


class WorkerHealth(WireModel):
    """Response of `GET /health`."""

    status: Literal["healthy", "error", "initializing"] = Field(description="Health.")
    worker_status: WorkerStatus = Field(description="What the worker is doing.")
    worker_id: str | None = Field(None, pattern=f"^{WORKER_NAME}$", description="Its name.")
    boot_id: Id | None = Field(None, description="Id of the process.")
    gpu_id: int | None = Field(None, ge=0, description="Its GPU.")
    model_loaded: bool = Field(False, description="The model is ready.")
    load_progress: float | None = Field(None, ge=0, le=1)
    """Share of the model that is loaded."""
    load_stage: str | None = Field(None, description="Stage of loading, for people.")
    current_session_id: str | None = Field(None, description="Session that occupies it.")
    total_requests: int = Field(0, ge=0, description="Requests since it started.")
    avg_inference_time_ms: float = Field(0.0, ge=0, description="Mean time of a request, ms.")
    kv_cache_length: int = Field(0, ge=0, description="Tokens in the KV cache.")
    error: str | None = Field(None, description="Why the model could not be loaded.")
    vram_used_mb: float | None = Field(None, ge=0, description="GPU memory in use, MB.")
    vram_total_mb: float | None = Field(None, ge=0, description="GPU memory, MB.")
    uptime_s: float = Field(0.0, ge=0, description="Time since it started, s.")
    capabilities: list[str] = Field([], description="Modes it serves.")
    slots: int = Field(1, ge=1, le=limits.SLOTS_MAX, description="Sessions it takes at once.")
    capacity: int | None = Field(None, ge=1)
    """Sessions it can serve in time, as measured; null if unknown."""
    active_sessions: int | None = Field(None, ge=0)
    """Sessions it holds, including those being cleaned up."""
    model: ModelFacts | None = Field(None, description="What is loaded; null until it is.")
    transcribes_by: Literal["whisper", "model"] | None = None
    """Transcriber of users' speech, if any."""
    is_supervised: bool = Field(False, description="A launcher restarts it.")
    is_draining: bool = Field(False, description="It is about to exit and accepts nothing new.")


class CacheStatus(WireModel):
    """Response of `GET /cache_info`."""

    status: WorkerStatus = Field(description="What the worker is doing.")
    note: str = Field("", description="About the cache, for people.")
    cached_hash: str | None = Field(None, description="History the cache holds.")
    kv_cache_length: int = Field(0, ge=0, description="Tokens in the KV cache.")


class TranscriptPassage(WireModel):
    """A part of a transcript with its time in the audio: a line of `POST /transcribe`."""

    start_s: float = Field(ge=0, description="Start, s.")
    end_s: float = Field(ge=0, description="End, s.")
    text: str = Field(description="Transcript.")
    language: str = Field("", description="ISO 639-1 code, if known.")


class TranscriptProblem(WireModel):
    """Last line of such a response if transcription failed."""

    problem: str = Field(description="Why.")


class StopRequest(WireModel):
    """Body of a stop request."""

    session_id: Id | None = Field(None, description="Session whose reply to stop; null: all.")


class KeptSession(WireModel):
    """Body of the request whether a session may continue over another socket."""

    kind: Id = Field(description="Last part of its path.")
    session_id: Id = Field(description="Its id.")
    session_secret: Id = Field(description="Of its owner.")


class ActionResult(WireModel):
    """Result of a request."""

    success: bool = Field(description="Whether it succeeded.")
    message: str = Field("", description="What happened, for a person to read.")
