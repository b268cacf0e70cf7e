"""The configuration: four sources in order, every mistake named."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from config import PROJECT_ROOT, Settings, SettingsError, load_settings
from scripts import settings_reference
from settings.sources import ENVIRONMENT_PREFIX, known_keys


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours leaks in from outside."""
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf8")
    return path


def write(path: Path, sections: object) -> Path:
    path.write_text(json.dumps(sections), encoding="utf8")
    return path


def error_of(path: Path, **overrides: object) -> str:
    """Return what loading complains about; overrides are spelled `section__key`."""
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    with pytest.raises(SettingsError) as caught:
        load_settings(path, given)
    return str(caught.value)


DOCUMENTED: dict[str, object] = {
    "model.model_path": None,
    "model.embedded": "auto",
    "model.pt_path": None,
    "model.weights": "bf16",
    "model.cache": "bf16",
    "audio.playback_delay_ms": 200,
    "service.gateway_port": 8006,
    "service.worker_base_port": 22400,
    "service.max_queue_size": 1000,
    "service.request_timeout": 300,
    "service.eta_chat_s": 15,
    "service.eta_streaming_s": 20,
    "service.eta_half_duplex_s": 180,
    "service.eta_audio_duplex_s": 120,
    "service.eta_omni_duplex_s": 90,
    "service.eta_ema_alpha": 0.3,
    "service.eta_ema_min_samples": 3,
    "recording.enabled": True,
    "recording.session_retention_days": 30,
    "recording.max_storage_gb": 20,
    "recording.min_free_gb": 2,
    "duplex.pause_timeout": 60,
    "duplex.max_session_s": 0,
    "duplex.max_kv_tokens": 8192,
    "duplex.max_backlog_chunks": 3,
    "duplex.frame_grace_ms": 20,
    "duplex.max_frames_per_chunk": 4,
    "half_duplex.timeout_s": 180,
    "half_duplex.max_session_s": 0,
    "half_duplex.vad_threshold": 0.8,
    "half_duplex.vad_min_speech_duration_ms": 128,
    "half_duplex.vad_min_silence_duration_ms": 800,
    "half_duplex.vad_speech_pad_ms": 30,
    "security.admin_token": None,
    "security.allowed_origins": [],
    "security.worker_secret": None,
    "security.trusted_proxies": [],
    "logging.level": "INFO",
    "logging.json": False,
}


@pytest.mark.parametrize("key", DOCUMENTED)
def test_documented_defaults(key: str) -> None:
    section, name = key.split(".")
    dumped = json.loads(Settings().model_dump_json(by_alias=True))
    assert dumped[section][name] == DOCUMENTED[key]


def test_command_line_over_environment_over_file_over_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {"gateway_port": 1001, "worker_base_port": 1002, "max_queue_size": 1003}
    write(file, {"service": ports})
    monkeypatch.setenv("OMNI_SERVICE_WORKER_BASE_PORT", "2002")
    monkeypatch.setenv("OMNI_SERVICE_MAX_QUEUE_SIZE", "2003")
    given = {"service.max_queue_size": 3003, "service.gateway_port": None}
    service = load_settings(file, given).service
    found = (service.gateway_port, service.worker_base_port, service.max_queue_size)
    assert found == (1001, 2002, 3003)
    assert service.eta_chat_s == 15


