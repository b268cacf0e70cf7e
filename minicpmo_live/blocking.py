"""Synchronous client: each session runs an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack
from functools import wraps
from os import PathLike
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from minicpmo_live.client import DEFAULT_URL, AsyncClient, ChatSettings
from minicpmo_live.errors import LiveError
from minicpmo_live.events import DuplexPrepare, HalfDuplexPrepare
from minicpmo_live.sessions import AsyncChat, AsyncDuplex, AsyncHalfDuplex

Session = TypeVar("Session", bound=AsyncDuplex | AsyncHalfDuplex | AsyncChat)
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


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
        step = asyncio.Lock()  # a cancelled step still runs for a while

        async def next_event() -> Result | None:
            async with step:
                return await anext(events, None)

        async def close(generator: AsyncGenerator[Result, None]) -> None:
            async with step:
                await generator.aclose()

        try:
            while (event := self._wait(next_event())) is not None:
                yield event
        finally:
            # The end of a session closes its generators.
            if isinstance(events, AsyncGenerator) and self._loop is not None:
                self._wait(close(events))

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


# Any, here and below: a session, and internals of a coroutine.
def _waits(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[_Blocking[Any], Arguments], Result]:
    """Return a session's method as a blocking one."""

    @wraps(method)
    def call(self: _Blocking[Any], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return self._wait(method(self._session, *args, **kwargs))

    return call


def _iterates(
    method: Callable[Concatenate[Any, Arguments], AsyncIterator[Result]],
) -> Callable[Concatenate[_Blocking[Any], Arguments], Generator[Result, None, None]]:
    """Return a session's iterator as a blocking one."""

    @wraps(method)
    def call(
        self: _Blocking[Any], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Generator[Result, None, None]:
        return self._each(method(self._session, *args, **kwargs))

    return call


class Duplex(_Blocking[AsyncDuplex]):
    """Full duplex: a `result` for each second of audio, with or without pictures."""

    __iter__ = _iterates(AsyncDuplex.__aiter__)
    play = _iterates(AsyncDuplex.play)
    send_audio = _waits(AsyncDuplex.send_audio)
    send_picture = _waits(AsyncDuplex.send_picture)
    send_text = _waits(AsyncDuplex.send_text)
    interrupt = _waits(AsyncDuplex.interrupt)
    pause = _waits(AsyncDuplex.pause)
    resume = _waits(AsyncDuplex.resume)
    stop = _waits(AsyncDuplex.stop)


class HalfDuplex(_Blocking[AsyncHalfDuplex]):
    """Half duplex: the server detects the end of the user's turn, and replies."""

    __iter__ = _iterates(AsyncHalfDuplex.__aiter__)
    play = _iterates(AsyncHalfDuplex.play)
    send_audio = _waits(AsyncHalfDuplex.send_audio)
    interrupt = _waits(AsyncHalfDuplex.interrupt)
    stop = _waits(AsyncHalfDuplex.stop)


class Chat(_Blocking[AsyncChat]):
    """Turn-based chat."""

    ask = _iterates(AsyncChat.ask)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history. Any: content is text or items."""
        return self._session.messages


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
