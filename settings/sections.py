"""The sections of the configuration, key by key, with their defaults and limits.

Source: docs/specification/service.md#4.1; the rest are additions to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from core.schemas import limits as wire
from core.schemas.half_duplex import SessionConfig, VadConfig
from settings.embedded import Embedded
from settings.fields import (
    ModelPlace,
    NetworkList,
    OriginList,
    Port,
    ProjectPath,
    Section,
    TextList,
    UpperCase,
    WorkerList,
)
from settings.workers import LAST_PORT

RECORDING_UPLOAD_BYTES = 200 * wire.MIB  # source: docs/specification/service.md#1.5
REFERENCE_UPLOAD_BYTES = 10 * wire.MIB  # source: docs/specification/service.md#1.3
DIAGNOSTIC_SESSION_BYTES = wire.MIB  # source: docs/specification/service.md#2.5.7
DIAGNOSTIC_MESSAGE_BYTES = 16 * 1024  # source: docs/specification/service.md#2.5.7
WeightsName = Literal["bf16", "fp8", "int4"]
TranscribesBy = Literal["auto", "whisper", "model", "none"]
TRAINED_CONTEXT_TOKENS = 8_192  # what the published checkpoint was trained with
LONGEST_CONTEXT_TOKENS = 40_960  # the published checkpoint's positions


class ModelSettings(Section):
    """Which weights to load."""

    model_path: ModelPlace | None = Field(
        None, description="Checkpoint folder or hub id; null: what `embedded` says."
    )
    embedded: Embedded = Field(
        "auto",
        description="Without model_path. auto: nano at once, and the cascade for new conversations "
        "when its files, 0.5 GB, have been fetched; cascade: nothing else, so a first start waits "
        "for them; nano: nothing more is fetched; toy: random weights.",
    )
    pt_path: ProjectPath | None = Field(None, description="Weights loaded over the checkpoint's.")
    weights: WeightsName = Field(
        "bf16",
        description="How the language model's weights are kept: bf16 as published (float32 on a "
        "CPU), fp8 and int4 quantised while they are loaded, for less memory and time.",
    )
    cache: Literal["bf16", "int8"] = Field(
        "bf16",
        description="Keys and values of the language model. bf16: as they are computed (float32 on "
        "a CPU); int8: codes with a scale per row, which hold twice the tokens in the same memory.",
    )


class CascadeSettings(Section):
    """The cascade of small models that stands in for the model."""

    llm_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Chat endpoint as OpenAI's, such as http://localhost:11434/v1, in place of "
        "the fetched language model.",
    )
    llm_model: str = Field("default", min_length=1, description="The model to ask for there.")
    llm_key: SecretStr | None = Field(None, min_length=1, description="Its API key, if it has one.")


class TranscriptionSettings(Section):
    """What writes down what users say."""

    by: TranscribesBy = Field(
        "auto",
        description="whisper: on the CPU; model: the model itself, by its transcription prompt; "
        "none: nothing; auto: Whisper where its files are, else the published model, else nothing.",
    )
    whisper_path: ProjectPath | None = Field(
        None,
        description="Whisper in CTranslate2's layout; null: the one inside the embedded model.",
    )


class AudioSettings(Section):
    """Voices and playback."""

    ref_audio_path: ProjectPath | None = Field(
        None, description="Default voice; null: the checkpoint's own sample."
    )
    playback_delay_ms: int = Field(
        200, ge=0, le=2_000, description="Buffer before the browser starts playing, ms."
    )


class ServiceSettings(Section):
    """Programs, ports, the queue and its estimates."""

    gateway_host: str = Field("0.0.0.0", min_length=1, description="Address the gateway binds to.")
    gateway_port: Port = Field(8_006, description="Port of the gateway.")
    worker_host: str = Field("127.0.0.1", min_length=1, description="Address workers bind to.")
    worker_base_port: Port = Field(22_400, description="Port of worker 0; the next has the next.")
    num_workers: int = Field(0, ge=0, le=64, description="Workers; 0: one per GPU, at least one.")
    workers: WorkerList = Field(
        (),
        description="Workers of other machines, host:port or dns:NAME:PORT for one at each address "
        "that DNS has for the name; beside those that the launcher starts.",
    )
    doors: int = Field(
        1, ge=1, le=64, description="Gateway processes from gateway_port on; 2 or more with a desk."
    )
    desk: str | None = Field(
        None,
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^/?#@\[\]\s:]+):[0-9]{1,5}$",
        description="Where doors find their desk, host:port; null: the launcher's desk listens on "
        "127.0.0.1, on the port after those of the doors.",
    )
    worker_slots: int | None = Field(
        None,
        ge=1,
        le=wire.SLOTS_MAX,
        description="Sessions a worker takes at once; null: what its GPU holds, one on a CPU.",
    )
    max_queue_size: int = Field(1_000, ge=1, le=100_000, description="Requests that may wait.")
    request_timeout: float = Field(300, gt=0, description="Gateway to worker over HTTP, s.")
    start_timeout_s: float = Field(6_000, gt=0, description="Longest wait for a model to load, s.")
    drain_timeout_s: float = Field(
        30, ge=0, description="How long running sessions may continue after a stop, s."
    )
    data_dir: ProjectPath = Field(
        Path("data"), description="Recordings, certificates, logs, uploaded voices."
    )
    https: bool = Field(True, description="Serve over TLS; browsers need it for the microphone.")
    ssl_certfile: ProjectPath | None = Field(
        None, description="Certificate chain, PEM; null: a self-signed one is made."
    )
    ssl_keyfile: ProjectPath | None = Field(None, description="Key of the certificate, PEM.")
    readable_pages: bool = Field(
        False, description="Serve the pages from their sources, for those who change them."
    )
    default_lang: str | None = Field(
        None, description="Language of the pages, such as en; null: the browser decides."
    )
    eta_chat_s: float = Field(
        15, gt=0, le=wire.DURATION_MAX_S, description="First guess of a chat's length, s."
    )
    eta_streaming_s: float = Field(
        20, gt=0, le=wire.DURATION_MAX_S, description="Of a streamed turn, s."
    )
    eta_half_duplex_s: float = Field(
        180, gt=0, le=wire.DURATION_MAX_S, description="Of a half-duplex session, s."
    )
    eta_audio_duplex_s: float = Field(
        120, gt=0, le=wire.DURATION_MAX_S, description="Of a duplex audio session, s."
    )
    eta_omni_duplex_s: float = Field(
        90, gt=0, le=wire.DURATION_MAX_S, description="Of a duplex omni session, s."
    )
    eta_ema_alpha: float = Field(0.3, gt=0, le=1, description="Weight of the newest length.")
    eta_ema_min_samples: int = Field(
        3, ge=1, le=1_000, description="Lengths to see before the average replaces the guess."
    )
    gathering_s: float = Field(
        5.0, ge=0, le=60, description="For those who waited before a restart to come back, s."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.doors > 1 and self.gateway_port + self.doors > LAST_PORT:
            raise ValueError(f"doors: the ports after gateway_port end at {LAST_PORT}")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile are given together or not at all")
        return self


class DuplexSettings(Section):
    """Full duplex."""

    pause_timeout: float = Field(60, gt=0, description="A paused session ends after this, s.")
    max_session_s: float = Field(0, ge=0, description="A session ends after this, s; 0: never.")
    max_kv_tokens: int = Field(
        TRAINED_CONTEXT_TOKENS,
        ge=256,
        le=LONGEST_CONTEXT_TOKENS,
        description="Longest context, tokens.",
    )
    max_backlog_chunks: int = Field(3, ge=1, le=100, description="Chunks that may wait.")
    frame_grace_ms: int = Field(20, ge=0, le=500, description="Wait for a chunk's frame, ms.")
    max_frames_per_chunk: int = Field(
        4, ge=1, le=wire.FRAMES_PER_MESSAGE_MAX, description="Newest frames used of one unit."
    )

    @property
    def usual_tokens(self) -> int:
        """What a conversation holds on average: it grows evenly until its context is full."""
        return self.max_kv_tokens // 2


_VAD = VadConfig()


class HalfDuplexSettings(Section):
    """Half duplex: what a session gets unless its `prepare` says otherwise."""

    timeout_s: float = Field(
        SessionConfig().timeout_s, ge=10, le=3_600, description="Ends after this without audio, s."
    )
    max_session_s: float = Field(0, ge=0, description="A session ends after this, s; 0: never.")
    vad_threshold: float = Field(
        _VAD.threshold, ge=0.05, le=0.99, description="Speech begins at this probability."
    )
    vad_min_speech_duration_ms: int = Field(
        _VAD.min_speech_duration_ms, ge=0, le=10_000, description="Shorter bursts are noise, ms."
    )
    vad_min_silence_duration_ms: int = Field(
        _VAD.min_silence_duration_ms, ge=0, le=10_000, description="Silence that ends a turn, ms."
    )
    vad_speech_pad_ms: int = Field(
        _VAD.speech_pad_ms, ge=0, le=10_000, description="Kept around the speech, ms."
    )

    @property
    def vad(self) -> VadConfig:
        """The same as the wire's settings."""
        return VadConfig(
            threshold=self.vad_threshold,
            min_speech_duration_ms=self.vad_min_speech_duration_ms,
            min_silence_duration_ms=self.vad_min_silence_duration_ms,
            speech_pad_ms=self.vad_speech_pad_ms,
        )


