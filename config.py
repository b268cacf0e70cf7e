"""The configuration, read once from file, environment and command line.

A program loads it and passes the frozen object, or a section of it, to its parts. Imports nothing
but pydantic and layer 0.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from settings import sections
from settings.fields import (
    HOME,
    HOME_VARIABLE,
    IS_INSTALLED,
    PROJECT_ROOT,
    Section,
    install_command,
)
from settings.recording import RecordingSettings
from settings.sources import (
    COMMAND_LINE,
    ENVIRONMENT_PREFIX,
    SettingsError,
    Source,
    explain,
    found_in_text,
    known_keys,
    nested,
    read_environment,
    read_file,
    unknown_keys,
)
from settings.webrtc import WebRtcSettings
from settings.workers import LAST_PORT, local_address

__all__ = [
    "HOME",
    "HOME_VARIABLE",
    "IS_INSTALLED",
    "PRIVATE_UMASK",
    "PROJECT_ROOT",
    "FrontendDefaults",
    "Settings",
    "SettingsError",
    "install_command",
    "load_settings",
]

CONFIG_FILE = "config.json"
PRIVATE_UMASK = 0o077  # files are readable by their owner only

log = logging.getLogger(__name__)


class FrontendDefaults(Section):
    """The part of the configuration that pages receive; it contains no secrets."""

    playback_delay_ms: int
    """Playback buffer, ms."""
    default_lang: str | None
    """Configured language of the pages."""
    languages: dict[str, str]
    """Native name of each language, by code."""
    max_kv_tokens: int
    """Context length, tokens."""
    recording: RecordingSettings
    recording_enabled: bool
    half_duplex: sections.HalfDuplexSettings
    duplex: sections.DuplexSettings
    limits: sections.LimitSettings


class Settings(BaseSettings):
    """All settings.

    The constructor does not read the environment; `load_settings` does.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,  # keys contain the delimiter
        env_ignore_empty=True,
        env_parse_none_str="null",
        enable_decoding=False,  # list fields parse their own values
    )

    model: sections.ModelSettings = sections.ModelSettings()
    audio: sections.AudioSettings = sections.AudioSettings()
    cascade: sections.CascadeSettings = sections.CascadeSettings()
    transcription: sections.TranscriptionSettings = sections.TranscriptionSettings()
    service: sections.ServiceSettings = sections.ServiceSettings()
    recording: RecordingSettings = RecordingSettings()
    duplex: sections.DuplexSettings = sections.DuplexSettings()
    half_duplex: sections.HalfDuplexSettings = sections.HalfDuplexSettings()
    security: sections.SecuritySettings = sections.SecuritySettings()
    limits: sections.LimitSettings = sections.LimitSettings()
    openai: sections.OpenAiSettings = sections.OpenAiSettings()
    webrtc: WebRtcSettings = WebRtcSettings()
    logging: sections.LoggingSettings = sections.LoggingSettings()
    telemetry: sections.TelemetrySettings = sections.TelemetrySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the constructor's arguments only."""
        return (init_settings,)

    def worker_port(self, index: int) -> int:
        """Return the port of worker `index`, from 0; a SettingsError if it is out of range."""
        port = self.service.worker_base_port + index
        if index < 0 or port > LAST_PORT:
            raise SettingsError(
                f"service.worker_base_port = {self.service.worker_base_port}: "
                f"worker {index} would need port {port}; ports end at {LAST_PORT}"
            )
        return port

    def worker_addresses(self, count: int) -> list[str]:
        """Return "host:port" of the first `count` workers on this machine."""
        host = self.service.worker_host
        return [local_address(host, self.worker_port(index)) for index in range(count)]

    def frontend_defaults(self, languages: dict[str, str]) -> FrontendDefaults:
        derived = {
            "playback_delay_ms": self.audio.playback_delay_ms,
            "default_lang": self.service.default_lang,
            "languages": languages,
            "max_kv_tokens": self.duplex.max_kv_tokens,
            "recording_enabled": self.recording.enabled,
        }
        return FrontendDefaults.model_validate({**dict(self), **derived})


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    only: Collection[str] | None = None,
) -> Settings:
    """Read the configuration: command line over environment over file over defaults.

    Unknown keys in the file and the environment are logged and ignored.

    Args:
        path: The file; None is `config.json` in `HOME`, which need not exist.
        overrides: Values from the command line by "section.key"; None is "not given".
        only: The keys that are read; all others, valid or not, keep their defaults. A file that
            is no valid configuration is logged, and searched for them as text.

    Raises:
        SettingsError: The file cannot be read, or values are invalid; it names all of them.
        KeyError: An override is not a setting.
    """
    keys = known_keys(Settings)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if not keys.keys() >= given.keys():
        raise KeyError(f"no such settings: {sorted(given.keys() - keys.keys())}")
    file = path or HOME / CONFIG_FILE
    try:
        from_file = read_file(file, is_required=path is not None)
    except SettingsError as error:
        if only is None or not file.exists():
            raise
        from_file = Source(f"in {file.name}", found_in_text(file, only))
        taken = ", ".join(f"{key} = {value}" for key, value in from_file.values.items())
        missed = ", ".join(key for key in only if key not in from_file.values)
        log.warning(
            "%s\nTaken from its text: %s; not found there: %s",
            error,
            taken or "nothing",
            missed or "nothing",
        )
    sources = [
        from_file,
        read_environment(Settings),
        Source(COMMAND_LINE, given),
    ]
    values: dict[str, object] = {}
    for source in sources:
        for warning in unknown_keys(source, keys):
            log.warning(warning)
        wanted = keys if only is None else only
        values.update({key: value for key, value in source.values.items() if key in wanted})
    try:
        return Settings.model_validate(nested(values))
    except ValidationError as error:
        secrets = [key for key, is_secret in keys.items() if is_secret]
        raise SettingsError(explain(error.errors(include_url=False), sources, secrets)) from None
