"""Takes over, once, what earlier versions kept in files of their own. Blocks on the disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from core.store import Store
from gateway_modules.queue.models import EtaConfig
from gateway_modules.voices.ref_audio_registry import RefAudio
from recording.names import recording_folders

DAMAGED_SUFFIX: Final = ".damaged"
ACCESS_FILE: Final = ".accessed"  # empty; its time said when somebody last looked


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
