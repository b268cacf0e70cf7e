"""A model that is none: fixed sentences and a tone, after delays one can choose.

For tests and load programs; the same requests always get the same replies. Never imports torch.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from PIL import Image

from core.audio import FloatArray, encode_wire_wav
from core.engine import WorkCancelledError
from core.engine.engine import Engine
from core.protocols.events import StepDone
from core.schemas import duplex, half_duplex, streaming
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import TokenStats
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingChunk
from core.schemas.worker import ModelFacts, ModelKind
from core.serving.backend import (
    EarlySound,
    Fed,
    Reply,
    ReplyEnd,
    Report,
    Signals,
    Unit,
    UnitPicture,
)
from core.serving.fake_media import (
    TONE_TOKENS,
    FakeSeenPicture,
    finished,
    line_of,
    tone,
    tone_base64,
    tone_halves,
)

MS_PER_S: Final = 1_000
SPEAK_UNITS: Final = 3  # of a duplex turn
LISTEN_UNITS: Final = 2  # between two turns
TOKENS_PER_UNIT: Final = 14
LOAD_STEPS: Final = 10
DIGEST_CHARS: Final = 6


@dataclass(frozen=True)
class FakeTimes:
    """How long the fake takes, ms.

    Attributes:
        load_ms: until it is ready.
        prefill_ms: for a system prompt, a message or a segment.
        unit_ms: for a duplex unit without its bookkeeping and its pictures.
        look_ms: for each picture, ahead of its unit or with it.
        finalize_ms: for the bookkeeping.
        piece_ms: for each piece of a reply.
    """

    load_ms: float = 0.0
    prefill_ms: float = 2.0
    unit_ms: float = 20.0
    look_ms: float = 0.0
    finalize_ms: float = 5.0
    piece_ms: float = 10.0


class FakeBackend:
    """Conversations without a model."""

    def __init__(self, times: FakeTimes | None = None) -> None:
        """Take the usual delays unless told otherwise."""
        self.times = times or FakeTimes()

    @property
    def context_tokens(self) -> int | None:
        """It forgets nothing."""
        return None

    @property
    def cache_room(self) -> float:
        """It needs none."""
        return 1.0

    def load(self, engine: Engine, report: Report) -> None:
        """Pretend to load."""
        for step in range(LOAD_STEPS):
            report("pretending to load", step / LOAD_STEPS)
            time.sleep(self.times.load_ms / LOAD_STEPS / MS_PER_S)

    def open_streaming(self) -> FakeStreamingTalk:
        """Return a fresh turn-based chat."""
        return FakeStreamingTalk(self.times)

    def open_half_duplex(self) -> FakeHalfDuplexTalk:
        """Return a fresh voice chat."""
        return FakeHalfDuplexTalk(self.times)

    def open_duplex(self) -> FakeDuplexTalk:
        """Return a fresh full-duplex conversation."""
        return FakeDuplexTalk(self.times)

    def open_chat(self) -> FakeChatTalk:
        """Return a fresh one-shot chat."""
        return FakeChatTalk(self.times)

    def tidy(self) -> None:
        """Nothing lies about."""

    def check(self) -> None:
        """It always works."""

    def close(self) -> None:
        """Nothing runs."""

    def memory_mb(self) -> tuple[float, float] | None:
        """There is no GPU."""
        return None

    def facts(self) -> ModelFacts:
        """Say that there is no model."""
        return ModelFacts(name="Fixed replies", kind=ModelKind.FAKE, device="cpu")


class _FakeTalk:
    """What all fake talks are: a list of what was said, and patience."""

    def __init__(self, times: FakeTimes) -> None:
        self.signals = Signals()
        self._times = times
        self._said: list[str] = []
        self._kv_tokens = 0
        self._marked: tuple[int, int] | None = None
        self._stopped = threading.Event()
        self._speaks = True

    @property
    def kv_tokens(self) -> int:
        """One for each word."""
        return self._kv_tokens

    def stop(self) -> None:
        """End the reply under way."""
        self._stopped.set()

    def close(self) -> None:
        """Forget everything."""
        self._said.clear()
        self._kv_tokens = 0

    def mark(self) -> None:
        """Remember this point."""
        self._marked = (len(self._said), self._kv_tokens)

    @property
    def can_roll_back(self) -> bool:
        """Whether a point is marked."""
        return self._marked is not None

    def unmark(self) -> None:
        """Give the marked point up."""
        self._marked = None

    def roll_back(self) -> None:
        """Return to the marked point, or forget everything."""
        length, self._kv_tokens = self._marked or (0, 0)
        del self._said[length:]
        self._marked = None

    def _wait(self, delay_ms: float) -> None:
        """Take so long, unless given up."""
        if self.signals.give_up.wait(delay_ms / MS_PER_S):
            raise WorkCancelledError

    def _take_in(self, *texts: str) -> Fed:
        self._stopped.clear()
        self._wait(self._times.prefill_ms)
        before = self._kv_tokens
        for text in texts:
            self._remember(text)
        return Fed(before, self._kv_tokens - before, sum(map(len, texts)), self._kv_tokens)

    def _remember(self, text: str) -> None:
        self._said.append(text)
        self._kv_tokens += len(text.split()) + 1

    def _say(self, sentence: str, max_words: int) -> Reply:
        """Say a sentence word by word; the words depend on everything said before."""
        words = [f"{word} " for word in sentence.split()][:max_words]
        told: list[str] = []
        for index, word in enumerate(words):
            if self._stopped.wait(self._times.piece_ms / MS_PER_S):
                break
            self._wait(0)
            told.append(word)
            yield StreamingChunk(
                chunk_index=index,
                text_delta=word,
                audio_data=tone_base64() if self._speaks else None,
                duration_ms=self._times.piece_ms,
            )
        was_stopped = self._stopped.is_set()
        self._stopped.clear()
        yield StreamingChunk(chunk_index=len(told), is_final=True)
        text = "".join(told)
        if told:
            self._remember(f"assistant: {text}")
        return ReplyEnd(text, len(told), self._kv_tokens, was_stopped, bool(told))

    def _digest(self) -> str:
        """Return something short that depends on all that was said."""
        return hashlib.sha256("\n".join(self._said).encode()).hexdigest()[:DIGEST_CHARS]


class FakeStreamingTalk(_FakeTalk):
    """Turn-based chat."""

    def prefill(self, message: streaming.WorkerPrefill) -> Fed:
        """Feed messages."""
        return self._take_in(*map(line_of, message.messages))

    def reply(self, request: streaming.Generate) -> Reply:
        """Answer what was prefilled."""
        self._speaks = request.generate_audio
        return self._say(self._sentence(), request.max_new_tokens)

    def _sentence(self) -> str:
        return f"This is a fixed reply, number {self._digest()}, and nothing more."


class FakeHalfDuplexTalk(_FakeTalk):
    """Voice chat by turns."""

    def __init__(self, times: FakeTimes) -> None:
        """Begin without settings."""
        super().__init__(times)
        self._max_words = 0

    def prepare(self, message: half_duplex.Prepare) -> Fed:
        """Begin."""
        self._speaks = message.config.tts.enabled
        self._max_words = message.config.generation.max_new_tokens
        return self._take_in(f"system: {message.system_prompt or 'be helpful'}")

    def hear(self, segment: FloatArray) -> Fed:
        """Take in one segment of speech."""
        duration_ms = len(segment) * MS_PER_S // INPUT_SAMPLE_RATE_HZ
        return self._take_in(f"user: {duration_ms} ms of speech")

    def reply(self) -> Reply:
        """Answer it."""
        heard = self._said[-1].removeprefix("user: ")
        return self._say(f"I have heard {heard}.", self._max_words)


class FakeDuplexTalk(_FakeTalk):
    """Full duplex: listens, speaks three units, listens two, and so on."""

    def __init__(self, times: FakeTimes) -> None:
        """Begin without settings."""
        super().__init__(times)
        self._listens_for = self._turns = 0
        self._spoken = 0  # units of the turn under way
        self._has_break = False
        self._has_early_sound = False
        self._slice_limit = 1

    def prepare(self, message: duplex.Prepare) -> Fed:
        """Begin."""
        self._speaks = message.config.generate_audio
        self._has_early_sound = message.early_audio
        self._slice_limit = message.slice_limit
        self._listens_for = message.config.force_listen_count
        fed = self._take_in(f"system: {message.prefix_system_prompt or 'talk'}")
        return replace(fed, cached_tokens=0)

    @property
    def slice_limit(self) -> int:
        """Slices per picture where a unit does not ask for another number."""
        return self._slice_limit

    def look(self, picture: Image.Image, max_slices: int) -> FakeSeenPicture:
        """Look at a picture ahead of its unit."""
        self._wait(self._times.look_ms)
        return FakeSeenPicture(max_slices)

    def step(
        self,
        audio: FloatArray,
        frames: Sequence[UnitPicture],
        max_slices: int | None,
        is_forced_to_listen: bool,
    ) -> Unit:
        """Listen or speak."""
        unseen = sum(not isinstance(frame, FakeSeenPicture) for frame in frames)
        self._wait(self._times.unit_ms + unseen * self._times.look_ms)
        self._kv_tokens += TOKENS_PER_UNIT
        must_listen, self._has_break = is_forced_to_listen or self._has_break, False
        if must_listen or self._listens_for > 0:
            self._listens_for = max(0, self._listens_for - 1)
            if self._spoken:
                self._end_turn()
            made = DuplexGenerateResult(is_listen=True, n_tokens=1, **self._costs())
        else:
            made = self._speak()
            if self._has_early_sound and made.audio_data is not None:
                early, late = tone_halves()
                yield EarlySound(early)
                made = made.model_copy(update={"audio_data": late})
        seen = len(frames), FakeSeenPicture.TOKENS * len(frames)
        return StepDone(made, self._times.prefill_ms, self._kv_tokens, *seen)

    def finalize(self) -> None:
        """Close the unit."""
        self._wait(self._times.finalize_ms)

    def set_break(self) -> None:
        """Let the next unit listen."""
        self._has_break = True

    def _speak(self) -> DuplexGenerateResult:
        self._spoken += 1
        is_last = self._spoken >= SPEAK_UNITS
        made = DuplexGenerateResult(
            is_listen=False,
            text=f"Part {self._spoken} of turn {self._turns}. ",
            audio_data=tone_base64() if self._speaks else None,
            end_of_turn=is_last,
            n_tokens=TOKENS_PER_UNIT,
            n_tts_tokens=TONE_TOKENS if self._speaks else 0,
            **self._costs(),
        )
        if is_last:
            self._end_turn()
            self._listens_for = LISTEN_UNITS
        return made

    def _end_turn(self) -> None:
        self._spoken, self._turns = 0, self._turns + 1

    def _costs(self) -> dict[str, float]:
        unit_ms = self._times.unit_ms
        return {"cost_llm_ms": unit_ms / 2, "cost_tts_ms": unit_ms / 4, "cost_all_ms": unit_ms}


class FakeChatTalk(_FakeTalk):
    """One request, one reply."""

    def __init__(self, times: FakeTimes) -> None:
        """Begin without a request."""
        super().__init__(times)
        self._max_words = 0

    def prefill(self, request: ChatRequest) -> Fed:
        """Feed the whole history."""
        self._speaks = request.tts.enabled
        self._max_words = request.generation.max_new_tokens
        return self._take_in(*map(line_of, request.messages))

    def reply(self, *, in_pieces: bool) -> Reply:
        """Answer it."""
        pieces = self._say(f"This is a fixed answer, number {self._digest()}.", self._max_words)
        return pieces if in_pieces else self._whole(pieces)

    def respond(self, request: ChatRequest) -> ChatResponse:
        """Feed and answer at once."""
        began_s = time.perf_counter()
        fed = self.prefill(request)
        end = finished(self.reply(in_pieces=True))
        return ChatResponse(
            text=end.text,
            audio_data=encode_wire_wav(tone(), OUTPUT_SAMPLE_RATE_HZ) if self._speaks else None,
            tokens_generated=end.generated_tokens,
            duration_ms=(time.perf_counter() - began_s) * MS_PER_S,
            prompt="\n".join(self._said) if request.return_prompt else None,
            token_stats=TokenStats(
                input_tokens=fed.input_tokens,
                generated_tokens=end.generated_tokens,
                total_tokens=end.kv_tokens,
            ),
        )

    def _whole(self, pieces: Reply) -> Reply:
        end = finished(pieces)
        sound = tone_base64() if self._speaks else None
        yield StreamingChunk(chunk_index=0, text_delta=end.text, audio_data=sound)
        return end
