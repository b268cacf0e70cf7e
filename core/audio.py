"""Audio formats: decodes wire audio and files to float32 samples, encodes and resamples.

All audio in the project is mono float32 in -1..1, at 16 kHz for the model. Files are untrusted: the
duration limit bounds the memory of decoding, whatever a header claims, and formats that refer to
further files, such as playlists, are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import av
import numpy as np
import numpy.typing as npt
import soundfile
import soxr  # type: ignore[import-untyped]  # ships no type information
from av.container import InputContainer
from pybase64 import b64decode, b64encode_as_string

from core.errors import (
    AudioEmptyError,
    AudioError,
    AudioTooLongError,
    BadPayloadError,
    NotAudioError,
)
from core.schemas.limits import (
    CHAT_AUDIO_MAX_S,
    INPUT_SAMPLE_RATE_HZ,
    REFERENCE_MAX_S,
    SAMPLE_BYTES,
    audio_chars,
)

FloatArray = npt.NDArray[np.float32]
MediaSource = str | Path | bytes
"""A file of the server, or the content of one."""

# FFmpeg's names of demuxers that follow no references to other files.
READABLE_FORMATS: Final = (
    "3gp,aac,ac3,aiff,amr,ape,asf,au,avi,caf,dsf,dts,eac3,flac,flv,m4a,matroska,mov,mp3,mp4,"
    "mpeg,mpegts,ogg,tta,voc,w64,wav,webm,wv"
)
MICROSECONDS: Final = 1_000_000  # the unit of a container's duration

BLOCK_VALUES: Final = 262_144  # decoded at a time, over all channels
MIN_RATE_HZ: Final = 1_000  # a rate outside these limits means a damaged header
MAX_RATE_HZ: Final = 768_000
# Lossy codecs pad their last packet; so much beyond the limit is truncated, not refused.
DURATION_SLACK_S: Final = 0.1
NO_SAMPLES: Final = np.zeros(0, np.float32)
SILENCE_PEAK: Final = 1e-3  # -60 dBFS: inaudible below
SAME_VOICE_TOLERANCE: Final = 1e-3  # ours: voice samples that differ by less are the same
HEAD_BYTES: Final = 16
UNKNOWN_FRAMES: Final = 2**63 - 1  # source: libsndfile, sndfile.h, `SF_COUNT_MAX`
# Magic numbers of audio files: WAV, W64, FLAC, Ogg, MP3, AIFF, CAF, AU, Matroska.
AUDIO_MAGICS: Final = (
    b"RIFF",
    b"RF64",
    b"riff",
    b"fLaC",
    b"OggS",
    b"ID3",
    b"FORM",
    b"caff",
    b".snd",
    b"\x1a\x45\xdf\xa3",
)


def decode_wire_audio(text: str, *, max_duration_s: float) -> FloatArray:
    """Decode Base64 of little-endian float32 samples at 16 kHz to [T] in -1..1, writable.

    Raises `AudioTooLongError` before decoding, and `AudioError` also as `check_pcm`.
    """
    if len(text) > audio_chars(max_duration_s):
        raise AudioTooLongError(f"The audio is longer than {max_duration_s:g} s.")
    return check_pcm(decode_base64(text, "audio", AudioError))


def decode_base64(text: str, kind: str, problem: type[BadPayloadError]) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise problem(f"The {kind} is not valid Base64.") from error


def check_pcm(sound: bytes) -> FloatArray:
    """Decode a client's little-endian float32 samples to [T], clipped to -1..1, writable.

    Raises `AudioError` if there are none or no whole samples, or for NaN and infinity.
    """
    if not sound:
        raise AudioEmptyError()
    if len(sound) % SAMPLE_BYTES:
        raise AudioError(
            f"The audio has {len(sound)} bytes; float32 samples take {SAMPLE_BYTES} bytes each."
        )
    return _in_range(np.frombuffer(sound, dtype="<f4").astype(np.float32))


def decode_voice(text: str | None) -> FloatArray | None:
    """Decode a voice sample, at most 30 s; raises as `decode_wire_audio`."""
    return decode_wire_audio(text, max_duration_s=REFERENCE_MAX_S) if text else None


def is_same_voice(voice: FloatArray, other: FloatArray | None) -> bool:
    if other is None or voice.shape != other.shape:
        return False
    return np.allclose(voice, other, atol=SAME_VOICE_TOLERANCE)


def to_pcm(samples: FloatArray) -> bytes:
    return samples.astype("<f4", copy=False).tobytes()


def from_pcm(sound: bytes) -> FloatArray:
    """Return samples [T] of little-endian float32, read-only."""
    return np.frombuffer(sound, "<f4").astype(np.float32, copy=False)


def encode_wire_audio(samples: FloatArray) -> str:
    return b64encode_as_string(to_pcm(samples))


def read_audio(
    source: MediaSource,
    *,
    max_duration_s: float = CHAT_AUDIO_MAX_S,
    sample_rate_hz: int = INPUT_SAMPLE_RATE_HZ,
) -> FloatArray:
    """Decode an audio or video file to [T] in -1..1, the mean of its channels.

    The limit is checked against the header, and again while decoding. Raises `AudioError` or, where
    callers make a difference, `AudioEmptyError`, `NotAudioError` and `AudioTooLongError`.
    """
    longest_s = max_duration_s + DURATION_SLACK_S
    too_long = f"The audio is longer than {max_duration_s:g} s."
    pieces: list[FloatArray] = []
    read_samples = 0
    with (
        opened(source, "audio", AudioError) as file,
        _decoder(file) as (blocks, from_rate_hz, claimed_s),
    ):
        if not MIN_RATE_HZ <= from_rate_hz <= MAX_RATE_HZ:
            raise AudioError(f"The audio claims {from_rate_hz} samples per second.")
        if claimed_s is not None and claimed_s > longest_s:
            raise AudioTooLongError(f"{too_long[:-1]}: it lasts {claimed_s:.0f} s.")
        stream = soxr.ResampleStream(from_rate_hz, sample_rate_hz, 1)
        for block in blocks:
            read_samples += len(block)
            if read_samples > longest_s * from_rate_hz:
                raise AudioTooLongError(too_long)
            pieces.append(stream.resample_chunk(_in_range(block)))
    if read_samples == 0:
        raise AudioEmptyError("The audio file holds no samples.")
    pieces.append(stream.resample_chunk(NO_SAMPLES, last=True))
    samples = np.concatenate(pieces)[: round(max_duration_s * sample_rate_hz)]
    return np.clip(samples, -1.0, 1.0, out=samples)


def encode_wav(samples: FloatArray, sample_rate_hz: int, *, subtype: str = "PCM_16") -> bytes:
    """Encode [T] or [T, channels] in -1..1 as WAV of a libsndfile subtype: `PCM_16` or `FLOAT`."""
    out = BytesIO()
    soundfile.write(out, np.clip(samples, -1.0, 1.0), sample_rate_hz, format="WAV", subtype=subtype)
    return out.getvalue()


def encode_wire_wav(samples: FloatArray, sample_rate_hz: int) -> str:
    """Return samples [T] as Base64 of a 16-bit WAV file."""
    return b64encode_as_string(encode_wav(samples, sample_rate_hz))


def write_wav(path: Path, samples: FloatArray, sample_rate_hz: int) -> None:
    path.write_bytes(encode_wav(samples, sample_rate_hz))


def resample(samples: FloatArray, from_rate_hz: int, to_rate_hz: int) -> FloatArray:
    """Resample mono samples [T] → [T · to / from]."""
    if from_rate_hz == to_rate_hz:
        return samples
    return np.asarray(soxr.resample(samples, from_rate_hz, to_rate_hz), dtype=np.float32)


class StreamResampler:
    """Resamples a mono stream in chunks of any length.

    FFmpeg's resampler holds back 2 ms at most; soxr's works in blocks and holds back 20 to 60 ms,
    which would delay the detection of barge-in.
    """

    def __init__(self, from_rate_hz: int, to_rate_hz: int) -> None:
        self._from_rate_hz = from_rate_hz
        self._stream = (
            None
            if from_rate_hz == to_rate_hz
            else av.AudioResampler(format="flt", layout="mono", rate=to_rate_hz)
        )

    def feed(self, samples: FloatArray) -> FloatArray:
        """Return the samples that are complete; a few follow with the next chunk."""
        if self._stream is None or not len(samples):
            return samples
        frame = av.AudioFrame(format="flt", layout="mono", samples=len(samples))
        frame.sample_rate = self._from_rate_hz
        frame.planes[0].update(samples.tobytes())
        return _joined(self._stream.resample(frame))

    def finish(self) -> FloatArray:
        """Return the samples held back; nothing may follow."""
        return _joined([] if self._stream is None else self._stream.resample(None))


@contextmanager
def opened(source: MediaSource, kind: str, problem: type[BadPayloadError]) -> Iterator[BinaryIO]:
    """Open a regular file, or wrap its content; raises `problem` if that fails."""
    if isinstance(source, bytes):
        yield BytesIO(source)
        return
    path = Path(source)
    if not path.is_file():
        raise problem(f"There is no {kind} file: {path.name!r} is not a file.")
    try:
        # Unbuffered, so that a library reading from the descriptor starts at the same position.
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise problem(f"The {kind} file cannot be opened: {error.strerror}.") from error


@contextmanager
def opened_container(
    file: BinaryIO, unreadable: BadPayloadError, damaged: BadPayloadError
) -> Iterator[InputContainer]:
    """Open a container with FFmpeg; raises `damaged` if the block cannot decode it."""
    # The file is already open, so no protocol is needed.
    options = {"format_whitelist": READABLE_FORMATS, "protocol_whitelist": "none"}
    try:
        container = av.open(file, mode="r", options=options, metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise unreadable from error
    with closing(container):
        try:
            yield container
        except (av.FFmpegError, ValueError) as error:
            raise damaged from error


def container_duration_s(container: InputContainer) -> float | None:
    return None if container.duration is None else container.duration / MICROSECONDS


def check_audible(samples: FloatArray) -> None:
    """Raise `AudioError` for samples [T] of which none is louder than -60 dBFS."""
    if samples.size == 0:
        raise AudioEmptyError()
    if float(np.abs(samples).max()) < SILENCE_PEAK:
        raise AudioError("The audio is silent: nothing in it is louder than -60 dBFS.")


def _joined(frames: list[av.AudioFrame]) -> FloatArray:
    """Return the samples [T] of frames of mono float32."""
    # Three times as fast as the frame's own conversion.
    parts = [np.frombuffer(bytes(frame.planes[0]), np.float32, frame.samples) for frame in frames]
    return np.concatenate(parts) if parts else NO_SAMPLES


def _in_range(samples: FloatArray) -> FloatArray:
    """Clip in place; refuse NaN and infinity."""
    if not np.isfinite(samples).all():
        raise AudioError("The audio holds values that are not finite numbers.")
    return np.clip(samples, -1.0, 1.0, out=samples)


@contextmanager
def _decoder(file: BinaryIO) -> Iterator[tuple[Iterator[FloatArray], int, float | None]]:
    """Open a file with libsndfile if it knows the format, with FFmpeg otherwise.

    Returns its mono blocks, their sample rate, and its length by its header, s.
    """
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if not head:
        raise AudioEmptyError("The audio file is empty.")
    if (sound := _sound_file(file)) is not None:
        with sound:
            yield _sound_blocks(sound), sound.samplerate, sound.frames / max(sound.samplerate, 1)
        return
    file.seek(0)
    damaged = AudioError("The audio file is damaged.")
    unknown = NotAudioError("The file is not a sound or video file that can be read.")
    is_known = head.startswith(AUDIO_MAGICS) or head[4:8] == b"ftyp"
    with opened_container(file, damaged if is_known else unknown, damaged) as container:
        if not container.streams.audio:
            raise NotAudioError("The file holds no sound.")
        stream = container.streams.audio[0]
        if stream.codec_context is None:
            raise NotAudioError("The file's sound is in a form that cannot be read.")
        blocks = _container_blocks(container, stream)
        yield blocks, stream.rate or 0, container_duration_s(container)


def _sound_file(file: BinaryIO) -> soundfile.SoundFile | None:
    """Open a file with libsndfile, None if it does not know the format or the length.

    It cannot read on in a FLAC file without a length, as a stream is.
    """
    try:
        if isinstance(file, BytesIO):
            sound = soundfile.SoundFile(file)
        else:  # by descriptor, so that no file name suffix chooses the format
            sound = soundfile.SoundFile(file.fileno(), closefd=False)
    except soundfile.LibsndfileError:
        return None
    if sound.frames == UNKNOWN_FRAMES:
        sound.close()
        return None
    return sound


def _sound_blocks(sound: soundfile.SoundFile) -> Iterator[FloatArray]:
    block_samples = max(1, BLOCK_VALUES // sound.channels)
    while True:
        try:
            block = sound.read(block_samples, dtype="float32", always_2d=True)  # [T, channels]
        except soundfile.LibsndfileError as error:
            raise AudioError("The audio file is damaged.") from error
        if len(block) == 0:
            return
        yield block.mean(axis=1, dtype=np.float32)  # [T]


def _container_blocks(container: InputContainer, stream: av.AudioStream) -> Iterator[FloatArray]:
    # The rate is given because some streams begin with another one than the header's.
    to_float = av.AudioResampler(format="fltp", rate=stream.rate)
    for frame in itertools.chain(container.decode(stream), [None]):
        for planes in to_float.resample(frame):
            yield planes.to_ndarray().mean(axis=0, dtype=np.float32)  # [channels, T] → [T]
