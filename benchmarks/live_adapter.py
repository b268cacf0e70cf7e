"""What GPT-Live's adapter adds to a unit of the duplex mode: processor time, without an engine.

Run as `python -m benchmarks.live_adapter`. The same sound goes through both protocols' texts,
machines and back; the engine answers at once with a second of sound, so only the rest is counted.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import typer

from core.audio import encode_wire_audio, to_pcm
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Detect, Effect, Finalize, Prefill, Send, Step
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
from core.protocols.machine import SessionNames
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.serving.gpt_live import GptLiveWords, live_machine
from core.serving.wire import DUPLEX

PIECES: Final = 10  # of a unit, each 100 ms
WARM_UP: Final = 5  # units

Machine = Any  # both machines have `handle`


class Talk:
    """One protocol's machine with an engine that answers at once."""

    def __init__(
        self, machine: Machine, read: Callable[[str], Any], write: Callable[[Any], str]
    ) -> None:
        """Open the socket."""
        self._machine, self._read, self._write = machine, read, write
        self._now_s = 0.0
        rng = np.random.default_rng(1)
        sound = (rng.standard_normal(OUTPUT_SAMPLE_RATE_HZ) / 10).astype(np.float32)
        spoken = DuplexGenerateResult(
            is_listen=False, text="I am speaking now.", audio_data=to_pcm(sound)
        )
        self._unit = StepDone(spoken, kv_tokens=10)
        self.sent_chars = 0
        self.happen(Opened())

    def happen(self, event: Event, after_s: float = 0.0) -> None:
        """Let something happen, and the engine answer."""
        self._now_s += after_s
        object.__setattr__(event, "at_s", self._now_s)
        effects: Iterable[Effect] = self._machine.handle(event)
        for effect in effects:
            match effect:
                case Send(message):
                    self.sent_chars += len(self._write(message))
                case Prefill():
                    self.happen(PrefillDone(kv_tokens=10))
                case Step():
                    self.happen(self._unit)
                case Finalize():
                    self.happen(FinalizeDone(kv_tokens=10))
                case Detect():
                    self.happen(Detected(()))

    def say(self, text: str) -> None:
        """Let the client say something."""
        self.happen(Received(self._read(text)))


def native() -> Callable[[], None]:
    """Return what one unit is in our own protocol."""
    machine = DuplexMachine(SessionNames("adx_1"), DuplexLimits())
    talk = Talk(machine, DUPLEX.read, DUPLEX.write)
    talk.say(json.dumps({"type": "prepare"}))
    unit = json.dumps({"type": "audio_chunk", "audio_base64": encode_wire_audio(noise())})

    def run() -> None:
        talk.happen(TimerFired(TimerName.FRAME), 1.0)
        talk.say(unit)

    return run


def live() -> Callable[[], None]:
    """Return what one unit is in GPT-Live."""
    words = GptLiveWords()
    machine = live_machine(
        SessionNames("live_1"), DuplexLimits(), "nano", lambda text: 1, transcribes=False
    )
    talk = Talk(machine, words.parse, words.write)
    talk.say(json.dumps({"type": "session.start", "session": {"model": "gpt-live-1"}}))
    heard = (np.interp(np.arange(24_000) / 1.5, np.arange(16_000), noise()) * 32_767).astype("<i2")
    pieces = [base64.b64encode(piece.tobytes()).decode() for piece in np.split(heard, PIECES)]
    texts = [json.dumps({"type": "session.input_audio.append", "audio": each}) for each in pieces]

    def run() -> None:
        for text in texts:
            talk.say(text)
            talk.happen(TimerFired(TimerName.PACE), 1 / PIECES)

    return run


def noise() -> Any:
    """Return a second of sound at 16 kHz."""
    rng = np.random.default_rng(2)
    return (rng.standard_normal(INPUT_SAMPLE_RATE_HZ) / 10).astype(np.float32)


def cost_ms(run: Callable[[], None], units: int) -> float:
    """Return the processor time of one unit at the median, ms."""
    took = []
    for _ in range(WARM_UP + units):
        began_s = time.process_time()
        run()
        took.append(time.process_time() - began_s)
    return float(np.median(took[WARM_UP:])) * 1_000


def main(units: int = 200) -> None:
    """Measure both in turn."""
    ours, theirs = cost_ms(native(), units), cost_ms(live(), units)
    print(f"a unit of /ws/duplex: {ours:.3f} ms; of /v1/live/sessions: {theirs:.3f} ms")
    print(f"the adapter adds {theirs - ours:.3f} ms, {theirs / ours:.1f} times")


if __name__ == "__main__":
    typer.run(main)
