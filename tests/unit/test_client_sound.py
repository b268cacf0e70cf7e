"""Audio of OpenAI's clients: chunking does not change the stream, silence stays silence."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from core.audio import FloatArray, resample
from core.errors import AudioError
from core.schemas.realtime_session import AudioFormat
from core.serving.openai_clients import ClientSound, ReplyWriter, encoded

FORMATS = [("audio/pcm", 24_000), ("audio/pcm", 16_000), ("audio/pcmu", 8_000)]
FORMATS += [("audio/pcma", 8_000)]


def tone(rate_hz: int, duration_s: float = 1.0) -> FloatArray:
    times = np.arange(round(rate_hz * duration_s)) / rate_hz
    return (0.5 * np.sin(600 * np.pi * times)).astype(np.float32)


def pcm(samples: FloatArray) -> bytes:
    return np.rint(samples * 32_767).astype("<i2").tobytes()


def heard(sound: ClientSound, raw: bytes, cut: int) -> FloatArray:
    pieces = [raw[at : at + cut] for at in range(0, len(raw), cut)]
    return np.concatenate(
        [sound.decode(base64.b64encode(piece).decode(), 60.0) for piece in pieces]
    )


@pytest.mark.parametrize("cut", [1, 333, 960, 4_800, 1_000_000])
def test_chunk_boundaries_do_not_change_the_decoded_audio(cut: int) -> None:
    raw = pcm(tone(24_000))[: 3_001 if cut == 1 else None]  # with half a sample at its end
    whole = heard(ClientSound(AudioFormat(rate=24_000)), raw, len(raw))
    pieces = heard(ClientSound(AudioFormat(rate=24_000)), raw, cut)
    shared = min(len(whole), len(pieces))
    assert abs(len(whole) - len(pieces)) <= 1
    np.testing.assert_allclose(pieces[:shared], whole[:shared], atol=1e-4)


def test_audio_is_decoded_to_16_khz() -> None:
    found = heard(ClientSound(AudioFormat(rate=24_000)), pcm(tone(24_000, 2.0)), 4_800)
    expected = resample(tone(24_000, 2.0), 24_000, 16_000)[: len(found)]
    assert 2.0 - len(found) / 16_000 < 0.05, "a stream keeps some of it back"
    np.testing.assert_allclose(found[2_000:-2_000], expected[2_000:-2_000], atol=1e-3)


@pytest.mark.parametrize(("kind", "rate_hz"), FORMATS)
def test_encoding_and_decoding_preserve_the_audio(kind: Any, rate_hz: int) -> None:
    written = AudioFormat(type=kind, rate=rate_hz)
    writer = ReplyWriter(written)
    told = [writer.write(piece) for piece in np.split(tone(24_000, 2.0), 20)]
    raw = b"".join([*told, writer.finish()])
    assert len(raw) == 2 * written.bytes_per_s
    again = heard(ClientSound(written), raw, 1_000)
    assert len(again) / 16_000 == pytest.approx(2.0, abs=0.15)
    level = np.sqrt(np.mean(np.square(again[4_000:-4_000])))
    assert level == pytest.approx(0.5 / np.sqrt(2), rel=0.02)


def test_silence_is_encoded_as_exact_zeros() -> None:
    writer = ReplyWriter(AudioFormat())
    assert writer.write(np.zeros(2_400, np.float32)) == bytes(4_800)
    loud = writer.write(np.full(2, 3.0, np.float32))
    assert np.frombuffer(loud, "<i2").tolist() == [32_767, 32_767]


@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_silence_of_a_format_is_its_encoded_zero(kind: Any) -> None:
    written = AudioFormat(type=kind)
    zeros = np.zeros(written.rate_hz // 10, np.float32)
    assert encoded(zeros, written) == written.silence(100)


def test_invalid_base64_is_refused_and_the_stream_continues() -> None:
    sound = ClientSound(AudioFormat(rate=16_000))
    sound.decode(base64.b64encode(b"\x01").decode(), 1.0)
    with pytest.raises(AudioError):
        sound.decode("no Base64!", 1.0)
    assert len(sound.decode(base64.b64encode(b"\x02\x03\x04").decode(), 1.0)) == 2


def test_audio_beyond_the_limit_is_dropped() -> None:
    sound = ClientSound(AudioFormat(rate=16_000))
    text = base64.b64encode(bytes(32_000)).decode()
    assert len(sound.decode(text, 0.5)) == pytest.approx(8_000, abs=2)
