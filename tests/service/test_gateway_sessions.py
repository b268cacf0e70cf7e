"""Recorded sessions over HTTP: reading, ranges, zip, uploads, comments, deletion, and the paths."""

from __future__ import annotations

import errno
import io
import json
import shutil
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import pytest
from starlette.datastructures import UploadFile
from structlog.testing import capture_logs

from core.audio import encode_wire_wav
from core.schemas.queue import RequestType
from core.store import Store
from recording.folder import RecordingLock, read_meta, write_meta
from recording.listing import last_accesses
from recording.names import recording_folder
from recording.records import Meta, Status
from recording.recovery import mark_ready
from tests.fakes.gateway_stage import Stage, on_stage

SID = "20300101_120000_adx_1_abcdefghij"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(range(200))
WEBM = b"\x1a\x45\xdf\xa3" + bytes(5_000)
MP4 = b"\x00\x00\x00\x18ftypisom" + bytes(5_000)


def record(stage: Stage, session_id: str = SID, *, is_live: bool = False) -> Path:
    folder = recording_folder(stage.gateway.settings.service.data_dir, session_id)
    (folder / "user_audio").mkdir(parents=True)
    (folder / "user_audio" / "000.wav").write_bytes(WAV)
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "recording.json").write_text(json.dumps({"session_id": session_id, "chunks": []}))
    meta = Meta(
        session_id=session_id, app_type=RequestType.AUDIO_DUPLEX, created_at=datetime.now(UTC)
    )
    write_meta(folder, meta)
    if is_live:
        RecordingLock(folder)  # held until this process ends
    return folder


# Reading.


@on_stage()
async def test_metadata_and_timeline_of_a_recording(stage: Stage) -> None:
    folder = record(stage)
    meta = (await stage.http.get(f"/api/sessions/{SID}")).json()
    assert (meta["session_id"], meta["app_type"]) == (SID, "audio_duplex")
    timeline = await stage.http.get(f"/api/sessions/{SID}/recording")
    assert timeline.json() == {"session_id": SID, "chunks": []}
    assert folder.name in last_accesses(stage.gateway.store)
    assert (await stage.http.get(f"/s/{SID}")).status_code == 200


@on_stage()
async def test_a_running_recording_is_reported_as_such(stage: Stage) -> None:
    folder = record(stage, is_live=True)
    url = f"/api/sessions/{SID}"
    meta = read_meta(folder)
    assert meta is not None
    # Its results are written just before its status; the replay is still missing.
    assert (await stage.http.get(f"{url}/recording")).status_code == 409
    meta = meta.model_copy(update={"app_type": RequestType.STREAMING})
    write_meta(folder, meta)
    assert (await stage.http.get(f"{url}/recording")).status_code == 200  # as it is so far
    write_meta(folder, meta.model_copy(update={"status": Status.FINALIZING}))
    answer = await stage.http.get(f"{url}/recording")
    assert (answer.status_code, answer.json()["code"]) == (409, "still_writing")
    write_meta(folder, meta.model_copy(update={"status": Status.READY}))  # before its lock is gone
    assert (await stage.http.get(f"{url}/recording")).status_code == 200
    (folder / "recording.json").unlink()
    write_meta(folder, meta)
    assert (await stage.http.get(f"{url}/recording")).status_code == 409
    assert (await stage.http.get(url)).status_code == 200
    answer = await stage.http.delete(f"/api/sessions/{SID}")
    assert (answer.status_code, answer.json()["code"]) == (409, "session_in_use")