class SecuritySettings(Section):
    """Who may do what."""

    admin_token: SecretStr | None = Field(
        None, min_length=8, description="Opens the admin routes; null: the first start makes one."
    )
    insecure_admin: bool = Field(
        False, description="Admin routes for everyone, if no admin_token is set."
    )
    allowed_origins: OriginList = Field((), description="Further origins a browser may come from.")
    allowed_hosts: TextList = Field(
        (),
        description="Names this server is called by beside its certificate's; *.example.com: all "
        "below one; *: any.",
    )
    worker_secret: SecretStr | None = Field(
        None, min_length=8, description="Of gateway and workers; null: each launch makes one."
    )
    ticket_secret: SecretStr | None = Field(
        None, min_length=32, description="Signs places in the queue; null: kept in data_dir."
    )
    worker_tls: bool = Field(
        False, description="Workers serve TLS, and the gateway checks their certificates."
    )
    worker_ca: ProjectPath | None = Field(
        None,
        description="CA of the workers' certificates, PEM; null: certs/worker_ca.pem is made.",
    )
    worker_certfile: ProjectPath | None = Field(
        None, description="Certificate chain for worker.minicpmo-live.internal, PEM; null: made."
    )
    worker_keyfile: ProjectPath | None = Field(None, description="Key of it, PEM.")
    api_keys: tuple[SecretStr, ...] = Field(
        (), description="Keys for the routes below /v1; none: they are open, as the pages are."
    )
    trusted_proxies: NetworkList = Field(
        (), description="Proxies whose X-Forwarded-For is believed."
    )

    @model_validator(mode="after")
    def _files_come_with_tls(self) -> Self:
        if (self.worker_certfile is None) != (self.worker_keyfile is None):
            raise ValueError("worker_certfile and worker_keyfile are given together or not at all")
        if not self.worker_tls and (self.worker_ca or self.worker_certfile):
            raise ValueError("worker_ca and worker_certfile have no effect without worker_tls")
        return self


