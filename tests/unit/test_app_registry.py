"""Apps are switched on and off, and stay so."""

from __future__ import annotations

from pathlib import Path

from core.schemas.queue import RequestType
from gateway_modules.admin.app_registry import AppRegistry, app_of_request


def test_every_request_depends_on_an_app() -> None:
    known = {app.app_id for app in AppRegistry().get_all_apps()}
    assert {app_of_request(kind) for kind in RequestType} == known


def test_a_switch_survives(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "apps.json"
    apps = AppRegistry(path)
    assert apps.is_enabled("omni")
    changed = apps.set_enabled("omni", False)
    assert changed is not None and not changed.enabled
    assert [app.app_id for app in AppRegistry(path).get_enabled_apps()] == [
        "turnbased",
        "half_duplex_audio",
        "audio_duplex",
    ]
    assert AppRegistry(path).set_enabled("omni", True) is not None
    assert AppRegistry(path).is_enabled("omni")


def test_what_nobody_knows_is_off(tmp_path: Path) -> None:
    apps = AppRegistry()
    assert not apps.is_enabled("nobody")
    assert apps.set_enabled("nobody", True) is None
    assert not apps.is_enabled("nobody")
    assert apps.name_of("nobody") == "nobody"


def test_a_damaged_file_switches_nothing_off(tmp_path: Path) -> None:
    path = tmp_path / "apps.json"
    for text in ("{", "[]", '{"enabled": {"omni": "perhaps"}}'):
        path.write_text(text)
        assert len(AppRegistry(path).get_enabled_apps()) == 4
    path.write_text('{"enabled": {"omni": false, "gone": false}}')
    assert len(AppRegistry(path).get_all_apps()) == 4
    assert not AppRegistry(path).is_enabled("omni")
