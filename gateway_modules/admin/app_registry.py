"""Which apps there are and which of them are switched on; what is set survives a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from pydantic import Field, ValidationError

from core.files import write_file
from core.schemas.common import WireModel
from core.schemas.queue import RequestType

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


class _StateFile(WireModel):
    """What is kept between two starts."""

    enabled: dict[str, bool] = Field(default_factory=dict, description="By app.")


# Source: docs/specification/service.md#6.3.
APPS: Final = (
    AppInfo(app_id=TURN_BASED, name="Turn-based Chat", route="/turnbased"),
    AppInfo(app_id=HALF_DUPLEX, name="Half-Duplex Audio", route="/half_duplex"),
    AppInfo(app_id=OMNI, name="Omni Full-Duplex", route="/omni"),
    AppInfo(app_id=AUDIO_DUPLEX, name="Audio Full-Duplex", route="/audio_duplex"),
)


def app_of_request(request_type: RequestType) -> str:
    """Return the app whose switch a request of this type depends on."""
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
    """The apps in the order they are shown, each on or off. Any thread may call it."""

    def __init__(self, state_file: Path | None = None) -> None:
        """Read what was set before; an app is on unless it was switched off.

        Args:
            state_file: Keeps the switches; None keeps them in memory only.
        """
        self._state_file = state_file
        self._lock = threading.Lock()
        known = {app.app_id for app in APPS}
        kept = _read(state_file)
        self._enabled = dict.fromkeys(known, True)
        self._enabled.update({name: is_on for name, is_on in kept.items() if name in known})

    def is_enabled(self, app_id: str) -> bool:
        """Whether the app may be used; an unknown one may not."""
        with self._lock:
            return self._enabled.get(app_id, False)

    def name_of(self, app_id: str) -> str:
        """Return the app's name for people, its id if it is not known."""
        return next((app.name for app in APPS if app.app_id == app_id), app_id)

    def set_enabled(self, app_id: str, enabled: bool) -> AppState | None:
        """Switch an app on or off; sessions that run go on.

        Returns:
            The app as it is now; None if there is no such app.

        Raises:
            OSError: The switch could not be kept; it is as before.
        """
        app = next((app for app in APPS if app.app_id == app_id), None)
        if app is None:
            return None
        with self._lock:
            changed = self._enabled | {app_id: enabled}
            if self._state_file is not None:
                self._state_file.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"enabled": changed}, indent=2, sort_keys=True)
                write_file(self._state_file, text.encode(), is_durable=True)
            self._enabled = changed
        return AppState(**app.model_dump(), enabled=enabled)

    def get_enabled_apps(self) -> list[AppInfo]:
        """Return the apps that may be used."""
        return [app for app in APPS if self.is_enabled(app.app_id)]

    def get_all_apps(self) -> list[AppState]:
        """Return every app."""
        return [AppState(**app.model_dump(), enabled=self.is_enabled(app.app_id)) for app in APPS]


def _read(state_file: Path | None) -> Mapping[str, bool]:
    if state_file is None:
        return {}
    try:
        return _StateFile.model_validate_json(state_file.read_bytes()).enabled
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        log = structlog.get_logger("apps")
        log.warning("app state unreadable", path=str(state_file), reason=str(error))
        return {}
