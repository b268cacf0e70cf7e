"""Processor time that OpenAI's live protocols add to a duplex unit, without an engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Any, Final, cast

import numpy as np
import typer
from pybase64 import b64decode, b64encode_as_string

from benchmarks.summary import format_table
from config import Settings
from core.audio import FloatArray, StreamResampler, encode_wire_audio, to_pcm
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import (
    Detect,
    Effect,
    Finalize,
    Prefill,
    ScoreSpeech,
    Send,
    StartTimer,
    Step,
)
from core.protocols.events import (
    Detected,
    Event,
    FinalizeDone,
    Opened,
    PrefillDone,
    Received,
    StepDone,
    TimerFired,
    TimerName,
)
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.machine import SessionIds
from core.protocols.realtime import RealtimeMachine
from core.schemas.common import json_text
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.queue import SocketKind
from core.schemas.realtime_session import AudioFormat
from core.serving.detection import WindowDetector
from core.serving.openai_clients import ReplyWriter, decoded, encoded, live_names
from core.serving.realtime_handler import realtime_start
from core.serving.session_kinds import endpoint_of
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad

PIECES: Final = 10  # of a unit, each 100 ms
DELTAS: Final = 5  # of a unit for a Realtime client, each 200 ms
WARM_UP: Final = 5  # units

Machine = Any  # all machines have `handle`
Case = Callable[[], Iterable[None]]
"""Processes one unit, piece by piece; the reply follows the last piece."""


class SilentDetector:
    initial_state = staticmethod(SileroVad.initial_state)

    def probabilities(self, samples: FloatArray, state: object) -> tuple[FloatArray, object]:
        return np.zeros(len(samples) // MODEL_WINDOW_SAMPLES, np.float32), state


class Session:
    """One protocol's machine with an engine that replies at once."""

    def __init__(
        self,
        machine: Machine,
        read: Callable[[str], Any],
        write: Callable[[Any], str],
        unit: DuplexGenerateResult,
    ) -> None:
        """Open the socket; `unit` is the engine's result of each unit."""
        self._machine, self._read, self._write = machine, read, write
        self._unit = unit
        self._now_s = 0.0
        self._pace_s = float("inf")  # when the timer of that name fires
        self._listener = WindowDetector(cast(SileroVad, SilentDetector()))
        self._writer = ReplyWriter(AudioFormat())
        self.sent_chars = 0
        self.handle(Opened())

    def handle(self, event: Event, after_s: float = 0.0) -> None:
        self._now_s += after_s
        object.__setattr__(event, "at_s", self._now_s)
        effects: Iterable[Effect] = self._machine.handle(event)
        for effect in effects:
            match effect:
                case Send(message):
                    self.sent_chars += len(self._write(message))
                case ScoreSpeech():
                    self.handle(self._listener.detect(effect))
                case StartTimer(TimerName.PACE, delay_s):
                    self._pace_s = self._now_s + delay_s
                case Prefill():
                    self.handle(PrefillDone(kv_tokens=10))
                case Step():
                    is_written = effect.client_format is not None and not self._unit.is_listen
                    audio = self._writer.write(SPOKEN) if is_written else b""
                    self.handle(StepDone(self._unit, client_audio=audio))
                case Finalize():
                    self.handle(FinalizeDone(kv_tokens=10))
                case Detect():
                    self.handle(Detected(()))

    def wait(self, duration_s: float) -> None:
        """Advance the clock, firing the pace timer whenever it is due."""
        until_s = self._now_s + duration_s
        while self._pace_s <= until_s:
            self._now_s, self._pace_s = self._pace_s, float("inf")
            self.handle(TimerFired(TimerName.PACE))
        self._now_s = until_s

    def receive(self, text: str) -> None:
        self.handle(Received(self._read(text)))


def noise(rate_hz: int) -> FloatArray:
    rng = np.random.default_rng(rate_hz)
    return (rng.standard_normal(rate_hz) / 10).astype(np.float32)


SPOKEN: Final = noise(OUTPUT_SAMPLE_RATE_HZ)
SPEAKS: Final = DuplexGenerateResult(
    is_listen=False, text="I am speaking now.", audio_data=to_pcm(SPOKEN)
)
LISTENS: Final = DuplexGenerateResult(is_listen=True)


def appends(kind: str) -> list[str]:
    """Return the events that a client of OpenAI's protocols sends for a unit: 16 bits at 24 kHz."""
    heard = encoded(noise(OUTPUT_SAMPLE_RATE_HZ), AudioFormat())
    size = len(heard) // PIECES
    pieces = [heard[start : start + size] for start in range(0, len(heard), size)]
    return [json.dumps({"type": kind, "audio": b64encode_as_string(piece)}) for piece in pieces]