@pytest.mark.parametrize("key", known_keys(Settings))
def test_every_key_can_be_set_by_a_variable(
    key: str, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    section, name = key.split(".")
    monkeypatch.setenv(f"OMNI_{section}_{name}".upper(), "?")
    try:
        was_heard = load_settings(file) != Settings()
    except SettingsError as error:
        was_heard = section in str(error)
    assert was_heard
    assert caplog.records == []


def test_lists_null_and_json_in_variables(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, {"audio": {"ref_audio_path": "voice.wav"}})
    monkeypatch.setenv("OMNI_SECURITY_ALLOWED_ORIGINS", "https://a.example, https://b.example")
    monkeypatch.setenv("OMNI_SECURITY_TRUSTED_PROXIES", '["10.0.0.0/8", "::1"]')
    monkeypatch.setenv("OMNI_SECURITY_API_KEYS", "sk-first, sk-second")
    monkeypatch.setenv("omni_audio_playback_delay_ms", "300")
    monkeypatch.setenv("OMNI_AUDIO_REF_AUDIO_PATH", "null")
    monkeypatch.setenv("OMNI_LOGGING_JSON", "true")
    monkeypatch.setenv("OMNI_LOGGING_LEVEL", "debug")
    monkeypatch.setenv("OMNI_SERVICE_GATEWAY_PORT", "")
    settings = load_settings(file)
    assert settings.security.allowed_origins == ("https://a.example", "https://b.example")
    assert settings.security.trusted_proxies == ("10.0.0.0/8", "::1")
    keys = [key.get_secret_value() for key in settings.security.api_keys]
    assert keys == ["sk-first", "sk-second"]
    assert settings.audio.playback_delay_ms == 300
    assert settings.audio.ref_audio_path is None
    assert settings.logging.json_lines
    assert settings.logging.level == "DEBUG"
    assert settings.service.gateway_port == 8006


def test_unknown_keys_are_named_with_what_may_have_been_meant(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, {"service": {"gatway_port": 1, "pause_timeout": 2}, "extra": {"x": 1}, "$id": ""})
    monkeypatch.setenv("OMNI_SERVIC_COMPILE", "1")
    monkeypatch.setenv("OMNI_DUPLEX_PAUSE", "1")
    with caplog.at_level(logging.WARNING):
        assert load_settings(file) == Settings()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5
    assert "service.gatway_port in config.json is ignored (did you mean service.gateway" in said[0]
    assert said[1].endswith("(did you mean duplex.pause_timeout?)")
    assert said[2] == "unknown setting extra.x in config.json is ignored"
    assert "OMNI_DUPLEX_PAUSE in the environment" in said[3]
    assert "OMNI_SERVIC_COMPILE in the environment is ignored (did you mean OMNI_SER" in said[4]


def test_every_wrong_value_is_named_with_its_place_and_limit(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, {"service": {"gateway_port": 70_000}, "duplex": {"max_kv_tokens": "many"}})
    monkeypatch.setenv("OMNI_HALF_DUPLEX_VAD_THRESHOLD", "3")
    lines = error_of(file, audio__playback_delay_ms=-1).splitlines()
    assert sorted(lines) == [
        "audio.playback_delay_ms = -1 on the command line: "
        "Input should be greater than or equal to 0",
        'duplex.max_kv_tokens = "many" in config.json: '
        "Input should be a valid integer, unable to parse string as an integer",
        'half_duplex.vad_threshold = "3" in OMNI_HALF_DUPLEX_VAD_THRESHOLD: '
        "Input should be less than or equal to 0.99",
        "service.gateway_port = 70000 in config.json: Input should be less than or equal to 65535",
    ]


def test_a_secret_is_never_shown(file: Path) -> None:
    write(file, {"security": {"admin_token": "short"}})
    assert "short" not in error_of(file).replace("least", "")
    write(file, {"security": {"admin_token": "long enough", "worker_secret": "as well..."}})
    security = load_settings(file).security
    assert "long" not in f"{security} {security!r} {security.model_dump_json()}"
    assert security.admin_token is not None
    assert security.admin_token.get_secret_value() == "long enough"


def test_an_empty_api_key_would_admit_everybody_and_is_refused(file: Path) -> None:
    write(file, {"security": {"api_keys": ["sk-first", ""]}})
    assert "security.api_keys in config.json: " in error_of(file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[]", "instead of an object of sections"),
        ('{"service": 5}', "service in config.json is 5 instead of an object"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(file: Path, text: str, complaint: str) -> None:
    file.write_text(text, encoding="utf8")
    message = error_of(file)
    assert complaint in message
    assert "config.json" in message


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    assert "start from config.example.json" in error_of(tmp_path / "none.json")


def test_an_override_that_is_no_setting_is_a_mistake_of_the_program(file: Path) -> None:
    with pytest.raises(KeyError, match=r"service\.prot"):
        load_settings(file, {"service.prot": 1})


def test_paths_start_at_the_project(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    write(file, {"service": {"data_dir": "kept"}, "model": {"model_path": "./weights"}})
    settings = load_settings(file)
    assert settings.service.data_dir == PROJECT_ROOT / "kept"
    assert settings.model.model_path == str(PROJECT_ROOT / "weights")
    absolute = load_settings(file, {"service.data_dir": str(file.parent)})
    assert absolute.service.data_dir == file.parent
    assert Settings().service.data_dir == PROJECT_ROOT / "data"


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({}, PROJECT_ROOT),
        ({"MINICPMO_HOME": "~/h"}, Path("~/h").expanduser()),
        ({"MINICPMO_HOME": "/h", "XDG_DATA_HOME": "/x"}, Path("/h")),
    ],
)
def test_relative_paths_start_at_home(variables: dict[str, str], home: Path) -> None:
    program = "import config; print(config.HOME, config.Settings().service.data_dir)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT_ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(home), str(home / "data")]


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("some-lab/some-model", "some-lab/some-model"),
        ("tests", str(PROJECT_ROOT / "tests")),
        ("~/m", str(Path("~/m").expanduser())),
    ],
)
def test_a_model_is_a_folder_or_a_hub_id(file: Path, place: str, found: str) -> None:
    assert load_settings(file, {"model.model_path": place}).model.model_path == found


