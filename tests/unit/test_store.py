"""The server's small state survives restarts, full disks, damage and a second gateway."""

from __future__ import annotations

import errno
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from config import ServiceSettings
from core import store as store_module
from core.store import STATE_FILE, Store
from gateway_modules.admin.kept_settings import AppRegistry, EtaStore, take_over_files
from gateway_modules.admin.logs import AuditLog
from gateway_modules.voices.voice_library import RefAudioRegistry
from recording.listing import last_accesses
from recording.names import recording_folder

INSERT = "INSERT INTO apps VALUES (?, ?)"
SELECT = "SELECT * FROM apps ORDER BY app_id"


def keep(store: Store, name: str) -> None:
    with store.transaction() as state:
        state.execute(INSERT, (name, True))


def test_a_transaction_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "new folder" / "data")
    assert not store.exists and store.rows(SELECT) == []
    keep(store, "a")
    with pytest.raises(KeyError), store.transaction() as state:
        state.execute(INSERT, ("b", True))
        raise KeyError
    store.close()
    assert Store(tmp_path / "new folder" / "data").rows(SELECT) == [("a", 1)]
    assert (tmp_path / "new folder" / "data" / STATE_FILE).stat().st_mode & 0o777 == 0o600


def test_readers_wait_for_no_writer(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    keep(store, "a")
    with store.transaction() as state:
        state.execute(INSERT, ("b", True))
        assert other.rows(SELECT) == store.rows(SELECT) == [("a", 1)]
    assert other.rows(SELECT) == store.rows(SELECT) == [("a", 1), ("b", 1)]


def test_writers_wait_for_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAIT_S", 0.0)
    store = Store(tmp_path)
    keep(store, "a")
    with closing(sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute(SELECT).fetchall() == [("a", 1)]
        keep(store, "b")
        assert reader.execute(SELECT).fetchall() == [("a", 1)]


def test_two_gateways_on_one_folder_lose_nothing(tmp_path: Path) -> None:
    """Both begin at once, on a folder without state, and write in many threads."""
    stores = (Store(tmp_path), Store(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: keep(stores[number % 2], f"{number:02}"), range(40)))
    for store in stores:
        assert [name for name, _ in store.rows(SELECT)] == [f"{number:02}" for number in range(40)]
    apps = [AppRegistry(store) for store in stores]
    apps[0].set_enabled("omni", False)
    assert not apps[1].is_enabled("omni"), "a switch holds for both at once"


def test_a_writer_that_never_ends_is_waited_for_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WAIT_S", 0.01)
    store, other = Store(tmp_path), Store(tmp_path)
    with store.transaction(), pytest.raises(OSError, match="locked"), other.transaction():
        pass
    keep(other, "a")


def test_a_full_disk_refuses_what_is_new_and_keeps_the_rest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, "a")
    with pytest.raises(OSError) as caught, store.transaction() as state:
        state.execute("PRAGMA max_page_count = 1")  # it is this connection's alone
        for number in range(1_000):
            state.execute(INSERT, (f"{number:0200}", True))
    assert caught.value.errno == errno.ENOSPC and str(tmp_path / STATE_FILE) in str(caught.value)
    assert store.rows(SELECT) == [("a", 1)]
    keep(store, "b")
    assert len(store.rows(SELECT)) == 2


@pytest.mark.parametrize("damage", [b"this is no database" * 100, b""], ids=["text", "cut"])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begins(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    for number in range(200):
        keep(store, f"{number:0100}")
    store.close()
    path = tmp_path / STATE_FILE
    damaged = damage or path.read_bytes()[:4096] + b"\xff" * 8192
    path.write_bytes(damaged)
    again = Store(tmp_path)
    assert again.rows(SELECT) == []
    keep(again, "new")
    assert again.rows(SELECT) == [("new", 1)]
    (aside,) = tmp_path.glob(f"{STATE_FILE}.damaged-*[0-9]")
    assert aside.read_bytes() == damaged


def test_what_cannot_be_read_counts_as_not_there(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).mkdir()
    store = Store(tmp_path)
    assert store.rows(SELECT) == []
    assert AppRegistry(store).is_enabled("omni"), "calls go on"
    with pytest.raises(OSError):
        keep(store, "a")


def test_the_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    keep(Store(tmp_path), "a")
    connection = sqlite3.connect(tmp_path / STATE_FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(OSError, match="newer version"):
        keep(Store(tmp_path), "b")


# What earlier versions kept in files of their own.

VOICE = {
    "id": "5f",
    "name": "Ann",
    "filename": "5f.wav",
    "source_type": "upload",
    "duration_ms": 1_000,
    "sample_rate": 16_000,
    "created_at": "2030-01-01T00:00:00Z",
}
ENTRY = {"time": "2030-01-01T00:00:00Z", "action": "PUT /x", "status": 200}


def write_earlier(data_dir: Path) -> Path:
    """Write a data folder as it was before there was a store."""
    voices = data_dir / "assets" / "ref_audio"
    recording = recording_folder(data_dir, "adx_1")
    for folder in (voices, recording):
        folder.mkdir(parents=True)
    (data_dir / "app_state.json").write_text('{"enabled": {"omni": false, "turnbased": true}}')
    (data_dir / "eta_settings.json").write_text('{"eta_chat_s": 5.5}')
    (voices / "registry.json").write_text(json.dumps({"ref_audios": [VOICE]}))
    (voices / "5f.wav").write_bytes(b"RIFF")
    for name, targets in (("audit.jsonl.1", "ab"), ("audit.jsonl", "c")):
        lines = [json.dumps(ENTRY | {"target": target}) for target in targets]
        (data_dir / name).write_text("\n".join(lines) + "\n{half a li")
    (recording / ".accessed").touch()
    return recording


def test_what_earlier_versions_kept_is_taken_over_once(tmp_path: Path) -> None:
    recording = write_earlier(tmp_path)
    looked_s = (recording / ".accessed").stat().st_mtime
    store = Store(tmp_path)
    take_over_files(store, tmp_path)
    for _ in range(2):
        assert [app.app_id for app in AppRegistry(store).get_all_apps() if not app.enabled] == [
            "omni"
        ]
        assert EtaStore(store, ServiceSettings()).load().eta_chat_s == 5.5
        voices = RefAudioRegistry(tmp_path / "assets" / "ref_audio", store).list_all()
        assert [voice.name for voice in voices] == ["Ann"]
        assert [entry.target for entry in AuditLog(store).newest(9)] == ["c", "b", "a"]
        assert last_accesses(store)["adx_1"].timestamp() == pytest.approx(looked_s)
        take_over_files(store, tmp_path)
    store.close()
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {STATE_FILE, "assets/ref_audio/5f.wav"}


def test_files_that_come_back_change_nothing_that_was_set_since(tmp_path: Path) -> None:
    """As after a power cut between keeping them and deleting them, or with a second gateway."""
    write_earlier(tmp_path / "a")
    store = Store(tmp_path / "a")
    take_over_files(store, tmp_path / "a")
    AppRegistry(store).set_enabled("omni", True)
    recording_folder(tmp_path / "a", "adx_1").rmdir()
    (tmp_path / "a" / "assets" / "ref_audio" / "5f.wav").unlink()
    for folder in (tmp_path / "a" / "assets" / "ref_audio",):
        folder.rmdir()
        folder.parent.rmdir()
    (tmp_path / "a" / "sessions").rmdir()
    write_earlier(tmp_path / "a")
    take_over_files(store, tmp_path / "a")
    assert AppRegistry(store).is_enabled("omni")
    assert [entry.target for entry in AuditLog(store).newest(9)] == ["c", "b", "a"]


@pytest.mark.parametrize("content", ["{", "[]", '{"enabled": {"omni": "perhaps"}}', "\xff"])
def test_an_earlier_file_that_cannot_be_understood_is_put_aside(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "app_state.json"
    path.write_text(content, encoding="latin-1")
    (tmp_path / "eta_settings.json").write_text('{"eta_chat_s": 5.5}')
    store = Store(tmp_path)
    take_over_files(store, tmp_path)
    assert len(AppRegistry(store).get_enabled_apps()) == 4
    assert EtaStore(store, ServiceSettings()).load().eta_chat_s == 5.5
    assert path.with_name("app_state.json.damaged").read_text("latin-1") == content
    assert not path.exists()


def test_earlier_files_stay_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_earlier(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))

    def refuse(*_: object, **__: object) -> sqlite3.Connection:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "_connect", refuse)
    with pytest.raises(OSError, match="No space"):
        take_over_files(Store(tmp_path), tmp_path)
    assert sorted(path for path in tmp_path.rglob("*")) == before
