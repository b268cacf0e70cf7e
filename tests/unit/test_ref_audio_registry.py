"""Uploaded voices: what is kept, what is refused, and what a crash leaves."""

from __future__ import annotations

import base64
import wave
from io import BytesIO
from pathlib import Path

import pytest

from core.errors import AudioError, NotFoundError, TooBigError
from core.store import Store
from gateway_modules import voices as voice_library
from gateway_modules.voices import (
    Audio,
    AudioDecoder,
    VoiceLibrary,
    wav_duration_s,
)


def wav(duration_s: float) -> bytes:
    out = BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\x10\x10" * round(16_000 * duration_s))
    return out.getvalue()


class QuickDecoder(AudioDecoder):
    """Takes as many tenths of a second as there are bytes; knows no format."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, content: bytes, max_duration_s: float = 30.0) -> Audio:
        self.reads += 1
        if content == b"damaged":
            raise AudioError()
        return Audio(content)

    def to_wav(self, content: bytes, max_duration_s: float = 30.0) -> bytes:
        return wav(len(content) / 10)


def encoded(length: int) -> str:
    """An upload of so many tenths of a second."""
    return base64.b64encode(bytes(length)).decode()


def test_an_uploaded_voice_is_found_again(tmp_path: Path) -> None:
    registry = VoiceLibrary(tmp_path / "voices", Store(tmp_path), decoder=QuickDecoder())
    voice = registry.upload(" Ann \n B " + "x" * 100, encoded(10))
    assert voice.name == ("Ann B " + "x" * 100)[:80]
    assert voice.duration_ms == 1_000
    assert registry.list_all() == [voice]
    again = VoiceLibrary(tmp_path / "voices", Store(tmp_path), decoder=QuickDecoder())
    assert again.list_all() == [voice] and again.get(voice.id) == voice
    path = again.path_of(voice.id)
    assert path.read_bytes() == wav(1.0)
    again.delete(voice.id)
    assert not path.exists()
    with pytest.raises(NotFoundError):
        again.delete(voice.id)
    assert VoiceLibrary(tmp_path / "voices", Store(tmp_path)).list_all() == []


def test_a_real_file_is_decoded_in_another_process(tmp_path: Path) -> None:
    hello = Path(__file__).parents[2] / "examples" / "hello.wav"
    content = base64.b64encode(hello.read_bytes()).decode()
    registry = VoiceLibrary(tmp_path, Store(tmp_path))
    voice = registry.upload("hello", content)
    assert voice.duration_ms == 8_207
    with pytest.raises(AudioError):
        registry.upload("noise", base64.b64encode(b"RIFF nothing").decode())
    assert [path.name for path in tmp_path.glob("*.wav")] == [voice.filename]


def test_voices_too_short_too_large_or_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = VoiceLibrary(tmp_path, Store(tmp_path), max_bytes=100, decoder=QuickDecoder())
    with pytest.raises(AudioError):
        registry.upload("short", encoded(4))
    with pytest.raises(AudioError):
        registry.upload("no Base64", "*")
    with pytest.raises(TooBigError):
        registry.upload("large", encoded(103))
    assert not list(tmp_path.glob("*.wav"))
    monkeypatch.setattr(voice_library, "VOICES_MAX", 1)
    registry.upload("one", encoded(10))
    with pytest.raises(TooBigError):
        registry.upload("two", encoded(10))


def test_a_failed_upload_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = VoiceLibrary(tmp_path, Store(tmp_path / "state"), decoder=QuickDecoder())

    def full(_: Store) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "transaction", full)
    with pytest.raises(OSError):
        registry.upload("x", encoded(10))
    assert registry.list_all() == [] and not list(tmp_path.iterdir())


def test_an_entry_edited_by_hand_opens_no_other_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    registry = VoiceLibrary(tmp_path / "voices", store, decoder=QuickDecoder())
    voice = registry.upload("x", encoded(10))
    (tmp_path / "secret.wav").write_bytes(b"secret")
    forged = {"filename": "../secret.wav"}
    with store.transaction() as state:
        for name in ("y", "../secret"):
            text = voice.model_copy(update=forged | {"id": name}).model_dump_json()
            state.execute("INSERT INTO voices VALUES (?, ?)", (name, text))
        state.execute("INSERT INTO voices VALUES ('z', '{half')")
    assert [one.id for one in registry.list_all()] == [voice.id]
    for name in ("y", "../secret", "z"):
        with pytest.raises(NotFoundError):
            registry.path_of(name)


# The library over it.


def test_clients_paths_are_confined_to_the_voice_folders(tmp_path: Path) -> None:
    folder = tmp_path / "assets" / "ref_audio"
    folder.mkdir(parents=True)
    (folder / "ann.wav").write_bytes(wav(1.0))
    (folder / "notes.txt").write_text("x")
    (tmp_path / "secret.wav").write_bytes(wav(1.0))
    (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
    decoder = QuickDecoder()
    library = VoiceLibrary(
        tmp_path / "voices",
        Store(tmp_path),
        decoder,
        folders=[folder],
        root=tmp_path,
    )
    for told in ("assets/ref_audio/ann.wav", "ann.wav", str(folder / "ann.wav")):
        assert library.by_path(told).samples == (folder / "ann.wav").read_bytes()
    assert decoder.reads == 1  # the others came from memory
    for told in (
        "secret.wav",
        "../secret.wav",
        "assets/ref_audio/../../secret.wav",
        str(tmp_path / "secret.wav"),
        "link.wav",
        "notes.txt",
        "x" * 5_000,
        "a\0b.wav",
        "",
    ):
        with pytest.raises(NotFoundError):
            library.by_path(told)
    with pytest.raises(NotFoundError):
        library.by_id("../../secret")
    assert library.default_path is None


def test_a_changed_voice_is_read_again_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    decoder = QuickDecoder()
    path = tmp_path / "default.wav"
    library = VoiceLibrary(
        tmp_path / "voices",
        Store(tmp_path),
        decoder,
        folders=[],
        root=tmp_path,
        default_voice=path,
    )
    path.write_bytes(b"first")
    assert library.read(path).samples == b"first"
    path.write_bytes(b"second one")
    assert library.read(path).samples == b"second one"
    path.write_bytes(b"damaged")
    with pytest.raises(AudioError):
        library.read(path)


def test_durations_come_from_wav_headers(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(wav(1.5))
    assert wav_duration_s(path) == 1.5
    path.write_bytes(b"RIFF")
    assert wav_duration_s(path) is None
    assert wav_duration_s(tmp_path / "none.wav") is None