def native(result: DuplexGenerateResult) -> Case:
    machine = DuplexMachine(SessionIds("adx_1"), DuplexLimits())
    endpoint = endpoint_of(SocketKind.DUPLEX, Settings())
    session = Session(machine, endpoint.read, endpoint.write, result)
    session.receive(json.dumps({"type": "prepare"}))
    audio = encode_wire_audio(noise(INPUT_SAMPLE_RATE_HZ))
    text = json.dumps({"type": "audio_chunk", "audio_base64": audio})

    def unit() -> Iterable[None]:
        session.handle(TimerFired(TimerName.FRAME), 1.0)
        session.receive(text)
        yield

    return unit


def in_pieces(session: Session, kind: str) -> Case:
    texts = appends(kind)

    def unit() -> Iterable[None]:
        for text in texts:
            session.receive(text)
            session.wait(1 / PIECES)
            yield

    return unit


def live(result: DuplexGenerateResult) -> Case:
    endpoint = endpoint_of(SocketKind.LIVE, Settings())
    names = live_names("live_1", "nano")
    machine = GptLiveMachine(SessionIds("live_1"), DuplexLimits(), names, lambda text: 1)
    session = Session(machine, endpoint.read, endpoint.write, result)
    session.receive(json.dumps({"type": "session.start", "session": {"model": "gpt-live-1"}}))
    return in_pieces(session, "session.input_audio.append")


def realtime(result: DuplexGenerateResult) -> Case:
    start = realtime_start("nano", is_beta=False, can_transcribe=False)
    machine = RealtimeMachine(SessionIds("rt_1"), start)
    endpoint = endpoint_of(SocketKind.REALTIME, Settings())
    session = Session(machine, endpoint.read, endpoint.write, result)
    rules = {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}
    session.receive(json.dumps({"type": "session.update", "session": rules}))
    session.wait(1 / PIECES)  # a piece is sent at its end
    return in_pieces(session, "input_audio_buffer.append")


def floor(deltas: int) -> Case:
    """Return the floor of a unit: bytes, Base64, JSON and resampling."""
    texts = appends("input_audio_buffer.append")
    resampler = StreamResampler(OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ)
    size = OUTPUT_SAMPLE_RATE_HZ // deltas

    def unit() -> Iterable[None]:
        for text in texts:
            heard = decoded(b64decode(json.loads(text)["audio"]), AudioFormat())
            to_pcm(resampler.feed(heard))
            yield
        for at in range(deltas):
            written = encoded(SPOKEN[at * size : (at + 1) * size], AudioFormat())
            event = {"type": "response.output_audio.delta", "delta": b64encode_as_string(written)}
            json_text(event)
        yield

    return unit


def cost_s(steps: Iterable[None]) -> tuple[float, float]:
    """Return the processor time of a whole unit and of its answer, s.

    The answer is from the piece that completes the unit's audio to the end of its reply. That may
    be the next unit's first piece, as a resampler delays the last samples.
    """
    at_s = [time.process_time(), *(time.process_time() for _ in steps)]
    return at_s[-1] - at_s[0], max(end - begin for begin, end in pairwise(at_s))


def main(units: int = 300) -> None:
    """Measure all cases, and print medians."""
    for result in (SPEAKS, LISTENS):
        cases = {
            "/ws/duplex": native(result),
            "/v1/live/sessions": live(result),
            "floor, 10 pieces each way": floor(PIECES),
            "/v1/realtime, semantic_vad": realtime(result),
            "floor, 10 pieces in, 5 out": floor(DELTAS),
        }
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for _ in range(WARM_UP + units):
            for name, case in cases.items():
                costs[name].append(cost_s(case()))
        medians_ms = {
            name: [median(times) * 1_000 for times in zip(*found[WARM_UP:], strict=True)]
            for name, found in costs.items()
        }
        native_ms = medians_ms["/ws/duplex"]
        rows = []
        for name, found_ms in medians_ms.items():
            pairs = zip(found_ms, native_ms, strict=True)
            cells = [(f"{ms:.3f}", f"{ms - least_ms:+.3f}") for ms, least_ms in pairs]
            rows.append([name, *cells[0], *cells[1]])
        what = "listening" if result.is_listen else "speaking"
        header = [f"a {what} unit of", "CPU, ms", "added", "its reply, ms", "added"]
        print(format_table(header, rows))


if __name__ == "__main__":
    typer.run(main)
