"""Presets: read again when they change, confined, and one bad file harms no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config import PROJECT_ROOT, Settings
from core.errors import NotFoundError
from core.store import Store
from gateway_modules.pages import MODES, PresetAudio, PresetLibrary
from gateway_modules.voices import VoiceLibrary, find_default_voice
from tests.unit.test_ref_audio_registry import QuickDecoder, wav


def library(folder: Path, default_voice: Path | None = None) -> PresetLibrary:
    decoder = QuickDecoder()
    voices = VoiceLibrary(
        folder / "voices",
        Store(folder),
        decoder,
        default_voice=default_voice,
    )
    for mode in MODES:
        (folder / "presets" / mode).mkdir(parents=True, exist_ok=True)
    return PresetLibrary(folder / "presets", voices)


def test_the_shipped_presets_are_complete() -> None:
    decoder, none = QuickDecoder(), PROJECT_ROOT / "none"
    voices = VoiceLibrary(none, Store(none), decoder)
    presets = PresetLibrary(PROJECT_ROOT / "assets" / "presets", voices).list_all()
    folder = PROJECT_ROOT / "assets" / "presets"
    files = {mode: len(list((folder / mode).iterdir())) for mode in MODES}
    assert {mode: len(found) for mode, found in presets.items()} == files
    assert "mbti_analyst" in [preset.id for preset in presets["omni"]]
    assert {"video_analyst_zh", "video_analyst_en"} <= {p.id for p in presets["turnbased"]}


def test_invalid_presets_are_skipped(tmp_path: Path) -> None:
    presets = library(tmp_path)
    folder = tmp_path / "presets" / "omni"
    for name, text in {
        "a_good.yaml": "id: good\norder: 5\nname: Good",
        "b_first.yaml": "id: first\norder: 1",
        "c_no_id.yaml": "name: nobody",
        "d_no_yaml.yaml": "id: [",
        "e_same_id.yaml": "id: good",
        "f_list.yaml": "- 1",
        "g_code.yaml": "id: !!python/object/apply:os.system ['true']",
        "h_large.yaml": "id: large\nname: " + "x" * 300_000,
        "i_other.txt": "id: other",
        "j_last.yaml": "id: last",
    }.items():
        (folder / name).write_text(text)
    (folder / "k_folder.yaml").mkdir()
    assert [preset.id for preset in presets.list_all()["omni"]] == ["first", "good", "last"]
    assert presets.list_all()["omni"][2].order == 999


def test_changed_presets_are_read_again(tmp_path: Path) -> None:
    presets = library(tmp_path)
    path = tmp_path / "presets" / "omni" / "x.yaml"
    assert presets.list_all()["omni"] == []
    path.write_text("id: one")
    assert [preset.id for preset in presets.list_all()["omni"]] == ["one"]
    path.write_text("id: two")
    os.utime(path, ns=(1, 1))
    assert [preset.id for preset in presets.list_all()["omni"]] == ["two"]
    path.unlink()
    assert presets.list_all()["omni"] == []


def test_audio_is_confined_to_the_assets_folder(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    presets = library(assets)
    (assets / "ref_audio").mkdir()
    (assets / "ref_audio" / "ann.wav").write_bytes(wav(2.0))
    (tmp_path / "secret.wav").write_bytes(wav(1.0))
    (assets / "presets" / "turnbased" / "x.yaml").write_text(
        "id: x\n"
        "system_content:\n"
        "- {type: text, text: Hello}\n"
        "- {type: audio, path: ref_audio/ann.wav}\n"
        "- {type: audio, path: ../secret.wav}\n"
        "- {type: audio, path: default}\n"
        "ref_audio_path: ../secret.wav\n"
    )
    (preset,) = presets.list_all()["turnbased"]
    assert [item.type for item in preset.system_content] == ["text", "audio"]
    audio = preset.system_content[1]
    assert isinstance(audio, PresetAudio)
    assert (audio.data, audio.name, audio.duration) == (None, "ann", 2.0)
    assert preset.ref_audio is None and preset.ref_audio_path is None
    sounds = presets.sounds_of("turnbased", "x")
    assert [sound.name for sound in sounds.system_content_audio] == ["ann"]
    for mode, name in (("turnbased", "y"), ("nowhere", "x"), ("../x", "x")):
        with pytest.raises(NotFoundError):
            presets.sounds_of(mode, name)


def test_the_default_voice_may_appear_later(tmp_path: Path) -> None:
    voice = tmp_path / "own.wav"
    presets = library(tmp_path, voice)
    (tmp_path / "presets" / "omni" / "x.yaml").write_text("id: x\nref_audio_path: default")
    assert presets.list_all()["omni"][0].ref_audio is None
    voice.write_bytes(wav(1.0))
    described = presets.list_all()["omni"][0].ref_audio
    assert described is not None and (described.name, described.duration) == ("own", 1.0)


def test_a_missing_sample_takes_its_introduction_along(tmp_path: Path) -> None:
    voice = tmp_path / "own.wav"
    presets = library(tmp_path, voice)
    folder = tmp_path / "presets" / "turnbased"
    introduction, sample = "- {type: text, text: Speak so.}\n", "- {type: audio, path: default}\n"
    prompt = "- {type: text, text: Be kind.}\n"
    (folder / "a.yaml").write_text(f"id: a\nsystem_content:\n{introduction}{sample}{prompt}")
    (folder / "b.yaml").write_text(f"id: b\nsystem_content:\n{prompt}{sample}")

    def kept() -> list[list[str]]:
        found = [preset.system_content for preset in presets.list_all()["turnbased"]]
        return [[getattr(item, "text", "") for item in items] for items in found]

    assert kept() == [["Be kind."], ["Be kind."]]
    voice.write_bytes(wav(1.0))
    assert kept() == [["Speak so.", "", "Be kind."], ["Be kind.", ""]]


# Where the default voice is.


def test_the_configured_voice_precedes_the_checkpoints(tmp_path: Path) -> None:
    own = tmp_path / "own.wav"
    service = {"data_dir": tmp_path}
    settings = Settings.model_validate({"audio": {"ref_audio_path": own}, "service": service})
    assert find_default_voice(settings) == own
    settings = Settings.model_validate({"service": service})
    assert find_default_voice(settings) == tmp_path / "tiny" / "assets" / "system_ref_audio.wav"
    settings = Settings.model_validate({"model": {"model_path": str(tmp_path)}})
    assert find_default_voice(settings) == tmp_path / "assets" / "system_ref_audio.wav"


def test_the_voice_of_a_hub_checkpoint_is_found_in_the_cache(tmp_path: Path) -> None:
    settings = Settings.model_validate({"model": {"model_path": "somebody/model"}})
    assert find_default_voice(settings, {"HF_HOME": str(tmp_path)}) is None
    snapshot = tmp_path / "hub" / "models--somebody--model" / "snapshots" / "abc" / "assets"
    snapshot.mkdir(parents=True)
    (snapshot / "system_ref_audio.wav").write_bytes(b"x")
    found = snapshot / "system_ref_audio.wav"
    assert find_default_voice(settings, {"HF_HOME": str(tmp_path)}) == found
    assert find_default_voice(settings, {"HF_HUB_CACHE": str(tmp_path / "hub")}) == found
