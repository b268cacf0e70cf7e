"""Makes small recordings for tests: sessions with a known clock, sound with known levels."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from core.audio import encode_wire_audio, to_pcm
from core.schemas.duplex import Result
from recording import names
from recording.folder import read_recording
from recording.names import recording_folder
from recording.recorder import RecorderOptions, RecorderThreads, ReplayProcess, SessionRecorder
from recording.records import DuplexRecording, Meta, Recording, TurnRecording, TurnTiming
from session_recorder import DuplexSessionRecorder, TurnBasedSessionRecorder

START = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
WAIT_S = 120.0  # ends a test that hangs


@dataclass
class FakeTime:
    """A clock that goes when told."""

    seconds: float = 0.0


@dataclass
class Bench:
    """Makes recorders that share threads and a clock."""

    data_dir: Path
    threads: RecorderThreads
    time: FakeTime = field(default_factory=FakeTime)
    warnings: list[Exception] = field(default_factory=list)
    min_free_gb: float = 0.0

    @property
    def options(self) -> RecorderOptions:
        return RecorderOptions(
            self.threads,
            self.warnings.append,
            self.min_free_gb,
            monotonic_s=lambda: self.time.seconds,
            now=lambda: START + timedelta(seconds=self.time.seconds),
        )

    def duplex(self, name: str = "dx", kind: str = "omni_duplex") -> DuplexSessionRecorder:
        config = {"chunk_ms": 1_000, "system_prompt": "Be brief."}
        return DuplexSessionRecorder(name, kind, "worker-0", config, self.data_dir, self.options)

    def turns(self, name: str = "tb", kind: str = "streaming") -> TurnBasedSessionRecorder:
        return TurnBasedSessionRecorder(name, kind, "worker-0", {}, self.data_dir, self.options)

    def folder(self, name: str) -> Path:
        return recording_folder(self.data_dir, name)


def make_bench(
    data_dir: Path, replays: ReplayProcess | None = None, *, min_free_gb: float = 0.0
) -> Bench:
    return Bench(data_dir, RecorderThreads(replays), min_free_gb=min_free_gb)


def end(recorder: SessionRecorder, reason: str = "stopped") -> Meta:
    meta = recorder.finalize(reason).result(WAIT_S)
    assert meta is not None
    return meta


def level(value: float, samples: int) -> npt.NDArray[np.float32]:
    """Constant sound [T]."""
    return np.full(samples, value, np.float32)


def level_pcm(value: float, samples: int) -> bytes:
    return to_pcm(level(value, samples))


def speak(text: str, sound: npt.NDArray[np.float32] | None = None, *, ends: bool = False) -> Result:
    audio = "" if sound is None else encode_wire_audio(sound)
    return Result(is_listen=False, text=text, audio_data=audio, end_of_turn=ends)


def listen(*, barge_in: bool = False) -> Result:
    return Result(is_listen=True, barge_in=barge_in)


def picture(colour: tuple[int, int, int], kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(out, kind, quality=95)
    return out.getvalue()


def record_duplex(bench: Bench, name: str, results: Sequence[Result]) -> DuplexSessionRecorder:
    """Record one second of user sound and one picture per result; level and colour tell which."""
    recorder = bench.duplex(name)
    for index, result in enumerate(results):
        sound = level_pcm((index + 1) / 100, 16_000)
        recorder.record_input(index, sound, [picture((index * 20, 0, 0))])
        bench.time.seconds += 1.0
        recorder.record_result(index, result)
    return recorder


def record_turns(bench: Bench, name: str, count: int) -> TurnBasedSessionRecorder:
    """Record a half-duplex session of turns: half a second of user, one second of model."""
    recorder = bench.turns(name, "half_duplex_audio")
    for index in range(count):
        bench.time.seconds += 2.0
        recorder.start_voice_turn(index, level_pcm(0.25, 8_000))
        for part in range(2):
            recorder.add_streaming_chunk(f"{index}.{part} ", encode_wire_audio(level(0.5, 12_000)))
        recorder.end_turn(TurnTiming(elapsed_ms=321.0, tokens=7))
    return recorder


@dataclass
class Gate:
    """Stands for a disk: while closed, whoever writes waits in front of it."""

    write: Callable[[int, bytes], int]
    opened: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def __call__(self, descriptor: int, content: bytes) -> int:
        self.reached.set()
        assert self.opened.wait(WAIT_S)
        return self.write(descriptor, content)


def json_of(path: Path) -> Any:
    # Any: whatever the file holds.
    return json.loads(path.read_text(encoding="utf8"))


def pcm(path: Path) -> tuple[int, np.ndarray]:
    """Rate and samples of a mono WAV file, by another reader than ours."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), np.frombuffer(file.readframes(10**9), "<i2")


def recording_of(folder: Path) -> Recording:
    recording = read_recording(folder)
    assert recording is not None
    return recording


def duplex_of(folder: Path) -> DuplexRecording:
    recording = recording_of(folder)
    assert isinstance(recording, DuplexRecording)
    return recording


def turns_of(folder: Path) -> TurnRecording:
    recording = recording_of(folder)
    assert isinstance(recording, TurnRecording)
    return recording


def wait_until(look: Callable[[], Any]) -> Any:
    """Look again and again: the writers need only a moment."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it never came"
        os.sched_yield()
    return found


def timeline_bytes(folder: Path) -> bytes:
    path = folder / names.TIMELINE_FILE
    return path.read_bytes() if path.exists() else b""
