"""The sections of the configuration, key by key, with their defaults and limits.

Source: docs/specification/service.md#4.1; the rest are additions to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from core.schemas import limits as wire
from core.schemas.half_duplex import SessionConfig, VadConfig
from settings.embedded import Embedded
from settings.fields import (
    ModelPlace,
    NetworkList,
    OriginList,
    Port,
    ProjectPath,
    SecretList,
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
    """The served model and its weights."""

    model_path: ModelPlace | None = None
    """Checkpoint: a folder or a Hugging Face hub id; null: the default chosen by `embedded`."""
    embedded: Embedded = "auto"
    """Default model when model_path is null. auto: nano at once, and the cascade for new
    conversations once its files (0.6 GB) are downloaded; cascade: download first, then start; nano:
    nano only; toy: a tiny untrained checkpoint, for tests.
    """
    pt_path: ProjectPath | None = None
    """Weights that replace those of the checkpoint."""
    weights: WeightsName = "bf16"
    """Format of the language model's weights. bf16: as published (float32 on a CPU); fp8, int4:
    quantized while loading, which takes less memory and time per token.
    """
    cache: Literal["bf16", "int8"] = "bf16"
    """Format of the KV cache. bf16: as computed (float32 on a CPU); int8: quantized with one scale
    per row, so the same memory holds twice the tokens.
    """


class CascadeSettings(Section):
    """The cascade of speech recognition, language model and speech synthesis."""

    llm_url: str | None = Field(None, pattern=r"^https?://")
    """OpenAI-compatible chat endpoint, such as http://localhost:11434/v1, used instead of the
    bundled language model.
    """
    llm_model: str = Field("default", min_length=1)
    """Model name sent to llm_url."""
    llm_key: SecretStr | None = Field(None, min_length=1)
    """API key sent to llm_url."""
    speech_url: str | None = Field(None, pattern=r"^https?://")
    """OpenAI-compatible speech endpoint, such as http://localhost:8880/v1, used instead of the
    bundled voice; it must return "pcm".
    """
    speech_model: str = Field("default", min_length=1)
    """Model name sent to speech_url."""
    speech_voice: str = Field("default", min_length=1)
    """Voice name sent to speech_url."""
    speech_key: SecretStr | None = Field(None, min_length=1)
    """API key sent to speech_url."""


class TranscriptionSettings(Section):
    """Transcription of what users say."""

    by: TranscribesBy = "auto"
    """Transcriber. whisper: Whisper on the CPU; model: the served model, by its transcription
    prompt; none: no transcription; auto: Whisper where its files exist, otherwise the published
    model.
    """
    whisper_path: ProjectPath | None = None
    """Whisper model in CTranslate2 format; null: that of the embedded checkpoint."""


class AudioSettings(Section):
    """Voices and playback."""

    ref_audio_path: ProjectPath | None = None
    """Default voice sample; null: the one in the checkpoint."""
    playback_delay_ms: int = Field(200, ge=0, le=2_000)
    """Playback buffer of the browser, ms."""


class ServiceSettings(Section):
    """Programs, addresses, the queue and its wait estimates."""

    gateway_host: str = Field("0.0.0.0", min_length=1)
    """Address the gateway listens on."""
    gateway_port: Port = 8_006
    """Port of the gateway."""
    worker_host: str = Field("127.0.0.1", min_length=1)
    """Address the workers listen on."""
    worker_base_port: Port = 22_400
    """Port of worker 0; worker N listens on this port + N."""
    num_workers: int = Field(0, ge=0, le=64)
    """Workers to start; 0: one per GPU, or one without a GPU."""
    workers: WorkerList = ()
    """Workers on other machines, in addition to those started here: host:port, or dns:NAME:PORT for
    every address that NAME resolves to.
    """
    doors: int = Field(1, ge=1, le=64)
    """Gateway processes for clients, on consecutive ports from gateway_port; 2 or more share one
    queue process, the desk.
    """
    desk: str | None = Field(None, pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^/?#@\[\]\s:]+):[0-9]{1,5}$")
    """Address of the desk, host:port; null: the desk started here, on 127.0.0.1 and the port after
    the last door's.
    """
    worker_slots: int | None = Field(None, ge=1, le=wire.SLOTS_MAX)
    """Concurrent sessions per worker; null: as many as fit the GPU's memory, or one on a CPU."""
    max_queue_size: int = Field(1_000, ge=1, le=100_000)
    """Longest queue, in requests; further requests are refused."""
    request_timeout: float = Field(300, gt=0)
    """Timeout of HTTP requests from the gateway to a worker, s."""
    start_timeout_s: float = Field(6_000, gt=0)
    """Timeout for loading the model, s."""
    drain_timeout_s: float = Field(30, ge=0)
    """Time that running sessions and transcripts get to finish after a stop, s."""
    data_dir: ProjectPath = Path("data")
    """Folder for recordings, certificates, logs and uploaded voices."""
    https: bool = True
    """Serve over TLS; browsers allow the microphone only then, or on localhost."""
    ssl_certfile: ProjectPath | None = None
    """Certificate chain, PEM; null: a self-signed certificate is generated."""
    ssl_keyfile: ProjectPath | None = None
    """Private key of the certificate, PEM."""
    readable_pages: bool = False
    """Serve the unbundled sources of the pages, for development."""
    default_lang: str | None = None
    """Language of the pages, such as en; null: the browser's language."""
    eta_chat_s: float = Field(15, gt=0, le=wire.DURATION_MAX_S)
    """Initial estimate of a chat request's duration, s."""
    eta_streaming_s: float = Field(20, gt=0, le=wire.DURATION_MAX_S)
    """Initial estimate of a streaming turn's duration, s."""
    eta_half_duplex_s: float = Field(180, gt=0, le=wire.DURATION_MAX_S)
    """Initial estimate of a half-duplex session's duration, s."""
    eta_audio_duplex_s: float = Field(120, gt=0, le=wire.DURATION_MAX_S)
    """Initial estimate of a voice call's duration, s."""
    eta_omni_duplex_s: float = Field(90, gt=0, le=wire.DURATION_MAX_S)
    """Initial estimate of a video call's duration, s."""
    eta_ema_alpha: float = Field(0.3, gt=0, le=1)
    """Weight of the newest duration in the moving average."""
    eta_ema_min_samples: int = Field(3, ge=1, le=1_000)
    """Durations to observe before the average replaces the initial estimate."""
    gathering_s: float = Field(5.0, ge=0, le=60)
    """After a restart, time for waiting clients to reconnect to their places before anybody is
    assigned, s.
    """

    @field_validator("desk")
    @classmethod
    def _has_usable_port(cls, value: str | None) -> str | None:
        if value is not None and not 0 < int(value.rpartition(":")[2]) <= LAST_PORT:
            raise ValueError(f"its port is from 1 to {LAST_PORT}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.doors > 1 and self.gateway_port + self.doors > LAST_PORT:
            raise ValueError(f"doors: the ports after gateway_port end at {LAST_PORT}")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile are given together or not at all")
        return self


class DuplexSettings(Section):
    """Full-duplex sessions."""

    pause_timeout: float = Field(60, gt=0)
    """Longest pause of a session, s; after that it ends."""
    max_session_s: float = Field(0, ge=0)
    """Longest session, s; 0: unlimited."""
    max_kv_tokens: int = Field(TRAINED_CONTEXT_TOKENS, ge=256, le=LONGEST_CONTEXT_TOKENS)
    """Context length, tokens."""
    max_backlog_chunks: int = Field(3, ge=1, le=100)
    """Audio chunks that may wait; older ones are dropped."""
    frame_grace_ms: int = Field(20, ge=0, le=500)
    """Time to wait for the camera frame of a chunk, ms."""
    max_frames_per_chunk: int = Field(4, ge=1, le=wire.FRAMES_PER_MESSAGE_MAX)
    """Newest camera frames used per unit."""

    @property
    def usual_tokens(self) -> int:
        """What a conversation holds on average: it grows evenly until its context is full."""
        return self.max_kv_tokens // 2


_VAD = VadConfig()


class HalfDuplexSettings(Section):
    """Half-duplex sessions: defaults for what `prepare` leaves out."""

    timeout_s: float = Field(SessionConfig().timeout_s, ge=10, le=3_600)
    """Longest time without audio, s; after that the session ends."""
    max_session_s: float = Field(0, ge=0)
    """Longest session, s; 0: unlimited."""
    vad_threshold: float = Field(_VAD.threshold, ge=0.05, le=0.99)
    """Speech probability at which speech begins."""
    vad_min_speech_duration_ms: int = Field(_VAD.min_speech_duration_ms, ge=0, le=10_000)
    """Shortest speech, ms; anything shorter counts as noise."""
    vad_min_silence_duration_ms: int = Field(_VAD.min_silence_duration_ms, ge=0, le=10_000)
    """Silence that ends a turn, ms."""
    vad_speech_pad_ms: int = Field(_VAD.speech_pad_ms, ge=0, le=10_000)
    """Audio kept before and after the speech, ms."""

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
    """Access control."""

    admin_token: SecretStr | None = Field(None, min_length=8)
    """Token for the admin routes; null: generated at the first start."""
    insecure_admin: bool = False
    """Open the admin routes to everyone when no admin_token is set."""
    allowed_origins: OriginList = ()
    """Additional origins that browsers may connect from."""
    allowed_hosts: TextList = ()
    """Additional host names of this server, besides those in its certificate; *.example.com: all
    subdomains; *: any.
    """
    worker_secret: SecretStr | None = Field(None, min_length=8)
    """Shared secret of gateway and workers; null: generated at each start."""
    ticket_secret: SecretStr | None = Field(None, min_length=32)
    """Key that signs queue places; null: generated and kept in data_dir."""
    worker_tls: bool = False
    """Workers serve TLS, and the gateway verifies their certificates."""
    worker_ca: ProjectPath | None = None
    """CA of the workers' certificates, PEM; null: certs/worker_ca.pem is generated."""
    worker_certfile: ProjectPath | None = None
    """Certificate chain for worker.minicpmo-live.internal, PEM; null: generated."""
    worker_keyfile: ProjectPath | None = None
    """Private key of worker_certfile, PEM."""
    api_keys: SecretList = ()
    """API keys for /v1; empty: /v1 is as open as the pages."""
    trusted_proxies: NetworkList = ()
    """Proxies whose X-Forwarded-For header is trusted."""

    @model_validator(mode="after")
    def _files_come_with_tls(self) -> Self:
        if (self.worker_certfile is None) != (self.worker_keyfile is None):
            raise ValueError("worker_certfile and worker_keyfile are given together or not at all")
        if not self.worker_tls and (self.worker_ca or self.worker_certfile):
            raise ValueError("worker_ca and worker_certfile have no effect without worker_tls")
        return self


class LimitSettings(Section):
    """Sizes, durations, counts and rates. Limits of the protocol can be lowered, not raised."""

    chat_message_bytes: int = Field(
        wire.CHAT_SOCKET_LIMIT_BYTES, ge=1_024, le=wire.CHAT_SOCKET_LIMIT_BYTES
    )
    """Longest message on /ws/streaming and /ws/chat, bytes."""
    prepare_bytes: int = Field(wire.PREPARE_LIMIT_BYTES, ge=1_024, le=wire.PREPARE_LIMIT_BYTES)
    """Longest `prepare` message of half duplex and duplex, bytes."""
    live_message_bytes: int = Field(
        wire.LIVE_SOCKET_LIMIT_BYTES, ge=1_024, le=wire.LIVE_SOCKET_LIMIT_BYTES
    )
    """Longest other message of half duplex and duplex, bytes."""
    chunk_max_s: float = Field(wire.CHUNK_MAX_S, gt=0, le=wire.CHUNK_MAX_S)
    """Longest audio chunk of a call, s."""
    reference_max_s: float = Field(wire.REFERENCE_MAX_S, gt=0, le=wire.REFERENCE_MAX_S)
    """Longest voice sample, s."""
    chat_audio_max_s: float = Field(wire.CHAT_AUDIO_MAX_S, gt=0, le=wire.CHAT_AUDIO_MAX_S)
    """Longest audio item of a chat message, s."""
    frame_max_bytes: int = Field(wire.FRAME_MAX_BYTES, gt=0, le=wire.FRAME_MAX_BYTES)
    """Largest camera frame, bytes."""
    frame_max_side_px: int = Field(wire.FRAME_MAX_SIDE_PX, gt=0, le=wire.FRAME_MAX_SIDE_PX)
    """Longest side of a camera frame, px."""
    reference_upload_bytes: int = Field(REFERENCE_UPLOAD_BYTES, gt=0)
    """Largest upload of a voice, bytes."""
    recording_upload_bytes: int = Field(RECORDING_UPLOAD_BYTES, gt=0)
    """Largest upload of a browser recording, bytes."""
    recording_uploads_per_client: int = Field(20 * RECORDING_UPLOAD_BYTES, gt=0)
    """Browser recordings uploaded per client address and day, bytes in all."""
    comment_chars: int = Field(2_000, ge=0)
    """Longest comment on a recording, characters."""
    diagnostic_bytes: int = Field(DIAGNOSTIC_MESSAGE_BYTES, ge=0)
    """Longest client_diagnostic message, bytes."""
    diagnostics_per_s: float = Field(2, ge=0)
    """client_diagnostic messages accepted per second and session."""
    diagnostic_session_bytes: int = Field(DIAGNOSTIC_SESSION_BYTES, ge=0)
    """client_diagnostic data stored per session, bytes."""
    resume_grace_s: float = Field(60, ge=0, le=600)
    """Time that a session waits for its disconnected client to come back, s; 0: it ends at once."""
    max_connections: int = Field(2_000, ge=1)
    """Concurrent WebSockets."""
    connections_per_client: int = Field(32, ge=1)
    """Concurrent WebSockets per client address."""
    # A household, a small office or a class behind one address: eight wait at the same time, not
    # counting those being served. 1,000 places are then out of one client's reach.
    waiting_per_client: int = Field(8, ge=1)
    """Requests per client address that may wait in the queue."""
    bytes_held: int = Field(512 * 1024 * 1024, ge=wire.CHAT_SOCKET_LIMIT_BYTES)
    """Memory for requests and messages in transit to workers, bytes. Each WebSocket may use 512 KiB
    beyond it, so that calls continue while waiting requests use all of it.
    """
    bytes_held_per_client: int = Field(
        2 * wire.CHAT_SOCKET_LIMIT_BYTES, ge=wire.CHAT_SOCKET_LIMIT_BYTES
    )
    """The same per client address, bytes."""
    requests_per_minute: int = Field(1_200, ge=1)
    """HTTP requests and new WebSockets per client address and minute."""
    heartbeat_s: float = Field(20, gt=0)
    """Interval of WebSocket pings, and time to wait for a pong, s."""


class OpenAiSettings(Section):
    """OpenAI-compatible protocols."""

    max_wait_s: float = Field(8, ge=0, le=wire.DURATION_MAX_S)
    """Longest time that a /v1 WebSocket waits for a worker, s."""
    accept_any_model: bool = True
    """Accept any model name in requests; false: only the name of the served model."""


class LoggingSettings(Section):
    """Log files."""

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], UpperCase] = "INFO"
    """Lowest level that is logged."""
    # `json` would hide a method of the base class; the key in files and variables is `json`.
    json_lines: bool = Field(False, alias="json")
    """Log one JSON object per line instead of text."""
    file_max_mb: float = Field(20, gt=0)
    """Size at which a log file is rotated, MB."""
    files_kept: int = Field(3, ge=1, le=100)
    """Rotated log files to keep."""


class TelemetrySettings(Section):
    """OpenTelemetry traces of calls; they contain no speech, pictures or text."""

    endpoint: str = Field("", pattern=r"^$|^https?://[^/?#\s]+(/[^?#\s]*)?$")
    """OTLP/HTTP collector, such as http://collector:4318; empty: no traces."""
