"""Sound in and out: wire text, files of every kind, and everything that is not sound."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from core.audio import (
    FloatArray,
    StreamResampler,
    check_audible,
    decode_wire_audio,
    encode_wav,
    encode_wire_audio,
    read_audio,
    resample,
    write_wav,
)
from core.errors import AudioEmptyError, AudioError, AudioTooLongError, NotAudioError, OmniError
from tests.unit.media import encode_sound, encode_video, tone

RATE_HZ = 16_000
THREE_HOURS_S = 3 * 3_600


def file_of(samples: Any, rate_hz: int, **kind: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate_hz, **kind)
    return out.getvalue()


def loudness(samples: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=200))
def test_wire_audio_survives_the_way_bit_for_bit(values: list[float]) -> None:
    samples = np.array(values, np.float32)
    heard = decode_wire_audio(encode_wire_audio(samples), max_duration_s=1)
    assert heard.dtype == np.float32
    np.testing.assert_array_equal(heard, samples)
    heard[0] = 0  # writable


def test_wire_audio_is_little_endian_float32() -> None:
    assert base64.b64decode(encode_wire_audio(np.array([1.0], np.float32))) == b"\x00\x00\x80\x3f"


def test_wire_audio_is_clipped() -> None:
    text = encode_wire_audio(np.array([-3.0, 0.5, 7.0], np.float32))
    np.testing.assert_array_equal(decode_wire_audio(text, max_duration_s=1), [-1.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("", AudioEmptyError, "no samples"),
        ("not base64!", AudioError, "Base64"),
        ("data:audio/wav;base64,AAAA", AudioError, "Base64"),
        ("ÄÄÄÄ", AudioError, "Base64"),
        (base64.b64encode(bytes(6)).decode(), AudioError, "6 bytes"),
        (encode_wire_audio(np.array([np.nan], np.float32)), AudioError, "finite"),
        (encode_wire_audio(np.array([np.inf], np.float32)), AudioError, "finite"),
        (encode_wire_audio(np.zeros(RATE_HZ + 1, np.float32)), AudioTooLongError, "1 s"),
    ],
)
def test_bad_wire_audio_is_refused(text: str, error: type[AudioError], sentence: str) -> None:
    with pytest.raises(error, match=sentence) as caught:
        decode_wire_audio(text, max_duration_s=1)
    assert caught.value.code.value == "bad_audio"


@given(
    st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: base64.b64encode(raw).decode())
)
def test_any_text_is_sound_or_an_audio_error(text: str) -> None:
    try:
        samples = decode_wire_audio(text, max_duration_s=1)
    except AudioError:
        return
    assert np.abs(samples).max() <= 1


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 192_000])
@pytest.mark.parametrize("kind", [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24")])
def test_any_rate_and_format_becomes_16_khz_mono(rate_hz: int, kind: tuple[str, str]) -> None:
    sound = tone(rate_hz, 1.0)
    content = file_of(np.stack([sound, sound], 1), rate_hz, format=kind[0], subtype=kind[1])
    heard = read_audio(content)
    assert heard.dtype == np.float32
    assert heard.shape == (RATE_HZ,)
    assert loudness(heard) == pytest.approx(loudness(sound), rel=0.02)
    np.testing.assert_allclose(heard[2_000:-2_000], tone(RATE_HZ, 1.0)[2_000:-2_000], atol=2e-3)


@pytest.mark.parametrize(
    ("container", "codec", "rate_hz"),
    [
        ("OGG", None, 44_100),  # libsndfile's own
        ("MP3", None, 44_100),
        ("mp4", "aac", 44_100),
        ("webm", "libopus", 48_000),
        ("adts", "aac", 22_050),
        ("mov", "pcm_s16le", 8_000),
        ("matroska", "flac", 48_000),
    ],
)
def test_compressed_files_and_containers(container: str, codec: str | None, rate_hz: int) -> None:
    sound = tone(rate_hz, 2.0)
    if codec is None:
        content = file_of(sound, rate_hz, format=container)
    else:
        content = encode_sound(sound, rate_hz, container=container, codec=codec)
    heard = read_audio(content)
    assert len(heard) == pytest.approx(2 * RATE_HZ, abs=RATE_HZ // 10)
    assert loudness(heard) == pytest.approx(loudness(tone(RATE_HZ, 2.0)), rel=0.05)


def test_channels_are_averaged() -> None:
    sound = tone(RATE_HZ, 0.5)
    channels = np.stack([sound, np.zeros_like(sound), sound, np.zeros_like(sound)], 1)
    heard = read_audio(file_of(channels, RATE_HZ, format="WAV", subtype="FLOAT"))
    np.testing.assert_allclose(heard, sound / 2, atol=1e-6)


def test_files_by_path_whatever_they_are_called(tmp_path: Path) -> None:
    write_wav(tmp_path / "sound.raw", tone(RATE_HZ, 0.5), RATE_HZ)
    heard = read_audio(tmp_path / "sound.raw")
    np.testing.assert_allclose(heard, tone(RATE_HZ, 0.5), atol=1e-4)
    np.testing.assert_array_equal(read_audio(str(tmp_path / "sound.raw")), heard)


def test_wav_of_two_channels() -> None:
    both = np.stack([tone(RATE_HZ, 0.1), -tone(RATE_HZ, 0.1)], 1)
    samples, rate_hz = soundfile.read(io.BytesIO(encode_wav(both, 24_000)), dtype="float32")
    assert rate_hz == 24_000
    np.testing.assert_allclose(samples, both, atol=1e-4)


def test_resampling() -> None:
    sound = tone(RATE_HZ, 0.5)
    assert resample(sound, RATE_HZ, RATE_HZ) is sound
    assert resample(sound, RATE_HZ, 24_000).shape == (12_000,)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("empty", b"", AudioEmptyError),
        ("no samples", file_of(np.zeros(0), RATE_HZ, format="WAV"), AudioEmptyError),
        ("noise", np.random.default_rng(0).bytes(100_000), NotAudioError),
        ("text", b"hello world " * 1_000, NotAudioError),
        ("picture", b"\x89PNG\r\n\x1a\n" + bytes(500), NotAudioError),
        ("zeros", bytes(10_000), NotAudioError),
        ("header only", b"RIFF\x24\x00\x00\x00WAVEfmt ", AudioError),
        ("broken mp4", b"\0\0\0\x18ftypmp42" + bytes(300), AudioError),
        (
            "not a number",
            file_of([0.1, np.nan], RATE_HZ, format="WAV", subtype="FLOAT"),
            AudioError,
        ),
        ("cut flac", file_of(tone(RATE_HZ, 5.0), RATE_HZ, format="FLAC")[:20_000], AudioError),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # bytes may hold the time of day
)
def test_what_is_no_sound_gets_one_clear_sentence(
    tmp_path: Path, name: str, content: bytes, error: type[AudioError]
) -> None:
    path = tmp_path / "given.wav"
    path.write_bytes(content)
    for source in (content, path):
        with pytest.raises(error) as caught:
            read_audio(source)
        assert type(caught.value) is error
        assert str(caught.value).endswith("."), name
        assert str(tmp_path) not in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.wav", tmp_path, Path("/dev/zero")):
        with pytest.raises(AudioError, match="There is no audio file"):
            read_audio(path)


def test_a_video_without_sound_is_no_audio() -> None:
    with pytest.raises(NotAudioError, match="holds no sound"):
        read_audio(encode_video(seconds=1))


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}/secret.wav\n",
        "ffconcat version 1.0\nfile '{}/secret.wav'\n",
    ],
)
def test_files_that_name_other_files_are_refused(tmp_path: Path, playlist: str) -> None:
    write_wav(tmp_path / "secret.wav", tone(RATE_HZ, 1.0), RATE_HZ)
    path = tmp_path / "list.m3u8"
    path.write_text(playlist.format(tmp_path))
    for source in (path, path.read_bytes()):
        with pytest.raises(NotAudioError):
            read_audio(source)


def test_a_three_hour_file_is_refused_from_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(_file: soundfile.SoundFile, *_args: object, **_options: object) -> None:
        raise AssertionError("it was decoded")

    path = tmp_path / "long.wav"
    with soundfile.SoundFile(path, "w", 8_000, 1, subtype="PCM_U8") as file:
        file.seek(THREE_HOURS_S * 8_000 - 1)
        file.write(np.zeros(1))
    monkeypatch.setattr(soundfile.SoundFile, "read", unread)
    with pytest.raises(AudioTooLongError, match="600 s: it lasts 10800 s"):
        read_audio(path)


def test_a_header_that_hides_the_length_does_not_help() -> None:
    content = encode_sound(tone(RATE_HZ, 30.0), RATE_HZ, container="adts", codec="aac")
    with pytest.raises(AudioTooLongError):
        read_audio(content, max_duration_s=5)


def test_a_streamed_flac_file_whose_header_has_no_length_is_read() -> None:
    content = bytearray(file_of(tone(RATE_HZ, 2.0), RATE_HZ, format="FLAC"))
    content[21] &= 0xF0  # the count of samples. Source: RFC 9639, section 8.2
    content[22:26] = bytes(4)
    np.testing.assert_allclose(read_audio(bytes(content)), tone(RATE_HZ, 2.0), atol=1e-4)
    with pytest.raises(AudioTooLongError, match="longer than 1 s"):
        read_audio(bytes(content), max_duration_s=1)


def test_padding_of_a_lossy_codec_is_cut_off_not_refused() -> None:
    sound = tone(RATE_HZ, 30.05)
    heard = read_audio(file_of(sound, RATE_HZ, format="WAV"), max_duration_s=30)
    assert len(heard) == 30 * RATE_HZ


def test_silence_is_told() -> None:
    check_audible(tone(RATE_HZ, 0.1))
    with pytest.raises(AudioError, match="silent"):
        check_audible(np.full(100, 1e-4, np.float32))
    with pytest.raises(AudioEmptyError):
        check_audible(np.zeros(0, np.float32))


@given(
    st.sampled_from(["WAV", "FLAC", "OGG", "AIFF"]),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), min_size=1, max_size=8),
    st.none() | st.integers(1, 3_000),
)
def test_damaged_files_are_sound_or_one_of_our_errors(
    kind: str, changes: list[tuple[int, int]], cut: int | None
) -> None:
    content = bytearray(file_of(tone(8_000, 0.2), 8_000, format=kind))
    for at, value in changes:
        content[at % len(content)] = value
    try:
        heard = read_audio(bytes(content[:cut]), max_duration_s=2)
    except OmniError:
        return
    assert heard.dtype == np.float32
    assert 0 < len(heard) <= 2 * RATE_HZ
    assert np.abs(heard).max() <= 1


@pytest.mark.parametrize("rates_hz", [(24_000, 16_000), (8_000, 16_000), (16_000, 16_000)])
def test_a_stream_is_resampled_as_the_whole_is(rates_hz: tuple[int, int]) -> None:
    rate_hz, wanted_hz = rates_hz
    whole = tone(rate_hz, 1.0)
    stream = StreamResampler(rate_hz, wanted_hz)
    pieces = [stream.feed(piece) for piece in np.array_split(whole, 7)]
    made = np.concatenate([*pieces, stream.finish()])
    assert len(made) == wanted_hz
    inside = slice(wanted_hz // 10, -wanted_hz // 10)  # away from where the sound begins and ends
    np.testing.assert_allclose(made[inside], tone(wanted_hz, 1.0)[inside], atol=0.02)
