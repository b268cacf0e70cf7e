"""Apps are switched on and off, and stay so."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import AppDisabledError, NotFoundError
from core.schemas.queue import RequestType
from core.store import Store
from gateway_modules.administration import APP_OF_REQUEST, AppRegistry


def test_every_request_depends_on_an_app(tmp_path: Path) -> None:
    known = {app.app_id for app in AppRegistry(Store(tmp_path)).get_all_apps()}
    assert {APP_OF_REQUEST[kind] for kind in RequestType} == known


def test_a_switch_survives(tmp_path: Path) -> None:
    apps = AppRegistry(Store(tmp_path))
    assert apps.is_enabled("omni")
    assert not apps.set_enabled("omni", False).enabled
    again = AppRegistry(Store(tmp_path))
    assert [app.app_id for app in again.get_enabled_apps()] == [
        "turnbased",
        "half_duplex_audio",
        "audio_duplex",
    ]
    assert again.set_enabled("omni", True).enabled
    assert AppRegistry(Store(tmp_path)).is_enabled("omni")


def test_an_unknown_app_is_off(tmp_path: Path) -> None:
    store = Store(tmp_path)
    apps = AppRegistry(store)
    with pytest.raises(NotFoundError):
        apps.set_enabled("gone", True)
    with store.transaction() as state:
        state.execute("INSERT INTO apps VALUES ('gone', 1)")
    assert not apps.is_enabled("gone") and len(apps.get_all_apps()) == 4
    with pytest.raises(AppDisabledError, match="gone is currently disabled"):
        apps.check("gone")
