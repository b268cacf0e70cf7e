"""Which apps there are and which of them are switched on; what is set survives a restart."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.store import Store

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
    """The apps in the order they are shown; one is on unless it was switched off."""

    def __init__(self, store: Store) -> None:
        """Take what keeps the switches."""
        self._store = store

    def is_enabled(self, app_id: str) -> bool:
        """Whether the app may be used; an unknown one may not."""
        kept = self._store.rows("SELECT is_enabled FROM apps WHERE app_id = ?", (app_id,))
        return any(app.app_id == app_id for app in APPS) and kept != [(0,)]

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
        with self._store.transaction() as state:
            state.execute("REPLACE INTO apps VALUES (?, ?)", (app_id, enabled))
        return AppState(**app.model_dump(), enabled=enabled)

    def get_enabled_apps(self) -> list[AppInfo]:
        """Return the apps that may be used."""
        return [app for app in APPS if self.is_enabled(app.app_id)]

    def get_all_apps(self) -> list[AppState]:
        """Return every app."""
        return [AppState(**app.model_dump(), enabled=self.is_enabled(app.app_id)) for app in APPS]
