"""Uploaded voices: WAV files under names of our own, and what is kept about each.

Blocks on the disk and on decoding: an event loop calls these in a thread."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import AwareDatetime, Field, ValidationError

from core.errors import AudioError, NotAudioError, TooBigError
from core.files import atomic_write
from core.media_process import MediaLimits, MediaProcesses
from core.schemas.common import WireModel
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S, SAMPLE_BYTES, base64_chars
from core.store import Store
from recording.files import readable_wav

WAV_SUFFIX: Final = ".wav"
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


class RefAudioRegistry:
    """Voices by id; any thread may call it. More than `VOICES_MAX` are refused."""

    def __init__(
        self,
        storage_dir: Path | str,
        store: Store,
        *,
        max_bytes: int = UPLOAD_MAX_BYTES,
        max_duration_s: float = REFERENCE_MAX_S,
        decoder: SoundDecoder | None = None,
        new_id: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self._folder = Path(storage_dir)
        self._store = store
        self._max_bytes = max_bytes
        self._max_duration_s = max_duration_s
        self._decoder = decoder or SoundDecoder()
        self._new_id = new_id

    @property
    def count(self) -> int:
        return len(self.list_all())

    def upload(self, name: str, audio_base64: str) -> RefAudio:
        """Keep a voice as mono at 16 kHz.

        Args:
            name: For people; cut at 80 characters.
            audio_base64: Base64 of an audio file of any kind.

        Raises:
            TooBigError: The file is too large, or there are too many voices.
            AudioError: It cannot be decoded, is silent, too short or too long.
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
            atomic_write(path, wav, is_durable=True)
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
            with self._store.transaction() as state:
                state.execute(
                    "INSERT INTO voices VALUES (?, ?)", (voice_id, voice.model_dump_json())
                )
            undo.pop_all()
        return voice

    def get(self, ref_id: str) -> RefAudio | None:
        sql = "SELECT voice FROM voices WHERE id = ?"
        return next(self._whole(self._store.rows(sql, (ref_id,))), None)

    def exists(self, ref_id: str) -> bool:
        return self.get(ref_id) is not None

    def list_all(self) -> list[RefAudio]:
        """Return every voice whose file is there, oldest first."""
        return list(self._whole(self._store.rows("SELECT voice FROM voices ORDER BY rowid")))

    def get_file_path(self, ref_id: str) -> Path | None:
        voice = self.get(ref_id)
        path = self._folder / voice.filename if voice else None
        return path if path is not None and path.is_file() else None

    def delete(self, ref_id: str) -> bool:
        """Delete a voice; False if there is none of this id."""
        voice = self.get(ref_id)
        if voice is None:
            return False
        with self._store.transaction() as state:
            if not state.execute("DELETE FROM voices WHERE id = ?", (ref_id,)).rowcount:
                return False
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

    def _whole(self, rows: Iterable[tuple[str]]) -> Iterator[RefAudio]:
        for (text,) in rows:
            with suppress(ValidationError):
                voice = RefAudio.model_validate_json(text)
                # What was edited by hand opens no other file: a name is a name, never a path.
                name = Path(voice.filename).name
                is_ours = name == voice.filename == voice.id + WAV_SUFFIX
                if is_ours and (self._folder / name).is_file():
                    yield voice


@dataclass(frozen=True)
class Sound:
    """Mono audio at 16 kHz: little-endian float32 in -1..1."""

    samples: bytes

    @property
    def count(self) -> int:
        return len(self.samples) // SAMPLE_BYTES

    @property
    def duration_ms(self) -> int:
        return round(self.count * MS_PER_S / INPUT_SAMPLE_RATE_HZ)

    def to_base64(self) -> str:
        return base64.b64encode(self.samples).decode("ascii")


class SoundDecoder:
    """Decodes and encodes audio files in processes of their own."""

    def __init__(self) -> None:
        self._processes = MediaProcesses(DECODING)

    def read(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> Sound:
        """Raises AudioError if a file is not audio, silent, damaged or too long."""
        return Sound(self._run(content, max_duration_s, as_wav=False))

    def to_wav(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> bytes:
        return self._run(content, max_duration_s, as_wav=True)

    def encode(self, samples: bytes, container: str, codec: str) -> bytes:
        """Encode little-endian float32, mono, 24 kHz; libsndfile's names of container and codec."""
        head = {"container": container, "codec": codec}
        _, [made] = self._processes.run("speech", head, [samples], problem=AudioError)
        return made

    def _run(self, content: bytes, max_duration_s: float, *, as_wav: bool) -> bytes:
        head = {"max_duration_s": max_duration_s, "as_wav": as_wav}
        _, [made] = self._processes.run("sound", head, [content], problem=NotAudioError)
        return made
