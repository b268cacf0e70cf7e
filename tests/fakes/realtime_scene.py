"""A Realtime session without sockets: machine, scripted engine, and sent events."""

from __future__ import annotations

import base64
import itertools
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import OmniError
from core.protocols.effects import (
    Close,
    Effect,
    Finalize,
    Generate,
    Interrupt,
    Prefetch,
    Prefill,
    Release,
    ScoreSpeech,
    Send,
    Step,
    label,
)
from core.protocols.events import (
    AudioReady,
    ChunkReady,
    Disconnected,
    Event,
    FinalizeDone,
    GenerateDone,
    Opened,
    Prefetched,
    PrefillDone,
    Received,
    Rejected,
    SpeechScored,
    StepDone,
    TimerFired,
    TimerName,
    TurnFailed,
)
from core.protocols.machine import SessionIds
from core.protocols.openai_events import ServerEvent
from core.protocols.realtime import TABLE, RealtimeMachine
from core.protocols.realtime_input import WINDOW_MS
from core.protocols.realtime_items import RealtimeLimits
from core.protocols.realtime_session import RealtimeStart, TurnRequest
from core.schemas.common import TokenStats
from core.schemas.duplex import Prepare
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.realtime import parse_event
from core.schemas.streaming import StreamingChunk
from tests.fakes.realtime_checks import check
from tests.fakes.scenes import has_row

# Any: events as parsed JSON.
Raw = dict[str, Any]

BYTES_PER_MS = 48  # of PCM at 24 kHz
MODEL_BYTES_PER_MS = 64  # of float32 at 16 kHz
LOUD, QUIET = 0.95, 0.02