@pytest.mark.parametrize("key", ["service__data_dir", "model__model_path"])
def test_a_home_of_nobody_is_named(file: Path, key: str) -> None:
    assert "Could not determine home directory" in error_of(file, **{key: "~nobody-of-this-name/m"})


def test_certificate_and_key_come_together(file: Path) -> None:
    assert "given together or not at all" in error_of(file, service__ssl_certfile="cert.pem")


@pytest.mark.parametrize("value", [0, -1])
def test_no_limit_has_one_spelling(file: Path, value: int) -> None:
    write(file, {"recording": {"session_retention_days": value, "max_storage_gb": value}})
    recording = load_settings(file).recording
    assert (recording.session_retention_days, recording.max_storage_gb) == (-1, -1)


def test_wire_limits_can_only_be_lowered(file: Path) -> None:
    default = Settings().limits.frame_max_bytes
    assert "less than or equal" in error_of(file, limits__frame_max_bytes=default + 1)
    assert load_settings(file, {"limits.frame_max_bytes": 1000}).limits.frame_max_bytes == 1000


def test_settings_are_frozen_and_deaf_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_SERVICE_GATEWAY_PORT", "1")
    settings = Settings()
    assert settings.service.gateway_port == 8006
    with pytest.raises(ValidationError):
        settings.service.gateway_port = 1  # type: ignore[misc]


def test_worker_addresses() -> None:
    settings = Settings()
    assert settings.worker_port(2) == 22402
    assert settings.worker_addresses(2) == ["127.0.0.1:22400", "127.0.0.1:22401"]
    everywhere = Settings.model_validate({"service": {"worker_host": "0.0.0.0"}})
    assert everywhere.worker_addresses(1) == ["127.0.0.1:22400"]
    v6 = Settings.model_validate({"service": {"worker_host": "::1"}})
    assert v6.worker_addresses(1) == ["[::1]:22400"]
    high = Settings.model_validate({"service": {"worker_base_port": 65_535}})
    with pytest.raises(SettingsError, match="ports end at 65535"):
        high.worker_addresses(2)


def test_pages_get_what_they_need_and_no_secret() -> None:
    settings = Settings.model_validate(
        {"security": {"admin_token": "do not tell"}, "service": {"default_lang": "zh"}}
    )
    told = json.loads(settings.frontend_defaults({"en": "English"}).model_dump_json())
    assert told["playback_delay_ms"] == 200
    assert told["default_lang"] == "zh"
    assert told["half_duplex"]["vad_threshold"] == 0.8
    assert told["limits"]["chunk_max_s"] == 2
    assert "do not tell" not in json.dumps(told)


def test_the_vad_settings_are_those_of_the_wire() -> None:
    assert Settings().half_duplex.vad.min_silence_duration_ms == 800


@pytest.mark.parametrize("name", settings_reference.FILES)
def test_example_and_reference_are_true(name: str) -> None:
    written = (PROJECT_ROOT / name).read_text(encoding="utf8")
    assert written == settings_reference.FILES[name](), "run `make settings`"


def test_the_example_holds_every_key_with_its_default() -> None:
    example = PROJECT_ROOT / "config.example.json"
    assert load_settings(example) == Settings()
    sections = json.loads(example.read_text(encoding="utf8"))
    listed = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
    assert listed == list(known_keys(Settings))


def test_every_key_says_what_it_is_for() -> None:
    for field in Settings.model_fields.values():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        for name, entry in section.model_fields.items():
            assert entry.description, f"{section.__name__}.{name}"
            assert re.search(r"[.]$", entry.description), name


def test_importing_it_leaves_the_heavy_things_out() -> None:
    heavy = "('torch', 'numpy', 'starlette', 'httpx')"
    program = f"import sys, config; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
