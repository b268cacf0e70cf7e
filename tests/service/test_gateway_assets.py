"""Presets and voices over HTTP."""

from __future__ import annotations

import base64
import math
import struct
import wave
from io import BytesIO

from tests.fakes.gateway_stage import Stage, on_stage

MODES = ["turnbased", "half_duplex_audio", "omni", "audio_duplex"]


def tone(duration_s: float, rate_hz: int = 22_050, channels: int = 2) -> bytes:
    out = BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        for index in range(round(duration_s * rate_hz)):
            sample = round(10_000 * math.sin(index / 10))
            file.writeframesraw(struct.pack("<h", sample) * channels)
    return out.getvalue()


SECOND = tone(1.0)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def with_voice(stage: Stage) -> None:
    """Give the server a voice of its own, where the toy checkpoint has it."""
    folder = stage.gateway.settings.service.data_dir / "tiny" / "assets"
    folder.mkdir(parents=True)
    (folder / "system_ref_audio.wav").write_bytes(SECOND)


# Presets.


@on_stage()
async def test_every_mode_has_presets_without_audio(stage: Stage) -> None:
    with_voice(stage)
    presets = (await stage.http.get("/api/presets")).json()
    assert list(presets) == MODES
    for mode, found in presets.items():
        ids = [preset["id"] for preset in found]
        assert {"chinese_call", "english_call"} <= set(ids)
        assert [preset["order"] for preset in found] == sorted(p["order"] for p in found)
        for preset in found:
            assert set(preset["name"]) == set(preset["description"]) == {"zh", "en"}
            if mode in ("omni", "audio_duplex"):
                assert preset["system_prompt"]
                assert preset["ref_audio"]["data"] is None
            for item in preset["system_content"]:
                if item["type"] == "audio":
                    assert item["data"] is None
                    assert (item["name"], item["duration"]) == ("system_ref_audio", 1.0)


@on_stage()
async def test_audio_of_presets_has_the_wire_format(stage: Stage) -> None:
    with_voice(stage)
    sounds = (await stage.http.get("/api/presets/turnbased/english_call/audio")).json()
    (sound,) = sounds["system_content_audio"]
    assert sounds["ref_audio"] is None
    assert len(base64.b64decode(sound["data"])) == 4 * 16_000
    assert sound["duration"] == 1.0
    sounds = (await stage.http.get("/api/presets/omni/english_call/audio")).json()
    assert sounds["system_content_audio"] == []
    assert sounds["ref_audio"]["name"] == "system_ref_audio"
    for path in ("omni/nobody", "nowhere/english_call", "..%2fomni/english_call"):
        assert (await stage.http.get(f"/api/presets/{path}/audio")).status_code == 404


@on_stage()
async def test_without_a_default_voice_presets_have_none(stage: Stage) -> None:
    presets = (await stage.http.get("/api/presets")).json()
    (preset,) = [one for one in presets["omni"] if one["id"] == "english_call"]
    assert preset["ref_audio"] is None and preset["ref_audio_path"] is None
    assert (await stage.http.get("/api/default_ref_audio")).status_code == 404


# Voices.


@on_stage()
async def test_the_servers_own_voice(stage: Stage) -> None:
    with_voice(stage)
    voice = (await stage.http.get("/api/default_ref_audio")).json()
    assert (voice["name"], voice["duration"]) == ("system_ref_audio", 1.0)
    assert (voice["sample_rate"], voice["samples"]) == (16_000, 16_000)
    assert len(base64.b64decode(voice["base64"])) == 4 * 16_000


@on_stage(decodes_apart=True)
async def test_voices_are_uploaded_listed_and_deleted(stage: Stage) -> None:
    body = {"name": "  Ann\tB ", "audio_base64": encoded(SECOND)}
    kept = (await stage.http.post("/api/assets/ref_audio", json=body)).json()
    assert (kept["success"], kept["name"]) == (True, "Ann B")
    listed = (await stage.http.get("/api/assets/ref_audio")).json()
    (voice,) = listed["ref_audios"]
    assert listed["total"] == 1
    assert voice["id"] == kept["id"]
    assert (voice["sample_rate"], voice["duration_ms"], voice["source_type"]) == (
        16_000,
        1_000,
        "upload",
    )
    folder = stage.gateway.settings.service.data_dir / "assets" / "ref_audio"
    with wave.open(str(folder / voice["filename"]), "rb") as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 1, 16_000)
    url = f"/api/assets/ref_audio/{voice['id']}"
    assert (await stage.http.delete(url)).json()["success"] is True
    assert (await stage.http.delete(url)).status_code == 404
    assert list(folder.iterdir()) == []


@on_stage(decodes_apart=True, limits={"reference_upload_bytes": 200_000})
async def test_invalid_voice_uploads_are_refused(stage: Stage) -> None:
    for audio, status, code in (
        ("not Base64!", 400, "bad_audio"),
        (encoded(b"no sound at all"), 400, "bad_audio"),
        (encoded(tone(0.3)), 400, "bad_audio"),
        (encoded(tone(31, rate_hz=2_000, channels=1)), 413, "bad_audio"),
        (encoded(bytes(201_000)), 413, "too_big"),
        ("A" * 400_000, 413, "too_big"),
    ):
        body = {"name": "x", "audio_base64": audio}
        answer = await stage.http.post("/api/assets/ref_audio", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), len(audio)
    assert (await stage.http.post("/api/assets/ref_audio", json={})).status_code == 422
    folder = stage.gateway.settings.service.data_dir / "assets" / "ref_audio"
    assert not [path for path in folder.iterdir() if path.suffix == ".wav"]
