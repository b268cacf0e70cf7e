"""Names of recordings and their files; only names made here ever become paths.

A recording lies in `<data folder>/sessions/<recording id>/`.
Source of the layout: docs/specification/service.md#5.1.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Final

from core.errors import InvalidSessionIdError
from core.schemas.queue import check_session_id

# Source: docs/specification/service.md#1.5. Longer than a session's id: it wraps one.
RECORDING_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,96}")
# 36^10 is 51 bits: an id grants access to a shared recording, so it must not be guessable.
RANDOM_CHARS: Final = 10
ALPHABET: Final = string.ascii_lowercase + string.digits

SESSIONS_FOLDER: Final = "sessions"
META_FILE: Final = "meta.json"
RECORDING_FILE: Final = "recording.json"
TIMELINE_FILE: Final = "events.jsonl"
DIAGNOSTICS_FILE: Final = "diagnostics.jsonl"
LOCK_FILE: Final = ".lock"
OWNER_FILE: Final = ".owner"
COMMENT_FILE: Final = "comment.txt"
UPLOAD_STEM: Final = "frontend_replay"  # a browser's own recording, without suffix
SEALED_FILE: Final = ".sealed"  # holds the URL of the object store that has the recording
REPLAY_SOUND_FILE: Final = "merged_replay.wav"
REPLAY_VIDEO_FILE: Final = "merged_replay.mp4"
REPLAY_SUBTITLES_FILE: Final = "merged_replay.vtt"
DELETING_PREFIX: Final = ".deleting-"  # of a folder that is being deleted

# Source: docs/specification/service.md#1.5. Other files are served as `ANY_BYTES`.
MEDIA_TYPES: Final = {
    ".wav": "audio/wav",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".webm": "video/webm",
    ".mp4": "video/mp4",
    ".mp3": "audio/mpeg",
    ".vtt": "text/vtt",
}
ANY_BYTES: Final = "application/octet-stream"

USER_AUDIO: Final = "user_audio"
USER_FRAMES: Final = "user_frames"
AI_AUDIO: Final = "ai_audio"
USER_IMAGES: Final = "user_images"
USER_VIDEOS: Final = "user_videos"

MEDIA_NAME: Final = re.compile(
    rf"(?:{USER_AUDIO}|{USER_FRAMES}|{AI_AUDIO}|{USER_IMAGES}|{USER_VIDEOS})/\w+\.\w+", re.ASCII
)
USER_AUDIO_NAME: Final = re.compile(r"(\d+)\.wav", re.ASCII)
USER_FRAME_NAME: Final = re.compile(r"(\d+)\.\w+", re.ASCII)
UNIT_AUDIO_NAME: Final = re.compile(r"turn_(\d+)_chunk_(\d+)\.wav", re.ASCII)
TURN_AUDIO_NAME: Final = re.compile(r"turn_(\d+)\.wav", re.ASCII)


def check_recording_id(recording_id: str) -> str:
    if RECORDING_ID_PATTERN.fullmatch(recording_id) is None:
        raise InvalidSessionIdError(
            "A recording's id has 1 to 96 characters out of A-Z, a-z, 0-9, _ and -."
        )
    return recording_id


def generate_session_id(prefix: str) -> str:
    """Return a new, unguessable id such as `stm_4f0q9z2k7a`."""
    tail = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARS))
    return check_recording_id(f"{prefix.rstrip('_')}_{tail}")


def generate_recording_id(client_session_id: str, now: datetime) -> str:
    """Return a new id that sorts by time and contains the client's session id."""
    return generate_session_id(f"{now:%Y%m%d_%H%M%S}_{check_session_id(client_session_id)}")


def recording_folder(data_dir: Path | str, recording_id: str) -> Path:
    return Path(data_dir) / SESSIONS_FOLDER / check_recording_id(recording_id)


def recording_folders(data_dir: Path | str) -> Iterator[Path]:
    """Yield the folders of all recordings; symlinks and other names are skipped."""
    root = Path(data_dir) / SESSIONS_FOLDER
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        is_ours = RECORDING_ID_PATTERN.fullmatch(folder.name) is not None
        if is_ours and folder.is_dir() and not folder.is_symlink():
            yield folder


def asset_path(folder: Path, relative: str) -> Path | None:
    """Resolve a client's path within a recording to a file that may be served.

    None if it does not exist, is hidden, is absolute, contains "..", or passes a symlink.
    """
    parts = relative.split("/")
    if "\0" in relative or "\\" in relative or is_hidden(relative) or not all(parts):
        return None
    try:
        root = folder.resolve()
        path = root.joinpath(*parts)
        return path if path.resolve() == path and path.is_file() else None
    except (OSError, RuntimeError):  # name too long, or a symlink loop
        return None


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def is_added(name: str) -> bool:
    """Whether clients may add a file to a recording later; it is not sealed."""
    return name == COMMENT_FILE or name.startswith(f"{UPLOAD_STEM}.")


def media_type(name: str) -> str:
    return MEDIA_TYPES.get(PurePosixPath(name).suffix.lower(), ANY_BYTES)


def user_audio(index: int, extra: int = 0) -> str:
    """`extra` numbers further pieces of a chunk or turn, from 1."""
    return f"{USER_AUDIO}/{index:03d}{f'_{extra}' if extra else ''}.wav"


def user_frame(index: int, extra: int) -> str:
    """Without its suffix, which depends on the picture."""
    return f"{USER_FRAMES}/{index:03d}{f'_{extra}' if extra else ''}"


def unit_audio(turn: int, index: int) -> str:
    return f"{AI_AUDIO}/turn_{turn}_chunk_{index:03d}.wav"


def turn_audio(turn: int) -> str:
    return f"{AI_AUDIO}/turn_{turn}.wav"
