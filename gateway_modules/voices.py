"""Voices that clients may name: uploads, files of the reference folders, the default voice.

Clients' paths are confined to those folders. Blocks on the disk and on decoding: call through
`VoiceLibrary.run`.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import uuid
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

from pydantic import AwareDatetime, Field, ValidationError

from config import Settings
from core.errors import AudioError, NotAudioError, NotFoundError, OmniError, TooBigError
from core.files import atomic_write
from core.media_process import MediaProcesses
from core.protocols.events import MS_PER_S
from core.schemas import chat, limits, streaming
from core.schemas.common import TTSConfig, WireModel
from core.store import Store
from gateway_modules.web.messages import parse_object, with_strings_of
from recording.folder import readable_wav
from settings.embedded import default_checkpoint

WAV_SUFFIX: Final = ".wav"
# Limits of an upload. Source: docs/specification/service.md#1.3.
NAME_MAX_CHARS: Final = 80
UPLOAD_MAX_BYTES: Final = 10 * limits.MIB
UPLOAD_MIN_MS: Final = 500
VOICES_MAX: Final = 500  # bounds the disk usage of uploads
DECODERS: Final = 2  # at the same time
DECODING_CPU_S: Final = 20
DECODING_WAIT_S: Final = 60.0


class RefAudio(WireModel):
    """An uploaded voice."""

    id: str = Field(description="Id.")
    name: str = Field(description="Display name.")
    filename: str = Field(description="File name in the registry's folder.")
    source_type: Literal["upload"] = Field("upload", description="Origin.")
    duration_ms: int = Field(ge=0, description="Length, ms.")
    sample_rate: int = Field(limits.INPUT_SAMPLE_RATE_HZ, description="Samples per second.")
    created_at: AwareDatetime = Field(description="When it was uploaded, UTC.")


@dataclass(frozen=True)
class Audio:
    """Mono audio at 16 kHz: little-endian float32 in -1..1."""

    samples: bytes

    @property
    def count(self) -> int:
        return len(self.samples) // limits.SAMPLE_BYTES

    @property
    def duration_ms(self) -> int:
        return round(self.count * MS_PER_S / limits.INPUT_SAMPLE_RATE_HZ)

    def to_base64(self) -> str:
        return base64.b64encode(self.samples).decode("ascii")


class AudioDecoder:
    def __init__(self) -> None:
        self._processes = MediaProcesses(
            at_once=DECODERS, cpu_s=DECODING_CPU_S, wait_s=DECODING_WAIT_S
        )

    def read(self, content: bytes, max_duration_s: float = limits.REFERENCE_MAX_S) -> Audio:
        return Audio(self._run(content, max_duration_s, as_wav=False))

    def to_wav(self, content: bytes, max_duration_s: float = limits.REFERENCE_MAX_S) -> bytes:
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


DEFAULT_VOICE: Final = "default"  # the name of the server's own voice in presets
CACHED_VOICES: Final = 16  # at most 2 MB each
AUDIO_SUFFIXES: Final = frozenset({".wav", ".flac", ".ogg", ".mp3", ".m4a"})
FILE_MAX_BYTES: Final = 32 * limits.MIB  # of an audio file of the server


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
AnyMessage = TypeVar("AnyMessage", bound=WireModel)

# The voice in a checkpoint's folder.
CHECKPOINT_VOICE: Final = Path("assets") / "system_ref_audio.wav"
# The cache of the hub's client. Source: its documentation, "Environment variables" and
# "Understand caching".
HUB_CACHE: Final = "HF_HUB_CACHE"
HUB_HOME: Final = "HF_HOME"
USUAL_HUB_HOME: Final = Path("~/.cache/huggingface")


@dataclass(eq=False)
class VoiceLibrary:
    """Finds, decodes and stores voices; an LRU cache holds `CACHED_VOICES` of them; thread-safe.

    More than `VOICES_MAX` uploads are refused.
    """

    uploads: Path  # folder of uploaded voices
    store: Store
    decoder: AudioDecoder = field(default_factory=AudioDecoder)
    folders: Sequence[Path] = ()  # whose files clients may name
    root: Path = Path()  # where relative names begin
    default_voice: Path | None = None
    max_bytes: int = UPLOAD_MAX_BYTES  # of an upload
    max_duration_s: float = limits.REFERENCE_MAX_S

    def __post_init__(self) -> None:
        self._folders = [folder.resolve() for folder in self.folders]
        self._decoded = functools.lru_cache(CACHED_VOICES)(self._decode)
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="voices")

    async def run(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run something that may decode a voice on a dedicated thread.

        So the default executor's threads never wait for a decoder. The number of waiting calls is
        bounded by that of requests and sockets.
        """
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Stop the threads after their current work, without waiting for them."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def upload(self, name: str, content: bytes | str) -> RefAudio:
        """Store an audio file of any format, or the Base64 of one, as mono at 16 kHz."""
        if len(self.list_all()) >= VOICES_MAX:
            raise TooBigError(f"There are {VOICES_MAX} voices already; delete one first.")
        if isinstance(content, str):
            try:
                content = base64.b64decode(content, validate=True)
            except ValueError as error:
                raise AudioError("The audio is not valid Base64.") from error
        if len(content) > self.max_bytes:
            raise TooBigError(f"The file is larger than {self.max_bytes} bytes.")
        wav = self.decoder.to_wav(content, self.max_duration_s)
        voice_id = str(uuid.uuid4())
        filename = voice_id + WAV_SUFFIX
        self.uploads.mkdir(parents=True, exist_ok=True)
        path = self.uploads / filename
        with ExitStack() as undo:
            undo.callback(path.unlink, missing_ok=True)
            atomic_write(path, wav, is_durable=True)
            shape = readable_wav(path)
            if shape is None or shape.duration_ms < UPLOAD_MIN_MS:
                raise AudioError(f"A voice needs at least {UPLOAD_MIN_MS} ms of audio.")
            voice = RefAudio(
                id=voice_id,
                name=" ".join(name.split())[:NAME_MAX_CHARS] or filename,
                filename=filename,
                duration_ms=shape.duration_ms,
                created_at=datetime.now(UTC),
            )
            with self.store.transaction() as state:
                state.execute(
                    "INSERT INTO voices VALUES (?, ?)", (voice_id, voice.model_dump_json())
                )
            undo.pop_all()
        return voice

    def get(self, ref_id: str) -> RefAudio:
        sql = "SELECT voice FROM voices WHERE id = ?"
        for voice in self._whole(self.store.rows(sql, (ref_id,))):
            return voice
        raise NotFoundError("There is no voice with this id.")

    def list_all(self) -> list[RefAudio]:
        """Return the voices whose file exists, oldest first."""
        return list(self._whole(self.store.rows("SELECT voice FROM voices ORDER BY rowid")))

    def path_of(self, ref_id: str) -> Path:
        return self.uploads / self.get(ref_id).filename

    def delete(self, ref_id: str) -> None:
        path = self.path_of(ref_id)
        with self.store.transaction() as state:
            state.execute("DELETE FROM voices WHERE id = ?", (ref_id,))
        with suppress(OSError):  # an orphaned file is harmless
            path.unlink()

    def _whole(self, rows: Iterable[tuple[str]]) -> Iterator[RefAudio]:
        for (text,) in rows:
            with suppress(ValidationError):
                voice = RefAudio.model_validate_json(text)
                # Not even a manipulated database may name a file elsewhere.
                name = Path(voice.filename).name
                is_ours = name == voice.filename == voice.id + WAV_SUFFIX
                if is_ours and (self.uploads / name).is_file():
                    yield voice

    @property
    def default_path(self) -> Path | None:
        path = self.default_voice
        return path if path is not None and path.is_file() else None

    def by_id(self, ref_id: str) -> Audio:
        return self.read(self.path_of(ref_id))

    def audio_of(self, name: str) -> str | None:
        """Return the Base64 audio of an uploaded voice by id or name, None if there is none."""
        ids = (voice.id for voice in self.list_all() if name in (voice.id, voice.name))
        found = next(ids, None)
        return None if found is None else self.by_id(found).to_base64()

    def by_path(self, name: str) -> Audio:
        path = self.confined(name)
        if path is None:
            raise NotFoundError("There is no voice with this name.")
        return self.read(path)

    def confined(self, name: str) -> Path | None:
        if not name or "\0" in name:
            return None
        for base in (self.root, *self._folders):
            try:
                path = (base / name).resolve()
                is_inside = any(path.is_relative_to(folder) for folder in self._folders)
                if is_inside and path.suffix.lower() in AUDIO_SUFFIXES and path.is_file():
                    return path
            except (OSError, RuntimeError, ValueError):  # name too long, or a symlink loop
                continue
        return None

    def read(self, path: Path) -> Audio:
        try:
            stat = path.stat()
            if stat.st_size > FILE_MAX_BYTES:
                raise AudioError("The voice's file is too large.")
            return self._decoded(path, stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            raise AudioError("The voice's file cannot be read.") from error

    def _decode(self, path: Path, _changed_ns: int, _size_bytes: int) -> Audio:
        """Decode a file; modification time and size are part of the cache key."""
        return self.decoder.read(path.read_bytes(), self.max_duration_s)


def wav_duration_s(path: Path) -> float | None:
    try:
        with wave.open(str(path), "rb") as file:
            return round(file.getnframes() / file.getframerate(), 3)
    except (OSError, EOFError, wave.Error, ZeroDivisionError):
        return None


def find_default_voice(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the path of the default voice, which need not exist; None if there is none."""
    if settings.audio.ref_audio_path is not None:
        return settings.audio.ref_audio_path
    model = settings.model.model_path
    if model is None:
        data_dir, embedded = settings.service.data_dir, settings.model.embedded
        return default_checkpoint(data_dir, embedded) / CHECKPOINT_VOICE
    if Path(model).is_dir():
        return Path(model) / CHECKPOINT_VOICE
    return _fetched_voice(model, environment)


def _fetched_voice(model: str, environment: Mapping[str, str]) -> Path | None:
    home = Path(environment.get(HUB_HOME) or USUAL_HUB_HOME).expanduser()
    cache = Path(environment.get(HUB_CACHE) or home / "hub").expanduser()
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    try:
        found = [snapshot / CHECKPOINT_VOICE for snapshot in snapshots.iterdir()]
        voices = [path for path in found if path.is_file()]
        return max(voices, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


PATHS: Final = ("ref_audio_path", "output_path")  # of files on the server
NAMES: Final = frozenset({"ref_audio_id", "tts_ref_audio_id", "ref_audio_path"})


def name_voices(text: str, voices: VoiceLibrary) -> tuple[str, OmniError | None]:
    """Replace the names of voices in a `prepare` by their audio; other messages are unchanged.

    An unknown path is removed with a warning: clients may name files of other installations.
    """
    message = parse_object(text)
    if message.get("type") != "prepare" or not message.keys() & NAMES:
        return text, None
    warning: OmniError | None = None
    for key in ("ref_audio", "tts_ref_audio"):
        ref_id = message.pop(f"{key}_id", None)
        if isinstance(ref_id, str) and ref_id:
            audio = voices.by_id(ref_id).to_base64()
            message[f"{key}_base64"] = message.get(f"{key}_base64") or audio
    path = message.pop("ref_audio_path", None)
    if isinstance(path, str) and path and path != DEFAULT_VOICE:
        try:
            audio = voices.by_path(path).to_base64()
            message["ref_audio_base64"] = message.get("ref_audio_base64") or audio
        except NotFoundError:
            warning = AudioError("There is no voice of that name here; the default one speaks.")
    return with_strings_of(text, json.dumps(message, ensure_ascii=False)), warning


def with_confined_tts(
    request: chat.ChatRequest | chat.ChatSocketRequest, text: str, voices: VoiceLibrary
) -> str:
    changed = without_paths(request, voices)
    is_same = changed is request
    return text if is_same else with_strings_of(text, changed.model_dump_json(exclude_unset=True))


def without_paths(message: AnyMessage, voices: VoiceLibrary) -> AnyMessage:
    """Remove the server's paths from settings of speech; a known voice is replaced by its audio."""
    changed: dict[str, object] = {}
    for name, part in message:
        if not isinstance(part, TTSConfig | streaming.StreamingConfig):
            continue
        if paths := {path: None for path in PATHS if dict(part).get(path)}:
            audio = part.ref_audio_data
            if not audio and part.ref_audio_path:
                with suppress(NotFoundError):
                    audio = voices.by_path(part.ref_audio_path).to_base64()
            changed[name] = part.model_copy(update={**paths, "ref_audio_data": audio})
    return message.model_copy(update=changed) if changed else message
