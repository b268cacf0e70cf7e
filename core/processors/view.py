"""Base of the views of all modes: engine, session, notices and translated errors.

A view's coroutines are the conversation; its plain methods are the documented synchronous form, for
scripts whose engine runs on the calling thread. All conversation state is in its `Session`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from core import errors
from core.audio import FloatArray, is_same_voice
from core.engine.engine import InlineEngine, run_inline
from core.engine.passes import Task
from core.errors import OmniError
from core.modes import SESSION, Threads
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from MiniCPMO45.engine.executor import MissingVoiceError
from MiniCPMO45.engine.kv_cache import CacheFullError
from MiniCPMO45.engine.session import Session, SnapshotError
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.modes.duplex import UnitOrderError
from MiniCPMO45.processing.mel import ProcessingError
from MiniCPMO45.processing.processor import PromptTooLongError
from MiniCPMO45.processing.tokenizer import TokenizerError
from MiniCPMO45.token2wav.vocoder_state import VoiceTooLongError
from MiniCPMO45.token2wav.voices import MAX_VOICE_S, VoiceSampleError

# Subclasses come before their bases.
TRANSLATIONS: Final[tuple[tuple[type[Exception], type[OmniError]], ...]] = (
    (PromptTooLongError, errors.ContextFullError),
    (ProcessingError, errors.BadPayloadError),
    (CacheFullError, errors.ContextFullError),
    (VoiceSampleError, errors.AudioError),
    (VoiceTooLongError, errors.AudioError),
    (MissingVoiceError, errors.GenerationFailedError),
    (UnitOrderError, errors.OutOfOrderError),
    (SnapshotError, errors.OutOfOrderError),
    (CheckpointError, errors.ModelError),
    (TokenizerError, errors.ModelError),
)


def translate(error: Exception) -> OmniError:
    """Return the project's error, with the same message, for one of the model layer."""
    kind = next(ours for theirs, ours in TRANSLATIONS if isinstance(error, theirs))
    sentence = str(error)
    ending = "" if sentence.endswith(".") else "."
    return kind(sentence[:1].upper() + sentence[1:] + ending)


@contextmanager
def model_errors() -> Iterator[None]:
    try:
        yield
    except tuple(kind for kind, _ in TRANSLATIONS) as error:
        raise translate(error) from error


T = TypeVar("T")


class CallingThread(Threads):
    async def run(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        return work()


@dataclass(frozen=True, eq=False)
class ViewContext:
    """The model and services that views share."""

    model: UnifiedModel
    engine: InlineEngine
    default_voice: FloatArray | None = None  # of callers that give none, [T] float32 at 16 kHz
    seed: int | None = None  # of every session's draws; None takes a fresh seed for each
    threads: Threads = CallingThread()

    async def run(self, steps: Steps[T]) -> T:
        """Run steps to their end, dropping the values that they emit."""
        task = self.begin(steps)
        with model_errors():
            async for _ in task:
                pass
        return task.result

    def begin(self, steps: Steps[T], *, due_s: float | None = None) -> Task[T]:
        """Return the steps as a task; `due_s` is its deadline, `time.monotonic`, if it is live."""
        return Task(steps, due_s, self.engine)


class View:
    """A conversation in one mode; the first call opens its session."""

    def __init__(self, context: ViewContext) -> None:
        self.context = context
        self._session: Session | None = None
        self._notices: list[OmniError] = []
        self._has_checked_voice = False
        self._seed: int | None = None  # of the next conversation; None for the context's

    @property
    def session(self) -> Session:
        """The session; raises `NotPreparedError` before there is one."""
        if self._session is None:
            raise errors.NotPreparedError()
        return self._session

    @property
    def kv_cache_length(self) -> int:
        return 0 if self._session is None else self._session.cached_tokens

    def stop(self) -> None:
        """End the reply under way at the next forward pass; may be called from any thread."""
        if self._session is not None:
            self._session.stop.set()

    def can_rollback(self) -> bool:
        return self._session is not None and self._session.can_rollback

    def cleanup(self) -> None:
        """Free the caches of the conversation; on the engine's thread."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def close(self) -> None:
        await self.context.engine.call(self.cleanup, is_bounded=False)

    def use_threads(self, threads: Threads) -> None:
        self.context = replace(self.context, threads=threads)

    def take_notices(self) -> list[OmniError]:
        notices, self._notices = self._notices, []
        return notices

    async def reset(self, session_id: str = SESSION) -> Session:
        """Begin another conversation, freeing the one before; a chosen voice stays."""
        return await self.context.engine.call(lambda: self._reopen(session_id))

    def _reopen(self, session_id: str) -> Session:
        self.cleanup()
        model = self.context.model
        seed = self.context.seed if self._seed is None else self._seed
        session = model.executor.open_session(session_id, seed=seed)
        session.settings = model.duplex.defaults  # the window applies to every mode
        self._session = session  # here: the call runs on if its caller is cancelled
        return session

    def _check_voice(self, voice: FloatArray | None) -> None:
        """Note once per conversation that the voice for replies is not or only partly used."""
        own, library = self.context.default_voice, self.context.model.executor.voices
        if self._has_checked_voice or voice is None or library is None or is_same_voice(voice, own):
            return
        length_s = len(voice) / INPUT_SAMPLE_RATE_HZ
        problem: OmniError
        if library.has_one_voice:
            problem = errors.OneVoiceError()
        elif length_s > MAX_VOICE_S:
            problem = errors.VoiceCutError(
                f"The voice sample lasts {length_s:.2f} s; replies are spoken with its first "
                f"{MAX_VOICE_S:.2f} s."
            )
        else:
            return
        self._has_checked_voice = True
        self._notices.append(problem)


def iterate_inline(stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Iterate over a stream that awaits only an engine without a thread."""
    try:
        while True:
            try:
                yield run_inline(stream.__anext__())
            except StopAsyncIteration:
                return
    finally:
        run_inline(stream.aclose())
