"""Interruption latency of OpenAI's protocols: `python -m benchmarks.interruption`."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import numpy as np
import soundfile
import typer
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.launched import LaunchedSystem, Plan
from benchmarks.summary import Spread, format_table
from config import PROJECT_ROOT
from core.audio import FloatArray, resample
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ

PIECE_S: Final = 0.02
ONSET_DB: Final = -30.0  # onset of speech, relative to the loudest 10 ms
FRAMES_PER_S: Final = 100
NOISE_PEAK: Final = 1e-3  # of background noise
AUDIBLE_FIRST_S: Final = 0.4  # reply played before the user speaks
SPREAD_S: Final = 0.25  # random addition, so that windows and pieces are not aligned
SPOKEN_S: Final = 1.0  # longest time until silence that counts as an interruption
TURN_LIMIT_S: Final = 30.0
LIMIT_MS: Final = 150.0

# Any: events are JSON.
Json = dict[str, Any]


class Microphone:
    """Sends background noise, and speech from the time set by `speak_at`."""

    def __init__(self, socket: ClientConnection, kind: str, speech: FloatArray) -> None:
        self._socket, self._kind, self._speech = socket, kind, speech
        self._noise = np.random.default_rng(1)
        self._begins_s: float | None = None
        self.onset_s: float | None = None

    def speak_at(self, at_s: float) -> None:
        """Begin to speak at a time; only the first call counts."""
        self._begins_s = self._begins_s or at_s

    async def run(self) -> None:
        """Send each piece when its last sample has been recorded."""
        size, begun_s, at = round(PIECE_S * OUTPUT_SAMPLE_RATE_HZ), time.monotonic(), 0
        while True:
            at += 1
            piece = (self._noise.standard_normal(size) * NOISE_PEAK).astype(np.float32)
            first_s = begun_s + (at - 1) * PIECE_S
            if self._begins_s is not None and first_s + PIECE_S > self._begins_s:
                self.onset_s = self.onset_s or max(self._begins_s, first_s)
                skipped = round((self.onset_s - first_s) * OUTPUT_SAMPLE_RATE_HZ)
                said = self._speech[max(0, -skipped) :][: size - max(0, skipped)]
                piece[max(0, skipped) :][: len(said)] += said
            await asyncio.sleep(max(0.0, begun_s + at * PIECE_S - time.monotonic()))
            audio = base64.b64encode((piece * 32_767).astype("<i2").tobytes()).decode()
            await self._socket.send(json.dumps({"type": self._kind, "audio": audio}))


class Player:
    """The client's loudspeaker: plays audio on arrival, or after audio that still plays."""

    def __init__(self) -> None:
        self.begun_s: float | None = None  # when the first audible sample began
        self.audible_until_s = 0.0  # when the last one ended
        self._until_s = 0.0

    def play(self, text: str) -> None:
        samples = np.frombuffer(base64.b64decode(text), "<i2")
        from_s = max(time.monotonic(), self._until_s)
        self._until_s = from_s + len(samples) / OUTPUT_SAMPLE_RATE_HZ
        loud = np.flatnonzero(samples)
        if len(loud):
            self.begun_s = self.begun_s or from_s
            self.audible_until_s = from_s + (loud[-1] + 1) / OUTPUT_SAMPLE_RATE_HZ

    def flush(self) -> None:
        self._until_s = min(self._until_s, time.monotonic())
        self.audible_until_s = min(self.audible_until_s, time.monotonic())