def pcm(ms: int, *, speech: bool) -> bytes:
    """Return audio of a length, ms, in which the scripted detector finds speech or none."""
    return bytes([1 if speech else 0, 0]) * (ms * BYTES_PER_MS // 2)


@dataclass
class Engine:
    """Engine that carries out one effect at a time."""

    # Text and milliseconds of sound of each piece, for one reply after another; the last one is
    # said again and again.
    replies: list[list[tuple[str, int]]] = field(
        default_factory=lambda: [[("Hello ", 300), ("there.", 200)]]
    )
    asked: list[TurnRequest] = field(default_factory=list)  # every request so far
    # Text, milliseconds of sound and end of the turn of the units to come; then it listens, unless
    # it has to speak.
    units: list[tuple[str, int, bool]] = field(default_factory=list)
    prompts: list[Prepare] = field(default_factory=list)  # of the duplex engine
    steps: list[Step] = field(default_factory=list)  # the units so far
    _unit_work: deque[Event] = field(default_factory=deque)
    _seen: deque[Event] = field(default_factory=deque)
    _must_listen: bool = False
    kv_tokens: int = 10
    error: OmniError | None = None
    _pieces: deque[tuple[str, int]] = field(default_factory=deque)
    _said: list[str] = field(default_factory=list)
    _is_stopped: bool = False
    _unheard: bytearray = field(default_factory=bytearray)
    is_working: bool = False
    is_hearing: bool = False

    def ask(self, effect: Effect) -> None:
        match effect:
            case Generate(TurnRequest() as request):
                assert not self.is_working, "one reply at a time"
                self.is_working, self._is_stopped, self._said = True, False, []
                reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
                self._pieces = deque(reply)
                self.asked.append(request)
            case Prefill(Prepare() as prompt):
                self.prompts.append(prompt)
                self._plan(PrefillDone(kv_tokens=self.kv_tokens))
            case Step():
                self.steps.append(effect)
                self._plan(*self._unit(effect))
            case Prefetch():
                self._seen.append(Prefetched())
            case Finalize():
                self._plan(FinalizeDone(kv_tokens=self.kv_tokens))
            case Interrupt():
                self._is_stopped = self.is_working
                self._must_listen = True
            case ScoreSpeech(sound):
                assert not self.is_hearing, "one detection at a time"
                self.is_hearing = True
                self._unheard += sound

    def _plan(self, *events: Event) -> None:
        assert not self.is_working and not self._unit_work, "one thing at a time"
        self._unit_work.extend(events)

    def _unit(self, step: Step) -> list[Event]:
        """Return a unit's events: the first half of its audio ahead of the rest."""
        must_listen = self._must_listen or (step.chunk.force_listen and not step.must_speak)
        self._must_listen = False
        if must_listen or not (self.units or step.must_speak):
            return [StepDone(DuplexGenerateResult(is_listen=True, kv_cache_length=self.kv_tokens))]
        text, ms, is_last = self.units.pop(0) if self.units else ("All right.", 400, True)
        sound = pcm(ms // 2, speech=True)
        spoken = DuplexGenerateResult(
            is_listen=False,
            text=text,
            end_of_turn=is_last,
            n_tokens=len(text.split()),
            kv_cache_length=self.kv_tokens,
        )
        done = StepDone(spoken, client_audio=sound)
        return [AudioReady(b"", client_audio=sound), done] if ms else [done]

    def work(self) -> Event | None:
        if self._seen:
            return self._seen.popleft()
        if self._unit_work:
            return self._unit_work.popleft()
        if not self.is_working:
            return None
        if self.error is not None:
            self.is_working = False
            return TurnFailed(self.error, can_rollback=True)
        if self._pieces and not self._is_stopped:
            text, ms = self._pieces.popleft()
            self._said.append(text)
            request = self.asked[-1]
            spoken = pcm(ms, speech=True) if request.output.speaks else b""
            chunk = StreamingChunk(chunk_index=len(self._said), text_delta=text or None)
            return ChunkReady(chunk, spoken)
        self.is_working = False
        stats = TokenStats(input_tokens=7, generated_tokens=len(self._said), total_tokens=9)
        return GenerateDone("".join(self._said), self._is_stopped, stats, self.kv_tokens)

    def hear(self) -> Event | None:
        if not self.is_hearing:
            return None
        self.is_hearing = False
        samples = bytes(len(self._unheard) // BYTES_PER_MS * MODEL_BYTES_PER_MS)
        size = WINDOW_MS * BYTES_PER_MS
        found = []
        while len(self._unheard) >= size:
            found.append(LOUD if self._unheard[0] else QUIET)
            del self._unheard[:size]
        return SpeechScored(tuple(found), samples)


class RealtimeScene:
    """Passes client events to a machine, and checks and records every event it sends."""

    def __init__(
        self,
        *,
        limits: RealtimeLimits | None = None,
        is_beta: bool = False,
        is_checked: bool = True,
        can_transcribe: bool = False,
        model: str = "minicpm-o-4.5",
        **engine: Any,
    ) -> None:
        counter = itertools.count()
        start = RealtimeStart(
            model=model,
            instructions="Be brief.",
            new_id=lambda kind: f"{kind}_{next(counter)}",
            session_id="sess_1",
            conversation_id="conv_1",
            is_beta=is_beta,
            can_transcribe=can_transcribe,
            unix_time_s=1_700_000_000,
        )
        self.machine = RealtimeMachine(SessionIds("realtime_1"), start, limits)
        self._is_checked = is_checked and not is_beta
        self.engine = Engine(**engine)
        self.now_s = 0.0
        self.told: list[Raw] = []
        self.effects: list[Effect] = []
        self.closed: Close | None = None
        self.releases = 0
        self.observers: list[Any] = []
        self.tell(Opened())

    # --- events ---

    def tell(self, event: Event) -> list[Raw]:
        """Handle an event; check its row; return the events it sends."""
        object.__setattr__(event, "at_s", self.now_s)
        phase, first = self.machine.phase, len(self.told)
        effects = self.machine.handle(event)
        labels = [label(effect) for effect in effects]
        is_known = has_row(TABLE, phase, event, labels, self.machine.phase)
        assert is_known or not effects, f"{event.kind} in {phase} has no row"
        for observer in self.observers:
            observer.observe(event, effects)
        for effect in effects:
            self._carry_out(effect)
        self.effects += effects
        return self.told[first:]

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(ServerEvent() as event):
                assert self.closed is None
                told = json.loads(event.to_json())
                self.told.append(told)
                if self._is_checked:
                    check(told)
            case Close():
                self.closed = effect
            case Release():
                self.releases += 1
            case _:
                self.engine.ask(effect)

    def say(self, kind: str, **fields: Any) -> list[Raw]:
        """Send a client event as text."""
        return self.say_text(json.dumps({"type": kind, **fields}))

    def say_text(self, text: str) -> list[Raw]:
        try:
            event: Event = Received(parse_event(text))
        except OmniError as error:
            event = Rejected(error)
        return self.tell(event)

    def hear(self, ms: int, *, speech: bool) -> list[Raw]:
        """Append audio and run detection; time advances by its length."""
        first = len(self.told)
        encoded = base64.b64encode(pcm(ms, speech=speech)).decode()
        self.now_s += ms / 1_000
        self.say("input_audio_buffer.append", audio=encoded)
        while (event := self.engine.hear()) is not None:
            self.tell(event)
        return self.told[first:]

    def make(self, steps: int = 1_000) -> list[Raw]:
        first = len(self.told)
        for _ in range(steps):
            event = self.engine.work()
            if event is None:
                break
            self.tell(event)
        return self.told[first:]

    def settle(self) -> None:
        """Advance time without audio until no effect is left."""
        self.make()
        for _ in range(60):
            if self.machine.phase != "responding":
                return
            self.fire(TimerName.PACE, 1.5)
            self.make()
        raise AssertionError("a response without end")

    def fire(self, name: TimerName, after_s: float = 0.0) -> list[Raw]:
        self.now_s += after_s
        return self.tell(TimerFired(name))

    def leave(self) -> None:
        self.tell(Disconnected())

    # --- client actions ---

    def text(self, words: str, **fields: Any) -> list[Raw]:
        content = [{"type": "input_text", "text": words}]
        item = {"type": "message", "role": "user", "content": content}
        return self.say("conversation.item.create", item=item, **fields)

    def respond(self, steps: int = 1_000, **response: Any) -> list[Raw]:
        """Request a response, and let the engine work on it."""
        fields = {"response": response} if response else {}
        return [*self.say("response.create", **fields), *self.make(steps)]

    def detect(self, rules: Raw | None) -> list[Raw]:
        return self.say("session.update", session={"audio": {"input": {"turn_detection": rules}}})

    def semantic(self, **fields: Any) -> list[Raw]:
        return self.detect({"type": "semantic_vad", **fields})

    def talk(self, ms: int, *, speech: bool) -> list[Raw]:
        """Append audio in pieces of 100 ms, with the engine working meanwhile."""
        first = len(self.told)
        for _ in range(ms // 100):
            self.hear(100, speech=speech)
            self.make()
        return self.told[first:]

    def types(self, events: Sequence[Raw] | None = None) -> list[str]:
        """Return the types of events; by default of all so far."""
        return [event["type"] for event in (self.told if events is None else events)]

    def only(self, kind: str) -> Raw:
        (found,) = [event for event in self.told if event["type"] == kind]
        return found

    def last(self, kind: str) -> Raw:
        return [event for event in self.told if event["type"] == kind][-1]
