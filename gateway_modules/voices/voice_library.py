"""Every voice a client may name: uploaded ones, files of the reference folders, the default one.

No path of a client is opened: it only chooses among files that lie in those folders. Blocks: an
event loop calls these through `run`."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import wave
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, TypeAlias, TypeVar

from config import Settings
from core.errors import AudioError, NotFoundError
from core.schemas.limits import REFERENCE_MAX_S
from gateway_modules.voices.ref_audio_registry import (
    DECODING,
    RefAudioRegistry,
    Sound,
    SoundDecoder,
)
from settings.embedded import default_checkpoint

DEFAULT_VOICE: Final = "default"  # a preset's word for the server's own voice
CACHED_SOUNDS: Final = 16  # at most 2 MB each
SOUND_SUFFIXES: Final = frozenset({".wav", ".flac", ".ogg", ".mp3", ".m4a"})
FILE_MAX_BYTES: Final = 32 * 1024 * 1024  # of a sound file of the server


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

FileKey: TypeAlias = tuple[str, int, int]
"""A file as it was read: path, time of its last change, size."""
# Where a checkpoint keeps its own voice.
CHECKPOINT_VOICE: Final = Path("assets") / "system_ref_audio.wav"
# Where the hub's client keeps what it fetched. Source: its documentation, "Environment variables"
# and "Understand caching".
HUB_CACHE: Final = "HF_HUB_CACHE"
HUB_HOME: Final = "HF_HOME"
USUAL_HUB_HOME: Final = Path("~/.cache/huggingface")


@dataclass(frozen=True)
class Voice:
    name: str
    sound: Sound


class VoiceLibrary:
    """Finds voices; an LRU cache holds `CACHED_SOUNDS` decoded ones."""

    def __init__(
        self,
        registry: RefAudioRegistry,
        decoder: SoundDecoder,
        *,
        folders: Sequence[Path],
        root: Path,
        default_voice: Path | None = None,
        max_duration_s: float = REFERENCE_MAX_S,
    ) -> None:
        """Take where to look.

        Args:
            registry: Uploaded voices.
            decoder: Decodes files.
            folders: Whose files a client may name.
            root: Where the relative paths of clients start.
            default_voice: The server's own voice.
            max_duration_s: Longest voice, s.
        """
        self.registry = registry
        self.decoder = decoder
        self._folders = [folder.resolve() for folder in folders]
        self._root = root.resolve()
        self._default = default_voice
        self._max_duration_s = max_duration_s
        self._lock = threading.Lock()
        self._decoding = threading.Lock()  # many who ask for the same wait for one decoder
        self._sounds: OrderedDict[FileKey, Sound] = OrderedDict()
        self._threads = ThreadPoolExecutor(DECODING.at_once, thread_name_prefix="voices")

    async def run(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call something that may decode a voice, in one of a few threads kept for that.

        Whatever waits for a decoder waits there, so that the threads that read files for
        everybody never do. What waits is bounded by the requests and sockets there may be.
        """
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @property
    def default_path(self) -> Path | None:
        return self._default if self._default is not None and self._default.is_file() else None

    def default(self) -> Voice:
        path = self.default_path
        if path is None:
            raise NotFoundError("This server has no voice of its own here.")
        return Voice(path.stem, self.read(path))

    def by_id(self, ref_id: str) -> Voice:
        voice, path = self.registry.get(ref_id), self.registry.get_file_path(ref_id)
        if voice is None or path is None:
            raise NotFoundError("There is no voice of this id.")
        return Voice(voice.name, self.read(path))

    def sound_of(self, name: str) -> str | None:
        """Return the Base64 audio of an uploaded voice by its id or name, None without one."""
        ids = (voice.id for voice in self.registry.list_all() if name in (voice.id, voice.name))
        found = next(ids, None)
        return None if found is None else self.by_id(found).sound.to_base64()

    def by_path(self, name: str) -> Voice:
        """Return the voice a client names by a path inside one of the folders."""
        path = self.confined(name)
        if path is None:
            raise NotFoundError("There is no voice of this name.")
        return Voice(path.stem, self.read(path))

    def confined(self, name: str) -> Path | None:
        """Resolve a client's path to an audio file of the folders, None if it is none."""
        if not name or "\0" in name:
            return None
        for base in (self._root, *self._folders):
            try:
                path = (base / name).resolve()
                is_inside = any(path.is_relative_to(folder) for folder in self._folders)
                if is_inside and path.suffix.lower() in SOUND_SUFFIXES and path.is_file():
                    return path
            except (OSError, RuntimeError, ValueError):  # too long a name, a circle of links
                continue
        return None

    def read(self, path: Path) -> Sound:
        """Raises AudioError if a file is damaged, too long or missing."""
        try:
            stat = path.stat()
            key = (str(path), stat.st_mtime_ns, stat.st_size)
            if stat.st_size > FILE_MAX_BYTES:
                raise AudioError("The voice's file is too large.")
            known = self._recall(key)
            if known is not None:
                return known
            with self._decoding:
                sound = self._recall(key)
                if sound is None:
                    sound = self.decoder.read(path.read_bytes(), self._max_duration_s)
                    self._remember(key, sound)
                return sound
        except OSError as error:
            raise AudioError("The voice's file cannot be read.") from error

    def _recall(self, key: FileKey) -> Sound | None:
        with self._lock:
            sound = self._sounds.get(key)
            if sound is not None:
                self._sounds.move_to_end(key)
            return sound

    def _remember(self, key: FileKey, sound: Sound) -> None:
        with self._lock:
            self._sounds[key] = sound
            while len(self._sounds) > CACHED_SOUNDS:
                self._sounds.popitem(last=False)


def wav_duration_s(path: Path) -> float | None:
    """Read a WAV file's duration from its header; None for anything else."""
    try:
        with wave.open(str(path), "rb") as file:
            return round(file.getnframes() / file.getframerate(), 3)
    except (OSError, EOFError, wave.Error, ZeroDivisionError):
        return None


def find_default_voice(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the file, which need not exist; None if there can be none here."""
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
