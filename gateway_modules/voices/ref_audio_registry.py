"""Uploaded voices: WAV files under names of our own and one index, all written whole or not at all.

Blocks on the disk and on decoding: an event loop calls these in a thread."""

from __future__ import annotations

import base64
import binascii
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import structlog
from pydantic import AwareDatetime, Field, ValidationError

from core.errors import AudioError, NotAudioError, TooBigError
from core.files import write_file
from core.media_process import MediaLimits, MediaProcesses
from core.schemas.common import WireModel
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S, SAMPLE_BYTES, base64_chars
from recording.files import readable_wav

INDEX_FILE: Final = "registry.json"
WAV_SUFFIX: Final = ".wav"
DAMAGED_SUFFIX: Final = ".damaged"
NAME_MAX_CHARS: Final = 80  # source: docs/specification/service.md#1.3
UPLOAD_MAX_BYTES: Final = 10 * 1024 * 1024  # same
UPLOAD_MIN_MS: Final = 500  # same
VOICES_MAX: Final = 500  # so that uploads cannot fill the disk
DECODING: Final = MediaLimits(at_once=2, cpu_s=20, wait_s=30.0)
MS_PER_S: Final = 1_000


class RefAudio(WireModel):
    """One voice in a list."""

    id: str = Field(description="Its name for programs.")
    name: str = Field(description="Its name for people.")
    filename: str = Field(description="The file's name in the registry's folder.")
    source_type: Literal["upload"] = Field("upload", description="Where it comes from.")
    duration_ms: int = Field(ge=0, description="Length, ms.")
    sample_rate: int = Field(INPUT_SAMPLE_RATE_HZ, description="Samples per second.")
    created_at: AwareDatetime = Field(description="When it was uploaded, UTC.")


class _Index(WireModel):
    """What the index file holds."""

    ref_audios: list[RefAudio] = Field(default_factory=list, description="Oldest first.")


