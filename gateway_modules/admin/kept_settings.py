"""What administrators set, and what earlier versions kept in files. Blocks on the disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from pydantic import Field, ValidationError

from config import ServiceSettings
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.store import Store
from gateway_modules.queue.models import EtaConfig
from gateway_modules.voices.voice_library import RefAudio
from recording.names import recording_folders

TURN_BASED: Final = "turnbased"
HALF_DUPLEX: Final = "half_duplex_audio"
OMNI: Final = "omni"
AUDIO_DUPLEX: Final = "audio_duplex"


class AppInfo(WireModel):
    """An app in a public list."""

    app_id: str = Field(description="Its name for programs.")
    name: str = Field(description="Its name for people.")
    route: str = Field(description="Where its page is.")


class AppState(AppInfo):
    """An app as administrators see it."""

    enabled: bool = Field(description="It may be used.")


# Source: docs/specification/service.md#6.3.
APPS: Final = (
    AppInfo(app_id=TURN_BASED, name="Turn-based Chat", route="/turnbased"),
    AppInfo(app_id=HALF_DUPLEX, name="Half-Duplex Audio", route="/half_duplex"),
    AppInfo(app_id=OMNI, name="Omni Full-Duplex", route="/omni"),
    AppInfo(app_id=AUDIO_DUPLEX, name="Audio Full-Duplex", route="/audio_duplex"),
)


def app_of_request(request_type: RequestType) -> str:
    match request_type:
        case RequestType.CHAT | RequestType.STREAMING:
            return TURN_BASED
        case RequestType.HALF_DUPLEX_AUDIO:
            return HALF_DUPLEX
        case RequestType.AUDIO_DUPLEX:
            return AUDIO_DUPLEX
        case RequestType.OMNI_DUPLEX | RequestType.DUPLEX:
            return OMNI


class AppRegistry:
    """The apps in the order they are shown; one is on unless it was switched off."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def is_enabled(self, app_id: str) -> bool:
        """Whether the app may be used; an unknown one may not."""
        kept = self._store.rows("SELECT is_enabled FROM apps WHERE app_id = ?", (app_id,))
        return any(app.app_id == app_id for app in APPS) and kept != [(0,)]

    def name_of(self, app_id: str) -> str:
        """Return the app's name for people, its id if it is not known."""
        return next((app.name for app in APPS if app.app_id == app_id), app_id)

    def set_enabled(self, app_id: str, enabled: bool) -> AppState | None:
        """Switch an app; running sessions continue. Return its state, None without such an app."""
        app = next((app for app in APPS if app.app_id == app_id), None)
        if app is None:
            return None
        with self._store.transaction() as state:
            state.execute("REPLACE INTO apps VALUES (?, ?)", (app_id, enabled))
        return AppState(**app.model_dump(), enabled=enabled)

    def get_enabled_apps(self) -> list[AppInfo]:
        return [app for app in APPS if self.is_enabled(app.app_id)]

    def get_all_apps(self) -> list[AppState]:
        return [AppState(**app.model_dump(), enabled=self.is_enabled(app.app_id)) for app in APPS]


class EtaStore:
    """The durations by name; what is set now stands beside what was set before."""

    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._settings = settings

    def load(self) -> EtaConfig:
        """Return the first guesses, changed by what was set."""
        service = self._settings
        first = EtaConfig(
            eta_chat_s=service.eta_chat_s,
            eta_streaming_s=service.eta_streaming_s,
            eta_half_duplex_s=service.eta_half_duplex_s,
            eta_audio_duplex_s=service.eta_audio_duplex_s,
            eta_omni_duplex_s=service.eta_omni_duplex_s,
            ema_alpha=service.eta_ema_alpha,
        )
        try:
            kept = EtaConfig.model_validate(dict(self._store.rows("SELECT * FROM estimates")))
        except ValidationError as error:
            structlog.get_logger("eta").warning("durations unusable", reason=str(error))
            return first
        return first.model_copy(update=kept.model_dump(exclude_unset=True))

    def save(self, change: EtaConfig) -> None:
        given = change.model_dump(exclude_unset=True)
        with self._store.transaction() as state:
            state.executemany("REPLACE INTO estimates VALUES (?, ?)", given.items())


DAMAGED_SUFFIX: Final = ".damaged"
ACCESS_FILE: Final = ".accessed"  # empty; its time was that of the last access


def _apps(state: sqlite3.Connection, content: bytes) -> None:
    rows = [(name, is_on) for name, is_on in json.loads(content)["enabled"].items()]
    if not all(isinstance(is_on, bool) for _, is_on in rows):
        raise TypeError("a switch is neither on nor off")
    state.executemany("INSERT OR IGNORE INTO apps VALUES (?, ?)", rows)


def _estimates(state: sqlite3.Connection, content: bytes) -> None:
    given = EtaConfig.model_validate_json(content).model_dump(exclude_unset=True)
    state.executemany("INSERT OR IGNORE INTO estimates VALUES (?, ?)", given.items())


def _voices(state: sqlite3.Connection, content: bytes) -> None:
    voices = [RefAudio.model_validate(voice) for voice in json.loads(content)["ref_audios"]]
    rows = [(voice.id, voice.model_dump_json()) for voice in voices]
    state.executemany("INSERT OR IGNORE INTO voices VALUES (?, ?)", rows)


def _audit(state: sqlite3.Connection, content: bytes) -> None:
    lines = content.decode("utf-8", "replace").splitlines()
    if not state.execute("SELECT 1 FROM audit WHERE entry = ?", lines[:1] or [""]).fetchone():
        state.executemany("INSERT INTO audit (entry) VALUES (?)", ((line,) for line in lines))


# The older of the two audit files comes first.
FILES: Final = MappingProxyType[str, Callable[[sqlite3.Connection, bytes], None]](
    {
        "app_state.json": _apps,
        "eta_settings.json": _estimates,
        "assets/ref_audio/registry.json": _voices,
        "audit.jsonl.1": _audit,
        "audit.jsonl": _audit,
    }
)


def take_over_files(store: Store, data_dir: Path) -> None:
    """Put what is kept in such files into the store, and delete them.

    One that cannot be understood is renamed and counts as empty. Another gateway may do the same
    at the same time.

    Raises:
        OSError: It cannot be kept; everything is as before.
    """
    found = {data_dir / name: take for name, take in FILES.items() if (data_dir / name).is_file()}
    if not found and (store.exists or not data_dir.is_dir()):
        return
    damaged: list[Path] = []
    with store.transaction() as state:
        for path, take in found.items():
            try:
                take(state, path.read_bytes())
            except FileNotFoundError:  # another gateway was faster
                continue
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                structlog.get_logger("state").error(
                    "file of an earlier version unusable", path=str(path), reason=str(error)
                )
                damaged.append(path)
        marks = _accesses(state, data_dir)
    for path in damaged:
        path.replace(path.with_name(path.name + DAMAGED_SUFFIX))
    for path in (*found, *marks):
        path.unlink(missing_ok=True)


def _accesses(state: sqlite3.Connection, data_dir: Path) -> list[Path]:
    marks = []
    for folder in recording_folders(data_dir):
        mark = folder / ACCESS_FILE
        with suppress(OSError):
            row = (folder.name, mark.stat().st_mtime)
            state.execute("INSERT OR IGNORE INTO accesses VALUES (?, ?)", row)
            marks.append(mark)
    return marks
