"""Recordings put on a system's disk for the viewer, whose every figure a test knows."""

from __future__ import annotations

import shutil
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from core.schemas.queue import RequestType
from recording.folder import RecordingLock, write_meta, write_recording
from recording.records import (
    Chunk,
    ChunkResult,
    ChunkTiming,
    DuplexRecording,
    EndReason,
    Meta,
    Recording,
    Status,
    TextInput,
    TimelineEvent,
    Turn,
    TurnOutput,
    TurnRecording,
    TurnTiming,
    VoiceInput,
)
from tests.browser.media_files import RECORDINGS
from tests.system.running import RunningSystem

RATE_HZ = 16_000
HEADER_BYTES = 44
FRAME_BYTES = 4  # of two channels
TONE_HZ = 220
LOUDNESS = 12_000
LONG_UNITS = 1_800
LONG_AGO = timedelta(days=1)  # no sound of it is still being made


@dataclass(frozen=True)
class Said:
    """What the model did in one unit.

    Attributes:
        text: its words; None: it listened.
        wall_ms: how long the unit took.
        is_end: the answer ends with it.
        is_barge_in: the answer before was broken off here.
    """

    text: str | None = None
    wall_ms: float = 40.0
    is_end: bool = False
    is_barge_in: bool = False


LISTENED = Said()
TALK: Sequence[Said] = (
    LISTENED,
    LISTENED,
    Said("Good morning,", 300),
    Said(" how are you?", 350, is_end=True),
    LISTENED,
    LISTENED,
    Said("Let me tell you", 400),
    Said(is_barge_in=True),
    Said(wall_ms=1_400),
    Said("Fine.", 200, is_end=True),
    LISTENED,
    LISTENED,
)
"""Twelve seconds: two answers that ended, one broken off at 7 s, one unit too late at 8 s."""


def keep_call(
    system: RunningSystem,
    recording_id: str,
    talk: Sequence[Said] = TALK,
    *,
    has_sound: bool = True,
    has_pictures: bool = False,
    events: Sequence[TimelineEvent] = (),
) -> Path:
    """Write the recording of a call; return its folder."""
    folder = _folder(system, recording_id)
    chunks = tuple(
        _chunk(index, said, has_pictures=has_pictures) for index, said in enumerate(talk)
    )
    recording = DuplexRecording(
        session_id=recording_id,
        start_ts=datetime.now(UTC) - LONG_AGO,
        config={"chunk_ms": 1_000, "system_prompt": "Be brief.", "temperature": 0.7},
        chunks=chunks,
        events=tuple(events),
        merged_replay="merged_replay.wav" if has_sound else None,
    )
    if has_sound:
        _write_replay(folder / "merged_replay.wav", talk)
    if has_pictures:
        (folder / "user_frames").mkdir()
        for index in range(len(talk)):
            shade = (20 * index % 256, 90, 160)
            Image.new("RGB", (64, 36), shade).save(folder / f"user_frames/{index:03d}.jpg")
    kind = RequestType.OMNI_DUPLEX if has_pictures else RequestType.AUDIO_DUPLEX
    _complete(folder, recording, kind, len(talk))
    return folder


def keep_long_call(system: RunningSystem, recording_id: str) -> Path:
    """Write half an hour of call; its sound takes no room on the disk."""
    talk = [
        Said(f"Answer {n}.", is_end=True) if n % 4 == 3 else LISTENED for n in range(LONG_UNITS)
    ]
    folder = keep_call(system, recording_id, talk, has_sound=False, has_pictures=False)
    path = folder / "merged_replay.wav"
    with wave.open(str(path), "wb") as file:
        _describe(file)
    size = LONG_UNITS * RATE_HZ * FRAME_BYTES
    head = bytearray(path.read_bytes()[:HEADER_BYTES])
    head[4:8] = (size + HEADER_BYTES - 8).to_bytes(4, "little")
    head[40:44] = size.to_bytes(4, "little")
    with path.open("wb") as raw:
        raw.write(head)
        raw.truncate(HEADER_BYTES + size)
    recording = DuplexRecording.model_validate_json((folder / "recording.json").read_bytes())
    write_recording(folder, recording.model_copy(update={"merged_replay": path.name}))
    return folder


