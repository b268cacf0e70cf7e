"""Audio formats of OpenAI's clients, and the parser of GPT-Live's events.

Resamplers and incomplete samples are carried over from one chunk of a stream to the next.
"""

from __future__ import annotations

import secrets
import time
from io import BytesIO
from typing import Final

import numpy as np
import soundfile

from core.audio import FloatArray, StreamResampler, decode_base64, encode_wav, resample, to_pcm
from core.errors import AudioError
from core.protocols.events import ClientMessage
from core.protocols.paced_output import LiveNames
from core.protocols.realtime_items import AudioClip
from core.schemas import gpt_live
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.openai_errors import FieldError
from core.schemas.realtime_session import AudioFormat
from recording.folder import wav_header

G711_SUBTYPES: Final = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}  # libsndfile's names
PCM_BYTES: Final = 2
PCM_SCALE: Final = 32_768.0
PCM_MAX: Final = 32_767
GROUP_CHARS: Final = 4  # Base64 characters for three bytes


class ClientSound:
    """Decodes one client's audio stream, of one format."""

    def __init__(self, written: AudioFormat) -> None:
        self.format = written
        self._half = b""  # an incomplete sample
        self._resampler = StreamResampler(written.rate_hz, INPUT_SAMPLE_RATE_HZ)

    def decode(self, text: str, longest_s: float) -> FloatArray:
        """Decode Base64 as `feed` does; audio beyond `longest_s` is dropped.

        Raises `AudioError` if it is not Base64; the stream continues without it.
        """
        most_bytes = int(longest_s * self.format.rate_hz) * self.format.sample_bytes
        return self.feed(decode_base64(text[: most_bytes // 3 * GROUP_CHARS], "audio", AudioError))

    def feed(self, raw: bytes) -> FloatArray:
        """Decode the next bytes to [T] float32 at 16 kHz, possibly no samples yet."""
        raw = self._half + raw
        whole = len(raw) - len(raw) % self.format.sample_bytes
        self._half = raw[whole:]
        return self._resampler.feed(decoded(raw[:whole], self.format))


def decode_pcm(text: str) -> FloatArray:
    """Decode Base64 of whole 16-bit samples to [T] float32; raises `AudioError`."""
    raw = decode_base64(text, "audio", AudioError)
    if len(raw) % PCM_BYTES:
        raise AudioError(f"The audio has {len(raw)} bytes; samples take {PCM_BYTES} each.")
    return decoded(raw, AudioFormat())


def decoded(raw: bytes, written: AudioFormat) -> FloatArray:
    """Decode audio to [T] float32 at the same rate."""
    if written.is_pcm:
        return np.frombuffer(raw, "<i2").astype(np.float32) / np.float32(PCM_SCALE)
    if not raw:
        return np.zeros(0, np.float32)
    samples: FloatArray = soundfile.read(
        BytesIO(raw),
        format="RAW",
        subtype=G711_SUBTYPES[written.type],
        samplerate=written.rate_hz,
        channels=1,
        dtype="float32",
    )[0]
    return samples


def encoded(samples: FloatArray, written: AudioFormat) -> bytes:
    """Encode [T], clipped to -1..1."""
    samples = np.clip(samples, -1.0, 1.0)
    if written.is_pcm:
        return np.rint(samples * PCM_MAX).astype("<i2").tobytes()
    out, subtype = BytesIO(), G711_SUBTYPES[written.type]
    soundfile.write(out, samples, written.rate_hz, format="RAW", subtype=subtype)
    return out.getvalue()


class ReplyWriter:
    """Encodes the audio of one reply in its client's format."""

    def __init__(self, written: AudioFormat) -> None:
        self._format = written
        self._resampler = StreamResampler(OUTPUT_SAMPLE_RATE_HZ, written.rate_hz)

    def write(self, samples: FloatArray) -> bytes:
        """Encode [T] at 24 kHz; the resampler may hold back the last few samples."""
        return encoded(self._resampler.feed(samples), self._format)

    def finish(self) -> bytes:
        """Return the samples held back."""
        return encoded(self._resampler.finish(), self._format)


def wav_of(sound: AudioClip) -> bytes:
    """Return a WAV file of the clip's rate, which the recorder's threads resample."""
    rate_hz = sound.format.rate_hz
    if sound.format.is_pcm:
        return wav_header(rate_hz, 1, len(sound.pcm)) + sound.pcm
    return encode_wav(decoded(sound.pcm, sound.format), rate_hz, subtype="FLOAT")


def model_samples(sound: AudioClip) -> FloatArray:
    """Decode an item's audio to the model's input, [T] float32 at 16 kHz."""
    samples = decoded(sound.pcm, sound.format)
    return resample(samples, sound.format.rate_hz, INPUT_SAMPLE_RATE_HZ)


APPEND_MAX_S: Final = 10.0  # ours: more than a session may be ahead of real time
PREFIX_BYTES: Final = 6


class GptLiveCodec:
    """Parses the events of one socket, and decodes their audio."""

    def __init__(self) -> None:
        self._sound: ClientSound | None = None  # None before `session.start`
        self._format = AudioFormat()

    def parse(self, text: str) -> ClientMessage:
        """Parse an event and decode its audio; raises an `OmniError`."""
        event = gpt_live.parse_event(text)
        try:
            match event:
                case gpt_live.InputAudioAppend(audio=audio, event_id=name):
                    sound = self._sound
                    pcm = b"" if sound is None else to_pcm(sound.decode(audio, APPEND_MAX_S))
                    return gpt_live.AudioReceived(pcm, name)
                case gpt_live.FixturePlay(audio=audio, event_id=name):
                    writer = ReplyWriter(self._format)
                    written = writer.write(decode_pcm(audio)) + writer.finish()
                    return gpt_live.Fixture(written, name)
                case gpt_live.SessionStart() if self._sound is None:
                    self._format = event.session.audio.format
                    self._sound = ClientSound(self._format)
        except AudioError as error:
            name = event.event_id
            raise FieldError("invalid_value", error.message, "audio", name) from error
        return event


def live_names(session_id: str, model: str, *, transcribes: bool = False) -> LiveNames:
    prefix, now_s = secrets.token_hex(PREFIX_BYTES), int(time.time())
    return LiveNames(session_id, model, prefix, now_s, transcribes)