class RefAudioRegistry:
    """Voices by id. Any thread may call it. Holds at most `VOICES_MAX`; one more is refused."""

    def __init__(
        self,
        storage_dir: Path | str,
        *,
        max_bytes: int = UPLOAD_MAX_BYTES,
        max_duration_s: float = REFERENCE_MAX_S,
        decoder: SoundDecoder | None = None,
        new_id: Callable[[], object] = uuid.uuid4,
    ) -> None:
        """Read the index; voices whose file is gone are left out.

        Args:
            storage_dir: Folder of the voices; made when the first one comes.
            max_bytes: Largest file accepted.
            max_duration_s: Longest voice accepted, s.
            decoder: Decodes what is uploaded.
            new_id: Makes an id.
        """
        self._folder = Path(storage_dir)
        self._max_bytes = max_bytes
        self._max_duration_s = max_duration_s
        self._decoder = decoder or SoundDecoder()
        self._new_id = new_id
        self._lock = threading.Lock()
        self._voices = {voice.id: voice for voice in self._read_index()}

    @property
    def count(self) -> int:
        """How many voices there are."""
        return len(self._voices)

    def upload(self, name: str, audio_base64: str) -> RefAudio:
        """Take in a voice: mono, 16 kHz, whatever it was before.

        Args:
            name: For people; cut at 80 characters.
            audio_base64: Base64 of a sound file of any kind.

        Raises:
            TooBigError: The file is too large, or there are too many voices.
            AudioError: It cannot be decoded, is silent, too short or too long.
            OSError: It cannot be kept.
        """
        if self.count >= VOICES_MAX:
            raise TooBigError(f"There are {VOICES_MAX} voices already; delete one first.")
        wav = self._decoder.to_wav(self._decoded(audio_base64), self._max_duration_s)
        voice_id = str(self._new_id())
        filename = voice_id + WAV_SUFFIX
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / filename
        with ExitStack() as undo:
            undo.callback(path.unlink, missing_ok=True)
            write_file(path, wav, is_durable=True)
            shape = readable_wav(path)
            if shape is None or shape.duration_ms < UPLOAD_MIN_MS:
                raise AudioError(f"A voice needs at least {UPLOAD_MIN_MS} ms of sound.")
            voice = RefAudio(
                id=voice_id,
                name=" ".join(name.split())[:NAME_MAX_CHARS] or filename,
                filename=filename,
                duration_ms=shape.duration_ms,
                created_at=datetime.now(UTC),
            )
            with self._lock:
                self._keep(self._voices | {voice_id: voice})
            undo.pop_all()
        return voice

    def get(self, ref_id: str) -> RefAudio | None:
        """Return a voice, None if there is none of this id."""
        return self._voices.get(ref_id)

    def exists(self, ref_id: str) -> bool:
        """Whether there is a voice of this id."""
        return ref_id in self._voices

    def list_all(self) -> list[RefAudio]:
        """Return every voice, oldest first."""
        return list(self._voices.values())

    def get_file_path(self, ref_id: str) -> Path | None:
        """Return a voice's file, None if there is none."""
        voice = self.get(ref_id)
        path = self._folder / voice.filename if voice else None
        return path if path is not None and path.is_file() else None

    def get_base64(self, ref_id: str) -> str | None:
        """Return a voice as Base64 of float32 at 16 kHz, as the wire has it; None if there is none.

        Raises:
            AudioError: Its file was damaged.
        """
        path = self.get_file_path(ref_id)
        if path is None:
            return None
        return self._decoder.read(path.read_bytes(), self._max_duration_s).to_base64()

    def delete(self, ref_id: str) -> bool:
        """Delete a voice; False if there is none of this id.

        Raises:
            OSError: The index cannot be written; the voice stays.
        """
        with self._lock:
            voice = self._voices.get(ref_id)
            if voice is None:
                return False
            self._keep({key: other for key, other in self._voices.items() if key != ref_id})
        with suppress(OSError):  # an orphan takes room and is unreachable
            (self._folder / voice.filename).unlink()
        return True

    def _decoded(self, audio_base64: str) -> bytes:
        if len(audio_base64) > base64_chars(self._max_bytes):
            raise TooBigError(f"The file is larger than {self._max_bytes} bytes.")
        try:
            return base64.b64decode(audio_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise AudioError("The audio is not valid Base64.") from error

    def _keep(self, voices: dict[str, RefAudio]) -> None:
        index = _Index(ref_audios=list(voices.values()))
        self._folder.mkdir(parents=True, exist_ok=True)
        content = index.model_dump_json(indent=2).encode()
        write_file(self._folder / INDEX_FILE, content, is_durable=True)
        self._voices = voices

    def _read_index(self) -> list[RefAudio]:
        path = self._folder / INDEX_FILE
        try:
            index = _Index.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValidationError) as error:
            log = structlog.get_logger("voices")
            log.warning("voice index unreadable", folder=str(self._folder), reason=str(error))
            with suppress(OSError):  # the next upload must not write over what can be mended
                path.replace(path.with_suffix(DAMAGED_SUFFIX))
            return []
        return [voice for voice in index.ref_audios if self._is_whole(voice)]

    def _is_whole(self, voice: RefAudio) -> bool:
        # The index may have been edited by hand: a name is a name, never a path.
        name = Path(voice.filename).name
        is_ours = name == voice.filename == voice.id + WAV_SUFFIX
        return is_ours and (self._folder / name).is_file()


@dataclass(frozen=True)
class Sound:
    """Mono sound at 16 kHz.

    Attributes:
        samples: float32 little-endian in -1..1.
    """

    samples: bytes

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self.samples) // SAMPLE_BYTES

    @property
    def duration_ms(self) -> int:
        """Length, ms."""
        return round(self.count * MS_PER_S / INPUT_SAMPLE_RATE_HZ)

    def to_base64(self) -> str:
        """Return it as the wire carries it."""
        return base64.b64encode(self.samples).decode("ascii")


class SoundDecoder:
    """Decodes and encodes sound files in processes of their own."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._processes = MediaProcesses(DECODING)

    def read(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> Sound:
        """Decode a sound file.

        Args:
            content: The file.
            max_duration_s: Longest sound accepted, s.

        Raises:
            AudioError: It is no sound, silent, damaged or too long.
        """
        return Sound(self._run(content, max_duration_s, as_wav=False))

    def to_wav(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> bytes:
        """Turn a sound file into a 16-bit WAV file; see `read`."""
        return self._run(content, max_duration_s, as_wav=True)

    def encode(self, samples: bytes, container: str, codec: str) -> bytes:
        """Turn what the model says into a file.

        Args:
            samples: Little-endian float32, mono, 24 kHz.
            container: libsndfile's name of the kind of file, such as "FLAC".
            codec: libsndfile's name of the coding in it, such as "PCM_16".

        Raises:
            AudioError: It could not be encoded.
        """
        head = {"container": container, "codec": codec}
        _, [made] = self._processes.run("speech", head, [samples], problem=AudioError)
        return made

    def _run(self, content: bytes, max_duration_s: float, *, as_wav: bool) -> bytes:
        head = {"max_duration_s": max_duration_s, "as_wav": as_wav}
        _, [made] = self._processes.run("sound", head, [content], problem=NotAudioError)
        return made