def keep_chat(
    system: RunningSystem, recording_id: str, question: str = "And then?", answer: str = "Then it"
) -> Path:
    """Write a chat of two rounds: words, a picture, the answer's voice, one answer stopped."""
    folder = _folder(system, recording_id)
    for name in ("user_images", "ai_audio"):
        (folder / name).mkdir()
    shutil.copy(RECORDINGS / "frame_0.png", folder / "user_images/img_0.png")
    shutil.copy(RECORDINGS / "question_1.wav", folder / "ai_audio/turn_0.wav")
    first = Turn(
        turn_index=0,
        request_ts_ms=1_000,
        input=TextInput(text="What is <b>this</b>?", images=("user_images/img_0.png",)),
        output=TurnOutput(text="A picture.", audio="ai_audio/turn_0.wav", audio_duration_ms=1_400),
        timing=TurnTiming(
            elapsed_ms=820, tokens=12, input_tokens=96, cached_tokens=0, first_audio_ms=310
        ),
    )
    second = Turn(
        turn_index=1,
        request_ts_ms=9_000,
        input=TextInput(text=question),
        output=TurnOutput(text=answer),
        timing=TurnTiming(elapsed_ms=400, tokens=2, input_tokens=9, cached_tokens=130),
        interrupted=True,
    )
    recording = TurnRecording(
        session_id=recording_id,
        mode=RequestType.STREAMING,
        start_ts=datetime.now(UTC) - LONG_AGO,
        turns=(first, second),
    )
    _complete(folder, recording, RequestType.STREAMING, 12)
    return folder


def keep_turns(system: RunningSystem, recording_id: str) -> Path:
    """Write a conversation in turns: one question by voice, its answer, and both as one sound."""
    folder = _folder(system, recording_id)
    for name in ("user_audio", "ai_audio"):
        (folder / name).mkdir()
        shutil.copy(RECORDINGS / "question_1.wav", folder / name / "000.wav")
    turn = Turn(
        turn_index=0,
        request_ts_ms=3_000,
        input=VoiceInput(duration_ms=1_400, audio="user_audio/000.wav"),
        output=TurnOutput(text="Yes.", audio="ai_audio/000.wav", audio_duration_ms=1_400),
        timing=TurnTiming(elapsed_ms=500, first_audio_ms=250),
    )
    recording = TurnRecording(
        session_id=recording_id,
        mode=RequestType.HALF_DUPLEX_AUDIO,
        start_ts=datetime.now(UTC) - LONG_AGO,
        turns=(turn,),
        merged_replay="merged_replay.wav",
    )
    _write_replay(folder / "merged_replay.wav", [LISTENED, LISTENED, LISTENED, Said("Yes.")])
    _complete(folder, recording, RequestType.HALF_DUPLEX_AUDIO, 4)
    return folder


def keep_unfinished(system: RunningSystem, recording_id: str) -> RecordingLock:
    """Write a recording that is not complete: this process is the one that writes it."""
    folder = _folder(system, recording_id)
    lock = RecordingLock(folder)
    write_meta(
        folder,
        Meta(
            session_id=recording_id,
            app_type=RequestType.AUDIO_DUPLEX,
            created_at=datetime.now(UTC),
            status=Status.FINALIZING,
        ),
    )
    return lock


def _folder(system: RunningSystem, recording_id: str) -> Path:
    folder = system.data / "sessions" / recording_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _chunk(index: int, said: Said, *, has_pictures: bool) -> Chunk:
    is_speech = said.text is not None
    # Any: fields of a model.
    spoken: dict[str, Any] = {}
    if is_speech:
        spoken = {
            "text": said.text,
            "ai_audio": f"ai_audio/turn_0_chunk_{index:03d}.wav",
            "ai_audio_duration_ms": 1_000,
            "end_of_turn": said.is_end or None,
            "turn": 0,
        }
    result = ChunkResult(
        mode="SPEAK" if is_speech else "LISTEN",
        timing=ChunkTiming(prefill_ms=5, wall_clock_ms=said.wall_ms, kv_cache_length=100 + index),
        barge_in=said.is_barge_in or None,
        **spoken,
    )
    return Chunk(
        index=index,
        receive_ts_ms=1_000.0 * (index + 1),
        user_audio=f"user_audio/{index:03d}.wav",
        user_audio_duration_ms=1_000,
        user_frame=f"user_frames/{index:03d}.jpg" if has_pictures else None,
        result=result,
    )


def _write_replay(path: Path, talk: Sequence[Said]) -> None:
    """Write a tone on the left while the model listens, on the right while it speaks."""
    tone = LOUDNESS * np.sin(2 * np.pi * TONE_HZ * np.arange(RATE_HZ) / RATE_HZ)
    quiet = np.zeros(RATE_HZ)
    sides = [(quiet, tone) if said.text is not None else (tone, quiet) for said in talk]
    samples = np.concatenate([np.stack(pair, axis=1) for pair in sides]).astype("<i2")
    with wave.open(str(path), "wb") as file:
        _describe(file)
        file.writeframes(samples.tobytes())


def _describe(file: wave.Wave_write) -> None:
    file.setnchannels(2)
    file.setsampwidth(2)
    file.setframerate(RATE_HZ)


def _complete(folder: Path, recording: Recording, kind: RequestType, duration_s: float) -> None:
    write_recording(folder, recording)
    write_meta(
        folder,
        Meta(
            session_id=folder.name,
            app_type=kind,
            created_at=recording.start_ts,
            ended_at=recording.start_ts + timedelta(seconds=duration_s),
            duration_s=duration_s,
            worker_id="worker_0",
            config=recording.config,
            end_reason=EndReason.STOPPED,
            status=Status.READY,
        ),
    )
