"""The server's small state survives restarts, full disks, damage and a second gateway."""

from __future__ import annotations

import errno
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from core import store as store_module
from core.store import STATE_FILE, Store
from gateway_modules.administration import AppRegistry

INSERT = "INSERT INTO apps VALUES (?, ?)"
SELECT = "SELECT * FROM apps ORDER BY app_id"


def keep(store: Store, name: str) -> None:
    with store.transaction() as state:
        state.execute(INSERT, (name, True))


def test_a_transaction_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "new folder" / "data")
    assert store.rows(SELECT) == [] and not (tmp_path / "new folder").exists()
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
