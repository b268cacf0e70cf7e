"""What a conversation on files starts from: sound, pictures and voice, checked and decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from core.audio import FloatArray, check_audible, read_audio
from core.errors import PictureMissingError
from core.images import read_picture
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.video import read_video

MAX_VOICE_S: Final = 30.0
PICTURE_SUFFIXES: Final = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp"))


@dataclass(frozen=True)
class TalkInput:
    """Decoded input of one conversation.

    Attributes:
        sound: float32 [T] at 16 kHz.
        frames: one RGB picture per second, in time order; may be shorter than the sound.
        voice: float32 [T] at 16 kHz, the voice to speak with; None takes the checkpoint's own.
    """

    sound: FloatArray
    frames: tuple[Image.Image, ...]
    voice: FloatArray | None

    @property
    def duration_s(self) -> float:
        """Length of the sound."""
        return len(self.sound) / INPUT_SAMPLE_RATE_HZ

    def second(self, index: int) -> tuple[FloatArray, list[Image.Image]]:
        """Return second `index` of sound, padded with silence to a whole one, and its picture."""
        start = index * INPUT_SAMPLE_RATE_HZ
        piece = self.sound[start : start + INPUT_SAMPLE_RATE_HZ]
        padded = np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32)
        padded[: len(piece)] = piece
        return padded, list(self.frames[index : index + 1])


def read_inputs(
    audio: Path | None,
    video: Path | None,
    frames: Path | None,
    voice: Path | None,
    *,
    max_duration_s: float,
) -> TalkInput:
    """Read and check everything a conversation needs.

    Args:
        audio: sound file; without it the video's sound is taken.
        video: film whose pictures are shown, one per second.
        frames: folder of pictures, shown one per second in the order of their names.
        voice: recording of the voice to speak with.
        max_duration_s: longest sound accepted.

    Raises:
        OmniError: a file is missing, empty, silent, damaged, too long or of another kind; the
            message is one sentence for a person.
    """
    pictures: tuple[Image.Image, ...] = ()
    sound: FloatArray | None = None
    if video is not None:
        max_frames = int(max_duration_s)
        clip = read_video(video, max_frames=max_frames, max_duration_s=max_duration_s)
        pictures, sound = clip.frames, clip.audio
    if frames is not None:
        pictures = _read_folder(frames)
    if audio is not None:
        sound = read_audio(audio, max_duration_s=max_duration_s)
    if sound is None:
        raise PictureMissingError("Give a sound file with --audio or a film with --video.")
    check_audible(sound)
    spoken = None if voice is None else read_audio(voice, max_duration_s=MAX_VOICE_S)
    return TalkInput(sound, pictures, spoken)


def _read_folder(folder: Path) -> tuple[Image.Image, ...]:
    if not folder.is_dir():
        raise PictureMissingError(f"There is no folder {folder}.")
    names = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES)
    if not names:
        raise PictureMissingError(f"The folder {folder} holds no pictures.")
    return tuple(read_picture(path) for path in names)
