"""The configuration: read once from file, environment and command line, frozen, passed on.

A program loads it and passes the object, or a section of it, to what needs it.
Never import anything but pydantic and the words of layer 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from settings.fields import HOME, IS_INSTALLED, PROJECT_ROOT, Section
from settings.recording import RecordingSettings
from settings.sections import (
    AudioSettings,
    CascadeSettings,
    DuplexSettings,
    HalfDuplexSettings,
    LimitSettings,
    LoggingSettings,
    ModelSettings,
    OpenAiSettings,
    SecuritySettings,
    ServiceSettings,
    TelemetrySettings,
    TranscriptionSettings,
)
from settings.sources import (
    COMMAND_LINE,
    ENVIRONMENT_PREFIX,
    SettingsError,
    Source,
    explain,
    known_keys,
    nested,
    read_environment,
    read_file,
    unknown_keys,
)
from settings.webrtc import WebRtcSettings
from settings.workers import LAST_PORT, WorkerPlace

__all__ = [
    "HOME",
    "IS_INSTALLED",
    "PRIVATE_UMASK",
    "PROJECT_ROOT",
    "AudioSettings",
    "CascadeSettings",
    "DuplexSettings",
    "FrontendDefaults",
    "HalfDuplexSettings",
    "LimitSettings",
    "LoggingSettings",
    "ModelSettings",
    "OpenAiSettings",
    "RecordingSettings",
    "SecuritySettings",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "TelemetrySettings",
    "TranscriptionSettings",
    "WebRtcSettings",
    "load_settings",
]

CONFIG_FILE = "config.json"
PRIVATE_UMASK = 0o077  # what the programs write is readable by their own user only

log = logging.getLogger(__name__)


class FrontendDefaults(Section):
    """What a page needs to know of the configuration; nothing secret."""

    playback_delay_ms: int = Field(description="Buffer before playing, ms.")
    default_lang: str | None = Field(description="Language, if the server says.")
    languages: dict[str, str] = Field(description="What each language calls itself, by code.")
    max_kv_tokens: int = Field(description="Longest context, tokens.")
    recording: RecordingSettings = Field(description="What is recorded and how long it is kept.")
    recording_enabled: bool = Field(description="Sessions are recorded.")
    half_duplex: HalfDuplexSettings = Field(description="Defaults of half duplex.")
    duplex: DuplexSettings = Field(description="Limits of duplex.")
    limits: LimitSettings = Field(description="Sizes and lengths.")


class Settings(BaseSettings):
    """Everything that can be configured.

    Made without arguments it holds the defaults, whatever the environment says; `load_settings`
    is what reads the environment.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,  # keys hold the delimiter themselves
        env_ignore_empty=True,
        env_parse_none_str="null",
        enable_decoding=False,  # lists are read by their own fields
    )

    model: ModelSettings = Field(default_factory=ModelSettings)
    audio: AudioSettings = Field(default_factory=AudioSettings)
    cascade: CascadeSettings = Field(default_factory=CascadeSettings)
    transcription: TranscriptionSettings = Field(default_factory=TranscriptionSettings)
    service: ServiceSettings = Field(default_factory=ServiceSettings)
    recording: RecordingSettings = Field(default_factory=RecordingSettings)
    duplex: DuplexSettings = Field(default_factory=DuplexSettings)
    half_duplex: HalfDuplexSettings = Field(default_factory=HalfDuplexSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    openai: OpenAiSettings = Field(default_factory=OpenAiSettings)
    webrtc: WebRtcSettings = Field(default_factory=WebRtcSettings)
    logging: LoggingSettings = Field(default_factory=LoggingSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the arguments alone."""
        return (init_settings,)

    def worker_port(self, index: int) -> int:
        """Return the port of a worker, from 0; raises `SettingsError` if there is none."""
        port = self.service.worker_base_port + index
        if index < 0 or port > LAST_PORT:
            raise SettingsError(
                f"service.worker_base_port = {self.service.worker_base_port}: "
                f"worker {index} would need port {port}; ports end at {LAST_PORT}"
            )
        return port

    def worker_addresses(self, count: int) -> list[str]:
        """Return "host:port" of the first `count` workers of this machine."""
        host = self.service.worker_host
        if host in {"0.0.0.0", "::"}:
            host = "127.0.0.1"  # bound to every address, so reached over loopback
        return [WorkerPlace(host, self.worker_port(index)).netloc for index in range(count)]

    def frontend_defaults(self, languages: dict[str, str]) -> FrontendDefaults:
        """Return what pages receive; `languages` are their own names, by code."""
        return FrontendDefaults(
            playback_delay_ms=self.audio.playback_delay_ms,
            default_lang=self.service.default_lang,
            languages=languages,
            max_kv_tokens=self.duplex.max_kv_tokens,
            recording=self.recording,
            recording_enabled=self.recording.enabled,
            half_duplex=self.half_duplex,
            duplex=self.duplex,
            limits=self.limits,
        )


def load_settings(
    path: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Read the configuration: command line over environment over file over defaults.

    Unknown keys of the file and the environment are named in a warning and ignored.

    Args:
        path: of the file; None is `config.json` in `HOME`, which may be missing.
        overrides: values of the command line by "section.key"; None stands for "not given".

    Raises:
        SettingsError: the file cannot be used, or a value is wrong; every wrong one is named.
        KeyError: an override is not a setting.
    """
    keys = known_keys(Settings)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if not keys.keys() >= given.keys():
        raise KeyError(f"no such settings: {sorted(given.keys() - keys.keys())}")
    sources = [
        read_file(path or HOME / CONFIG_FILE, is_required=path is not None),
        read_environment(Settings),
        Source(COMMAND_LINE, given),
    ]
    values: dict[str, object] = {}
    for source in sources:
        for warning in unknown_keys(source, keys):
            log.warning(warning)
        values.update({key: value for key, value in source.values.items() if key in keys})
    try:
        return Settings.model_validate(nested(values))
    except ValidationError as error:
        secrets = [key for key, is_secret in keys.items() if is_secret]
        raise SettingsError(explain(error.errors(include_url=False), sources, secrets)) from None