class LimitSettings(Section):
    """Sizes, lengths, counts and rates; the wire's own limits can be lowered, never raised."""

    chat_message_bytes: int = Field(
        wire.CHAT_SOCKET_LIMIT_BYTES,
        ge=1_024,
        le=wire.CHAT_SOCKET_LIMIT_BYTES,
        description="One message of /ws/streaming and /ws/chat, bytes.",
    )
    prepare_bytes: int = Field(
        wire.PREPARE_LIMIT_BYTES,
        ge=1_024,
        le=wire.PREPARE_LIMIT_BYTES,
        description="`prepare` of half duplex and duplex, bytes.",
    )
    live_message_bytes: int = Field(
        wire.LIVE_SOCKET_LIMIT_BYTES,
        ge=1_024,
        le=wire.LIVE_SOCKET_LIMIT_BYTES,
        description="Any other message of half duplex and duplex, bytes.",
    )
    chunk_max_s: float = Field(
        wire.CHUNK_MAX_S, gt=0, le=wire.CHUNK_MAX_S, description="One chunk of a live call, s."
    )
    reference_max_s: float = Field(
        wire.REFERENCE_MAX_S, gt=0, le=wire.REFERENCE_MAX_S, description="A voice sample, s."
    )
    chat_audio_max_s: float = Field(
        wire.CHAT_AUDIO_MAX_S, gt=0, le=wire.CHAT_AUDIO_MAX_S, description="An audio item, s."
    )
    frame_max_bytes: int = Field(
        wire.FRAME_MAX_BYTES, gt=0, le=wire.FRAME_MAX_BYTES, description="A camera picture, bytes."
    )
    frame_max_side_px: int = Field(
        wire.FRAME_MAX_SIDE_PX, gt=0, le=wire.FRAME_MAX_SIDE_PX, description="Its longer side, px."
    )
    reference_upload_bytes: int = Field(
        REFERENCE_UPLOAD_BYTES, gt=0, description="An uploaded voice, bytes."
    )
    recording_upload_bytes: int = Field(
        RECORDING_UPLOAD_BYTES, gt=0, description="An uploaded browser recording, bytes."
    )
    comment_chars: int = Field(2_000, ge=0, description="A comment on a recording.")
    diagnostic_bytes: int = Field(
        DIAGNOSTIC_MESSAGE_BYTES, ge=0, description="One client_diagnostic, bytes."
    )
    diagnostics_per_s: float = Field(2, ge=0, description="client_diagnostic per second.")
    diagnostic_session_bytes: int = Field(
        DIAGNOSTIC_SESSION_BYTES, ge=0, description="client_diagnostic kept of a session, bytes."
    )
    resume_grace_s: float = Field(
        60, ge=0, le=600, description="How long a session waits for its lost client, s; 0: never."
    )
    max_connections: int = Field(2_000, ge=1, description="WebSockets at once.")
    connections_per_client: int = Field(32, ge=1, description="WebSockets of one client at once.")
    # A household, a small office or a class behind one address: eight wait at the same time, not
    # counting those being served. 1,000 places are then out of one client's reach.
    waiting_per_client: int = Field(
        8, ge=1, description="Requests of one client that may wait for a worker at once."
    )
    bytes_held: int = Field(
        512 * 1024 * 1024,
        ge=wire.CHAT_SOCKET_LIMIT_BYTES,
        description="Of requests and messages that are on their way to a worker, bytes.",
    )
    bytes_held_per_client: int = Field(
        2 * wire.CHAT_SOCKET_LIMIT_BYTES,
        ge=wire.CHAT_SOCKET_LIMIT_BYTES,
        description="The same of one client, bytes.",
    )
    requests_per_minute: int = Field(
        1_200, ge=1, description="HTTP requests and new sockets of one client."
    )
    heartbeat_s: float = Field(
        20, gt=0, description="Time between pings, and to wait for pongs, s."
    )


class OpenAiSettings(Section):
    """OpenAI's protocols."""

    max_wait_s: float = Field(
        8, ge=0, le=wire.DURATION_MAX_S, description="Longest wait of a socket for a worker, s."
    )
    accept_any_model: bool = Field(
        True, description="Serve requests for models of any name; else of the one that is served."
    )


class LoggingSettings(Section):
    """What the programs write down."""

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], UpperCase] = Field(
        "INFO", description="Least important line written."
    )
    # `json` would hide a method of the base class; the key in files and variables is `json`.
    json_lines: bool = Field(
        False, alias="json", description="One JSON object per line instead of text."
    )
    file_max_mb: float = Field(20, gt=0, description="A log file is rotated at this size, MB.")
    files_kept: int = Field(3, ge=1, le=100, description="Rotated log files that are kept.")


class TelemetrySettings(Section):
    """Traces of calls, without what is said in them."""

    endpoint: str = Field(
        "",
        pattern=r"^$|^https?://[^/?#\s]+(/[^?#\s]*)?$",
        description="Collector that takes OTLP over HTTP, such as http://collector:4318; empty: no "
        "traces.",
    )
