"""Builds the merged replay of a finished recording: a step of its own that reads only the folder.

`python -m recording.replay FOLDER` does the same from the command line.
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import av
from av.codec.codec import UnknownCodecError

from core.files import atomic_write, replacing
from recording.folder import read_recording, write_recording
from recording.names import REPLAY_SOUND_FILE, REPLAY_SUBTITLES_FILE, REPLAY_VIDEO_FILE
from recording.records import ReplayTiming
from recording.replay_plan import REPLAY_RATE_HZ, plan_replay
from recording.replay_video import (
    ReplayTooSlowError,
    VideoOptions,
    write_replay_sound,
    write_replay_video,
)
from recording.subtitles import cues_of, webvtt

logger: Final = logging.getLogger(__name__)

MAX_REPLAY_S: Final = 4 * 3_600.0  # ours; four hours of WAV are 0.9 GB
LOW_PRIORITY: Final = 10  # added to a process's niceness


@dataclass(frozen=True)
class ReplayFiles:
    sound: Path | None = None
    video: Path | None = None


def build_replay(
    folder: Path,
    *,
    timing: ReplayTiming = "session",
    max_duration_s: float = MAX_REPLAY_S,
    video: VideoOptions | None = None,
) -> ReplayFiles:
    """Make `merged_replay.wav`, and `merged_replay.mp4` with its subtitles if there are pictures.

    Memory does not grow with the length of the session. Files appear when they are complete;
    `recording.json` then names them.

    Args:
        folder: The folder of a recording that has its `recording.json`.
        timing: Where the model's sound is put; see `plan_replay`.
        max_duration_s: A longer replay is not made.
        video: How the video is made; sensible ones by default.

    Returns:
        The files made. A video that takes too long or that cannot be encoded is left out.

    Raises:
        OSError: A file cannot be read, or the disk is full.
    """
    recording = read_recording(folder)
    if recording is None:
        return ReplayFiles()
    plan = plan_replay(folder, recording, timing)
    if not 0 < plan.samples <= max_duration_s * REPLAY_RATE_HZ:
        return ReplayFiles()
    sound = folder / REPLAY_SOUND_FILE
    with replacing(sound) as unfinished:
        write_replay_sound(unfinished, plan)
    made = ReplayFiles(sound=sound)
    known: dict[str, str] = {"merged_replay": sound.name, "merged_replay_timing": timing}
    if plan.pictures:
        film, cues = folder / REPLAY_VIDEO_FILE, cues_of(plan)
        try:
            with replacing(film) as unfinished:
                write_replay_video(unfinished, plan, sound, cues, video)
            made = ReplayFiles(sound=sound, video=film)
            known["merged_replay_video"] = film.name
            if cues:
                atomic_write(folder / REPLAY_SUBTITLES_FILE, webvtt(cues).encode())
                known["merged_replay_subtitles"] = REPLAY_SUBTITLES_FILE
        except (ReplayTooSlowError, av.FFmpegError, UnknownCodecError) as error:
            logger.warning("no video of %s: %r", folder.name, error)
    write_recording(folder, recording.model_copy(update=known))
    return made


def main() -> None:
    """Build the replay of the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Build the merged replay of a recording.")
    parser.add_argument("folder", type=Path, help="the recording's folder")
    parser.add_argument("--timing", choices=("session", "logical"), default="session")
    arguments = parser.parse_args()
    os.nice(LOW_PRIORITY)
    build_replay(arguments.folder, timing=arguments.timing)


if __name__ == "__main__":
    main()