def read_speech() -> FloatArray:
    """Return a spoken hello from its onset on, 24 kHz."""
    samples, rate_hz = soundfile.read(PROJECT_ROOT / "examples" / "hello.wav", dtype="float32")
    frames = samples[: len(samples) // (rate_hz // FRAMES_PER_S) * (rate_hz // FRAMES_PER_S)]
    power = (frames.reshape(-1, rate_hz // FRAMES_PER_S) ** 2).mean(axis=1)
    onset = int(np.argmax(power > power.max() * 10 ** (ONSET_DB / 10)))
    return resample(samples[onset * rate_hz // FRAMES_PER_S :], rate_hz, OUTPUT_SAMPLE_RATE_HZ)


async def over_realtime(socket: ClientConnection, wait_s: float, detection: str) -> float:
    """Speak over a Realtime reply, whose client flushes when the server detects speech."""
    microphone, player = Microphone(socket, "input_audio_buffer.append", read_speech()), Player()
    rules = {"audio": {"input": {"turn_detection": {"type": detection}}}}
    words = [{"type": "input_text", "text": "Tell me a story."}]
    item = {"type": "message", "role": "user", "content": words}
    for message in (
        {"type": "session.update", "session": rules},
        {"type": "conversation.item.create", "item": item},
        {"type": "response.create"},
    ):
        await socket.send(json.dumps(message))
    speaking = asyncio.create_task(microphone.run())
    try:
        async for text in socket:
            event: Json = json.loads(text)
            if event["type"] == "response.output_audio.delta":
                player.play(event["delta"])
                microphone.speak_at((player.begun_s or time.monotonic()) + wait_s)
            elif event["type"] == "input_audio_buffer.speech_started":
                assert microphone.onset_s is not None, "speech was detected before it began"
                assert player.audible_until_s > time.monotonic(), "the reply was over already"
                player.flush()
                return player.audible_until_s - microphone.onset_s
    finally:
        speaking.cancel()
    raise AssertionError("the server closed the session")


async def over_live(socket: ClientConnection, wait_s: float) -> float:
    """Speak over a GPT-Live reply, which falls silent by itself."""
    microphone, player = Microphone(socket, "session.input_audio.append", read_speech()), Player()
    await socket.send(json.dumps({"type": "session.start", "session": {"model": "gpt-live-1"}}))
    speaking = asyncio.create_task(microphone.run())
    try:
        async for text in socket:
            event: Json = json.loads(text)
            if event["type"] == "session.output_audio.delta":
                player.play(event["delta"])
                if player.begun_s is not None:
                    microphone.speak_at(player.begun_s + wait_s)
            onset_s = microphone.onset_s
            if onset_s is not None and time.monotonic() > onset_s + SPOKEN_S:
                assert player.audible_until_s > onset_s, "the reply was over already"
                return player.audible_until_s - onset_s
    finally:
        speaking.cancel()
    raise AssertionError("the server closed the session")


Interruption = Callable[[ClientConnection, float], Awaitable[float]]
CASES: Final[dict[str, tuple[str, Interruption]]] = {
    "Realtime, server_vad": ("/v1/realtime", partial(over_realtime, detection="server_vad")),
    "Realtime, semantic_vad": ("/v1/realtime", partial(over_realtime, detection="semantic_vad")),
    "GPT-Live": ("/v1/live/sessions", over_live),
}


async def measure(system: LaunchedSystem, repeats: int) -> dict[str, list[float]]:
    """Interrupt so many replies of each kind, in turn; return the latencies, ms."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    random = Random(1)
    for _ in range(repeats):
        for name, (path, interrupt) in CASES.items():
            async with asyncio.timeout(TURN_LIMIT_S):
                async with connect(system.ws(path), compression=None, proxy=None) as socket:
                    wait_s = AUDIBLE_FIRST_S + random.random() * SPREAD_S
                    found[name].append(1_000 * await interrupt(socket, wait_s))
    return found


def main(
    repeats: Annotated[int, typer.Option(help="Interrupted replies of each kind.")] = 20,
) -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(config={"recording": {"enabled": False}})
        with LaunchedSystem(Path(folder), plan) as system:
            found = asyncio.run(measure(system, repeats))
    rows = []
    for name, times in found.items():
        spread = Spread.of(times)
        verdict = "kept" if spread.p50 <= LIMIT_MS else "missed"
        rows.append([name, f"{spread.p50:.0f}", f"{spread.p95:.0f}", f"{spread.max:.0f}", verdict])
    header = ["silent after, ms", "p50", "p95", "longest", f"{LIMIT_MS:.0f} ms at p50"]
    print(format_table(header, rows))


if __name__ == "__main__":
    typer.run(main)