@on_stage()
async def test_missing_recordings(stage: Stage) -> None:
    for method, tail in (
        ("GET", ""),
        ("GET", "/recording"),
        ("GET", "/download"),
        ("GET", "/comment"),
        ("GET", "/assets/meta.json"),
        ("DELETE", ""),
    ):
        answer = await stage.http.request(method, f"/api/sessions/nobody{tail}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), tail
        answer = await stage.http.request(method, f"/api/sessions/no.body{tail}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_session_id"), tail
    page = await stage.http.get("/s/<script>")
    assert page.status_code == 404 and "<script>" not in page.text


@on_stage(recording={"enabled": False})
async def test_without_recording_the_routes_answer_404(stage: Stage) -> None:
    record(stage)
    assert (await stage.http.get(f"/api/sessions/{SID}")).status_code == 404
    assert (await stage.http.get(f"/s/{SID}")).status_code == 404


# Files.


@on_stage()
async def test_files_are_served_completely_or_in_ranges(stage: Stage) -> None:
    record(stage)
    url = f"/api/sessions/{SID}/assets/user_audio/000.wav"
    whole = await stage.http.get(url)
    assert (whole.status_code, whole.content) == (200, WAV)
    assert whole.headers["content-type"] == "audio/wav"
    assert whole.headers["accept-ranges"] == "bytes"
    head = await stage.http.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (
        200,
        str(len(WAV)),
        b"",
    )
    for asked, expected in (("0-9", WAV[:10]), ("100-", WAV[100:]), ("-7", WAV[-7:])):
        part = await stage.http.get(url, headers={"Range": f"bytes={asked}"})
        assert (part.status_code, part.content) == (206, expected)
        assert part.headers["content-range"].endswith(f"/{len(WAV)}")
    beyond = await stage.http.get(url, headers={"Range": "bytes=9999-"})
    assert beyond.status_code == 416
    for invalid in ("bytes=x-", "bytes=" + "9" * 5_000 + "-"):
        ignored = await stage.http.get(url, headers={"Range": invalid})
        assert (ignored.status_code, ignored.content) == (200, WAV)


@on_stage()
async def test_other_files_are_bytes_and_nothing_runs(stage: Stage) -> None:
    record(stage)
    answer = await stage.http.get(f"/api/sessions/{SID}/assets/page.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@on_stage()
async def test_no_path_leads_out_of_a_recording(stage: Stage) -> None:
    folder = record(stage)
    record(stage, "other")
    outside = stage.gateway.settings.service.data_dir / "secret.wav"
    outside.write_bytes(b"secret")
    (folder / "link.wav").symlink_to(outside)
    (folder / ".hidden").write_bytes(b"secret")
    for path in (
        "..%2f..%2fsecret.wav",
        "%2e%2e/%2e%2e/secret.wav",
        "user_audio/../../other/meta.json".replace("..", "%2e%2e"),
        "%2fetc%2fpasswd",
        "user_audio%5c..%5cmeta.json",
        "meta.json%00.wav",
        "/meta.json",
        "",
    ):
        answer = await stage.http.get(f"/api/sessions/{SID}/assets/{path}")
        assert answer.status_code == 400, path
        assert b"secret" not in answer.content
    for path in ("link.wav", ".hidden", ".lock", ".owner", "user_audio", "x" * 300, "none.wav"):
        answer = await stage.http.get(f"/api/sessions/{SID}/assets/{path}")
        assert answer.status_code == 404, path


@on_stage()
async def test_a_recording_is_downloaded_as_a_zip_file(stage: Stage) -> None:
    folder = record(stage)
    (folder / "big.wav").write_bytes(bytes(3_000_000))
    (folder / ".frontend_replay.webm.x.tmp").write_bytes(b"half")
    (folder / "link.wav").symlink_to("/etc/passwd")
    async with stage.http.stream("GET", f"/api/sessions/{SID}/download") as answer:
        assert answer.headers["content-type"] == "application/zip"
        assert answer.headers["content-disposition"] == f'attachment; filename="{SID}.zip"'
        assert "content-length" not in answer.headers  # it is made while it is sent
        pieces = [piece async for piece in answer.aiter_raw()]
    assert len(pieces) > 10
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        names = {"meta.json", "recording.json", "page.html", "big.wav", "user_audio/000.wav"}
        assert set(archive.namelist()) == names
        assert archive.read("user_audio/000.wav") == WAV
        # Readers of streams find the end of a member by its compression alone.
        kinds = {member.compress_type for member in archive.infolist()}
        assert kinds == {zipfile.ZIP_DEFLATED}


# Uploads.


@pytest.mark.parametrize(
    ("media_type", "content", "name"),
    [
        ("video/webm", WEBM, "frontend_replay.webm"),
        ("audio/webm;codecs=opus", WEBM, "frontend_replay.webm"),
        ("video/mp4", MP4, "frontend_replay.mp4"),
        ("audio/wav", WAV, "frontend_replay.wav"),
    ],
)
@on_stage()
async def test_a_browsers_recording_is_stored(
    stage: Stage, media_type: str, content: bytes, name: str
) -> None:
    folder = record(stage)
    url = f"/api/sessions/{SID}/upload-recording"
    answer = await stage.http.post(url, files={"file": ("x.bin", content, media_type)})
    assert answer.json() == {"status": "ok", "path": name, "size_bytes": len(content)}
    assert (folder / name).read_bytes() == content
    other = await stage.http.post(url, files={"file": ("x", WAV, "audio/wav")})
    assert other.is_success
    assert [path.name for path in folder.glob("frontend_replay.*")] == ["frontend_replay.wav"]
    assert not list(folder.glob(".frontend_replay*"))
    got = await stage.http.get(f"/api/sessions/{SID}/assets/frontend_replay.wav")
    assert got.content == WAV


@on_stage(limits={"recording_upload_bytes": 100_000})
async def test_invalid_uploads_leave_nothing(stage: Stage) -> None:
    folder = record(stage)
    (folder / "frontend_replay.webm").write_bytes(b"before")
    url = f"/api/sessions/{SID}/upload-recording"
    for media_type, content, status in (
        ("text/html", b"<script>", 400),
        ("video/webm", MP4, 400),
        ("video/mp4", WEBM, 400),
        ("audio/wav", b"", 400),
        ("video/webm", WEBM[:3], 400),
        ("video/webm", WEBM + bytes(100_000), 413),
        ("video/webm", WEBM + bytes(1_000_000), 413),
    ):
        answer = await stage.http.post(url, files={"file": ("x", content, media_type)})
        assert answer.status_code == status, (media_type, len(content))
    wrong = await stage.http.post(url, files={"other": ("x", WEBM, "video/webm")})
    assert wrong.status_code == 400
    assert (await stage.http.post(url, content=b"x")).status_code == 400
    damaged = {"Content-Type": "multipart/form-data; boundary=b"}
    assert (await stage.http.post(url, content=b"nonsense", headers=damaged)).status_code == 400
    nobody = "/api/sessions/nobody/upload-recording"
    answer = await stage.http.post(nobody, files={"file": ("x", WEBM, "video/webm")})
    assert answer.status_code == 404
    assert (folder / "frontend_replay.webm").read_bytes() == b"before"
    assert [path.name for path in folder.glob(".*")] == []


@on_stage()
async def test_an_upload_that_fills_the_disk_leaves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(file: BinaryIO, kept: BinaryIO) -> None:
        kept.write(file.read(10))
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = record(stage)
    monkeypatch.setattr(shutil, "copyfileobj", fill)
    url, file = f"/api/sessions/{SID}/upload-recording", {"file": ("x", WEBM, "video/webm")}
    answer = await stage.http.post(url, files=file)
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert not list(folder.glob("frontend_replay*")) and not list(folder.glob(".frontend_replay*"))


@on_stage()
async def test_an_upload_that_fills_the_temporary_folder_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(file: UploadFile, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    record(stage)
    monkeypatch.setattr(UploadFile, "write", fill)
    url, file = f"/api/sessions/{SID}/upload-recording", {"file": ("x", WEBM, "video/webm")}
    answer = await stage.http.post(url, files=file)
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")


@on_stage()
async def test_whatever_fills_the_disk_is_refused_alike(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*given: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    record(stage)
    monkeypatch.setattr("core.files.write_all", fill)
    monkeypatch.setattr(Store, "transaction", fill)  # what SQLite says of it becomes such an error
    sound = encode_wire_wav(np.full(16_000, 0.5, np.float32), 16_000)
    with capture_logs() as log:
        for method, url, body in (
            ("POST", f"/api/sessions/{SID}/comment", {"comment": "Good."}),
            ("POST", "/api/assets/ref_audio", {"name": "Ann", "audio_base64": sound}),
            ("PUT", "/api/admin/apps/omni", {"enabled": False}),
            ("PUT", "/api/config/eta", {"eta_chat_s": 7}),
        ):
            answer = await stage.http.request(method, url, json=body)
            assert (answer.status_code, answer.json()["code"]) == (507, "disk_full"), url
    told = [line["event"] for line in log]
    assert "disk full" in told and "request failed" not in told


@on_stage(limits={"recording_upload_bytes": 100_000, "reference_upload_bytes": 100_000})
async def test_all_uploads_together_have_a_limit(stage: Stage) -> None:
    folder = record(stage)
    url, file = f"/api/sessions/{SID}/upload-recording", {"file": ("x", WEBM, "video/webm")}
    others = stage.gateway.bytes_uploaded.lease("")
    others.add(8 * 100_000)
    answer = await stage.http.post(url, files=file)
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert "Too many files are being uploaded" in answer.json()["detail"]
    assert answer.headers["Retry-After"] and not list(folder.glob("frontend_replay*"))
    others.release()
    assert (await stage.http.post(url, files=file)).is_success
    assert stage.gateway.bytes_uploaded.held == 0


@on_stage()
async def test_an_upload_survives_the_end_of_its_recording(stage: Stage) -> None:
    folder = record(stage)
    boundary = b"--b\r\n"
    head = b'Content-Disposition: form-data; name="file"; filename="x"\r\n'

    async def body() -> AsyncIterator[bytes]:
        yield boundary + head + b"Content-Type: video/webm\r\n\r\n" + WEBM
        mark_ready(folder)  # the worker has made the replay meanwhile
        yield b"\r\n--b--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    url = f"/api/sessions/{SID}/upload-recording"
    answer = await stage.http.post(url, content=body(), headers=headers)
    assert (answer.status_code, answer.json()["size_bytes"]) == (200, len(WEBM))
    assert (folder / "frontend_replay.webm").read_bytes() == WEBM


@on_stage()
async def test_a_recording_takes_one_upload_at_a_time_and_ten_in_all(stage: Stage) -> None:
    record(stage)
    record(stage, "other")
    url = f"/api/sessions/{SID}/upload-recording"
    file = {"file": ("x", WEBM, "video/webm")}
    with stage.gateway.uploads.counted(SID, "", 0):
        answer = await stage.http.post(url, files=file)
        assert (answer.status_code, answer.json()["code"]) == (409, "session_in_use")
    statuses = [(await stage.http.post(url, files=file)).status_code for _ in range(10)]
    assert statuses == [200] * 9 + [429]
    assert (await stage.http.post(url.replace(SID, "other"), files=file)).status_code == 200


@on_stage()
async def test_a_refused_upload_does_not_count(stage: Stage) -> None:
    record(stage)
    url = f"/api/sessions/{SID}/upload-recording"
    for _ in range(11):
        answer = await stage.http.post(url, files={"file": ("x", WEBM, "text/html")})
        assert answer.status_code == 400
    assert (await stage.http.post(url, files={"file": ("x", WEBM, "video/webm")})).is_success


# Comments and deletion.


@on_stage(limits={"comment_chars": 20})
async def test_comments_are_stored_changed_and_deleted(stage: Stage) -> None:
    folder = record(stage)
    url = f"/api/sessions/{SID}/comment"
    assert (await stage.http.get(url)).json() == {"comment": ""}
    answer = await stage.http.post(url, json={"comment": " 很好 <b> "})
    assert answer.json() == {"status": "ok", "len": 6}
    assert (await stage.http.get(url)).json() == {"comment": "很好 <b>"}
    answer = await stage.http.post(url, json={"comment": "x" * 21})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_big")
    assert (await stage.http.post(url, json={"comment": ""})).json() == {"status": "ok", "len": 0}
    assert not (folder / "comment.txt").exists()
    assert (await stage.http.post(url, json={"comment": 5})).status_code == 422


@on_stage()
async def test_a_recording_can_be_deleted(stage: Stage) -> None:
    folder = record(stage)
    assert (await stage.http.delete(f"/api/sessions/{SID}")).json() == {"success": True}
    assert not folder.exists()
    assert (await stage.http.delete(f"/api/sessions/{SID}")).status_code == 404
