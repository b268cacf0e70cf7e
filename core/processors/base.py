"""What all views share: how capabilities are driven, and where sessions come from.

No view keeps anything of a conversation outside its `Session`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from core.audio import FloatArray
from core.errors import NotPreparedError
from core.media import MediaReader, read_media
from core.processors.failures import model_errors
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.session import Session
from MiniCPMO45.steps import Answers, Steps, run_alone, stream_alone

T = TypeVar("T")


class Driver(Protocol):
    """Whoever carries out the steps of a capability."""

    def run(self, steps: Steps[T]) -> T:
        """Run to the end and return the result; what is emitted on the way is dropped."""
        ...

    def stream(self, steps: Steps[T]) -> Generator[Any, None, T]:
        """Run, yielding what is emitted; the result is the generator's return value."""
        ...


class AloneDriver:
    """Runs one conversation at a time on the calling thread."""

    def __init__(self, executor: Answers) -> None:
        """Take whoever answers requests."""
        self._executor = executor

    def run(self, steps: Steps[T]) -> T:
        """Run to the end; see `Driver`."""
        return run_alone(steps, self._executor)

    def stream(self, steps: Steps[T]) -> Generator[Any, None, T]:
        """Run, yielding what is emitted; see `Driver`."""
        return stream_alone(steps, self._executor)


@dataclass(frozen=True, eq=False)
class ViewContext:
    """What a view works with.

    Attributes:
        model: the loaded model.
        driver: carries out its steps.
        aside: carries out what nobody waits for yet; None takes `driver`.
        read_media: decodes the pictures and videos of a request.
        default_voice: voice sample used when a caller brings none, [T] float32 at 16 kHz.
        seed: of every session's draws; None takes a fresh seed for each.
    """

    model: UnifiedModel
    driver: Driver
    default_voice: FloatArray | None = None
    seed: int | None = None
    aside: Driver | None = None
    read_media: MediaReader = read_media

    def open_session(self, session_id: str) -> Session:
        """Return a fresh conversation."""
        session = self.driver.run(self._opening(session_id))
        session.settings = self.model.duplex.defaults  # the window counts in every mode
        return session

    def _opening(self, session_id: str) -> Steps[Session]:
        yield from ()  # it asks for nothing, but must happen where the model runs
        return self.model.open_session(session_id, seed=self.seed)

    def run(self, steps: Steps[T]) -> T:
        """Run a capability to its end.

        Raises:
            OmniError: what the model layer reported, in the project's words.
        """
        with model_errors():
            return self.driver.run(steps)

    def run_aside(self, steps: Steps[T]) -> T:
        """Run to the end what touches no conversation and nobody waits for yet; raises as `run`."""
        with model_errors():
            return (self.aside or self.driver).run(steps)

    def stream(self, steps: Steps[T]) -> Generator[Any, None, T]:
        """Run a capability, yielding what it emits.

        Raises:
            OmniError: what the model layer reported, in the project's words.
        """
        with model_errors():
            return (yield from self.driver.stream(steps))


class View:
    """The documented methods of one mode over one session.

    Attributes:
        context: model, driver and defaults.
    """

    def __init__(self, context: ViewContext, session: Session | None = None) -> None:
        """Look at a session.

        Args:
            context: model, driver and defaults.
            session: a conversation that is going on; without one, the first call opens it.
        """
        self.context = context
        self._session = session

    @property
    def session(self) -> Session:
        """The conversation.

        Raises:
            NotPreparedError: there is none yet.
        """
        if self._session is None:
            raise NotPreparedError()
        return self._session

    @property
    def has_session(self) -> bool:
        """Whether there is a conversation."""
        return self._session is not None

    @property
    def kv_cache_length(self) -> int:
        """Tokens in the language model's cache."""
        return 0 if self._session is None else self._session.cached_tokens

    def stop(self) -> None:
        """End what is going on at the next forward pass; may be called from any thread."""
        if self._session is not None:
            self._session.stop.set()

    def is_stopped(self) -> bool:
        """Say whether `stop` was called since the last start."""
        return self._session is not None and self._session.stop.is_set()

    def cleanup(self) -> None:
        """Free everything of the conversation."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _start(self, session_id: str) -> Session:
        """Begin a fresh conversation; the one before is freed."""
        self.cleanup()
        self._session = self.context.open_session(session_id)
        return self._session
