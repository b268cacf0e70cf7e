"""Synchronous client: each session runs an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError
from contextlib import ExitStack
from os import PathLike
from typing import Any, Generic, Self, TypeVar, Unpack

from minicpmo_live.client import DEFAULT_URL, AsyncClient, ChatSettings
from minicpmo_live.errors import LiveError
from minicpmo_live.events import (
    DuplexEvent,
    DuplexPrepare,
    HalfDuplexEvent,
    HalfDuplexPrepare,
    SessionResumed,
    StreamingEvent,
)
from minicpmo_live.link import ConnectionLost
from minicpmo_live.sessions import AsyncChat, AsyncDuplex, AsyncHalfDuplex
from minicpmo_live.sound import Sound

Session = TypeVar("Session", bound=AsyncDuplex | AsyncHalfDuplex | AsyncChat)
Live = TypeVar("Live", bound=AsyncDuplex | AsyncHalfDuplex)
Result = TypeVar("Result")


class _Blocking(Generic[Session]):
    """Synchronous wrapper of a session. Its methods may be called from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # set inside `with`, under the lock
        self._closing = asyncio.Event()
        self._thread = threading.Thread()

    def __enter__(self) -> Self:
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        with self._lock:
            if self._loop is not None:
                raise LiveError("the session is open already")
            self._loop, self._closing = runner.get_loop(), asyncio.Event()
        self._thread = threading.Thread(
            target=_run, args=(runner, self._closing), name="minicpmo_live", daemon=True
        )
        self._thread.start()
        with ExitStack() as on_failure:
            on_failure.callback(self._end)
            self._wait(self._session.__aenter__())
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._session.__aexit__())
        finally:
            self._end()

    # Any: internals of a coroutine.
    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        with self._lock:
            if self._loop is None:
                work.close()
                raise LiveError("the session is not open: use it inside a `with` statement")
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except CancelledError:
            raise LiveError("another thread has closed the session") from None
        finally:
            running.cancel()  # after Ctrl-C; no effect once there is a result

    def _each(self, events: AsyncIterator[Result]) -> Generator[Result, None, None]:
        async def next_event() -> Result | None:
            return await anext(events, None)

        try:
            while (event := self._wait(next_event())) is not None:
                yield event
        finally:
            # The end of a session closes its generators.
            if isinstance(events, AsyncGenerator) and self._loop is not None:
                self._wait(events.aclose())

    def _end(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()


def _run(runner: asyncio.Runner, closing: asyncio.Event) -> None:
    """Run a session's event loop, then cancel what other threads still wait for."""
    with runner:
        runner.run(closing.wait())


class _LiveBlocking(_Blocking[Live]):
    """Methods common to both kinds of call."""

    def send_audio(self, sound: Sound) -> bool:
        """Send audio; see `LiveSession.send_audio`."""
        return self._wait(self._session.send_audio(sound))

    def interrupt(self) -> bool:
        """Stop the model's speech; the session continues."""
        return self._wait(self._session.interrupt())

    def stop(self) -> bool:
        """End the session; `stopped` follows as its last event."""
        return self._wait(self._session.stop())


class Duplex(_LiveBlocking[AsyncDuplex]):
    """Full duplex: a `result` for each second of audio, with or without pictures."""

    def __iter__(self) -> Iterator[DuplexEvent | ConnectionLost | SessionResumed]:
        return self._each(aiter(self._session))

    def send_picture(self, picture: bytes) -> bool:
        """Send a JPEG, PNG or WebP picture; it belongs to the unit that is sent next."""
        return self._wait(self._session.send_picture(picture))

    def send_text(self, text: str) -> bool:
        """Send text; the model gets it at its next pause."""
        return self._wait(self._session.send_text(text))

    def pause(self) -> bool:
        """Suspend the session; `paused` follows."""
        return self._wait(self._session.pause())

    def resume(self) -> bool:
        """Continue after a pause; `resumed` follows."""
        return self._wait(self._session.resume())

    def play(
        self, sound: Sound, pictures: Sequence[bytes] = (), rest_s: int = 5
    ) -> Generator[DuplexEvent | ConnectionLost | SessionResumed, None, None]:
        """Play a recording to the model; see `AsyncDuplex.play`."""
        return self._each(self._session.play(sound, pictures, rest_s))


class HalfDuplex(_LiveBlocking[AsyncHalfDuplex]):
    """Half duplex: the server detects the end of the user's turn, and replies."""

    def __iter__(self) -> Iterator[HalfDuplexEvent | ConnectionLost | SessionResumed]:
        return self._each(aiter(self._session))

    def play(
        self, sound: Sound, rest_s: float = 2.0
    ) -> Generator[HalfDuplexEvent | ConnectionLost | SessionResumed, None, None]:
        """Send a recording, and yield every event until the end of the reply."""
        return self._each(self._session.play(sound, rest_s))


class Chat(_Blocking[AsyncChat]):
    """Turn-based chat."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history. Any: content is text or items."""
        return self._session.messages

    def ask(
        self, text: str = "", sound: Sound | None = None, pictures: Sequence[bytes] = ()
    ) -> Generator[StreamingEvent | ConnectionLost | SessionResumed, None, None]:
        """Send a message, and yield every event of the reply; see `AsyncChat.ask`."""
        return self._each(self._session.ask(text, sound, pictures))


class Client:
    """A server; see `AsyncClient`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        cafile: str | PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = AsyncClient(url, cafile=cafile, headers=headers)

    def duplex(self, *, with_pictures: bool = False, **settings: Unpack[DuplexPrepare]) -> Duplex:
        """Return a full-duplex call; see `AsyncClient.duplex`."""
        return Duplex(self._client.duplex(with_pictures=with_pictures, **settings))

    def half_duplex(self, **settings: Unpack[HalfDuplexPrepare]) -> HalfDuplex:
        """Return a half-duplex call; see `AsyncClient.half_duplex`."""
        return HalfDuplex(self._client.half_duplex(**settings))

    def chat(self, **settings: Unpack[ChatSettings]) -> Chat:
        """Return a chat; see `AsyncClient.chat`."""
        return Chat(self._client.chat(**settings))
