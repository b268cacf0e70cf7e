"""Only names made by us become paths, and what a file claims to be is looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import InvalidSessionIdError
from recording import names
from recording.folder import is_whole_picture
from recording.names import generate_recording_id, generate_session_id
from tests.source_tree import ROOT
from tests.unit.recordings import (
    START,
    picture,
)


def test_ids_are_unguessable_and_have_a_prefix() -> None:
    ids = {generate_session_id("stm") for _ in range(100)} | {generate_session_id("chat_")}
    assert len(ids) == 101
    assert all(re.fullmatch(r"(stm|chat)_[a-z0-9]{10}", one) for one in ids)
    assert re.fullmatch(
        r"20310506_070809_omni_a-B_[a-z0-9]{10}", generate_recording_id("omni_a-B", START)
    )
    longest = generate_recording_id("x" * 64, START)
    assert names.check_recording_id(longest) == longest


@pytest.mark.parametrize("bad", ["", "..", "a/b", "a\\b", "a b", "x" * 97, "é", "a\n", ".hidden"])
def test_invalid_ids_never_become_paths(bad: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        names.recording_folder("data", bad)
    with pytest.raises(InvalidSessionIdError):
        generate_recording_id(bad * 2, START)


def test_assets_are_confined_to_the_folder_and_not_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "user_audio").mkdir(parents=True)
    (folder / "user_audio" / "000.wav").write_bytes(b"x")
    (folder / names.LOCK_FILE).write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert names.asset_path(folder, "user_audio/000.wav") == folder / "user_audio" / "000.wav"
    outside = [
        "../secret",
        "/etc/passwd",
        "user_audio/../../secret",
        "link",
        ".lock",
        "",
        ".",
        "..",
    ]
    odd = [
        ".lock",
        "",
        "user_audio",
        "user_audio//000.wav",
        "a\0b",
        "user_audio\\000.wav",
        "x" * 5_000,
    ]
    assert [names.asset_path(folder, one) for one in outside + odd] == [None] * len(outside + odd)


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("user_frames/000.webp", "image/webp"),
        ("user_images/img_0.JPG", "image/jpeg"),
        ("merged_replay.vtt", "text/vtt"),
        ("page.html", "application/octet-stream"),
    ],
)
def test_files_have_the_documented_types(name: str, media_type: str) -> None:
    assert names.media_type(name) == media_type


def test_the_gateways_modules_import_neither_numpy_nor_pictures() -> None:
    modules = "recording.recovery, recording.listing, recording.folder, recording.names"
    program = f"import sys, {modules}; print({{'numpy', 'torch', 'PIL', 'av'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_picture_formats_are_detected(tmp_path: Path) -> None:
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        path = tmp_path / kind
        whole = picture((5, 6, 7), kind)
        path.write_bytes(whole)
        assert is_whole_picture(path), kind
        path.write_bytes(whole[:11])
        assert kind in ("GIF", "BMP", "TIFF") or not is_whole_picture(path), kind
    assert not is_whole_picture(tmp_path / "none")
