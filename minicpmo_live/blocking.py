"""The same without `async`: each session has a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any, Generic, Self, TypeVar, Unpack

from minicpmo_live.client import DEFAULT_URL, AsyncClient, ChatSettings
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
    """A session whose methods wait."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="minicpmo_live", daemon=True
        )

    def __enter__(self) -> Self:
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

    # Any: what a coroutine yields to its loop.
    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        finally:
            running.cancel()  # what Ctrl-C has interrupted; nothing where there is a result

    def _each(self, events: AsyncIterator[Result]) -> Iterator[Result]:
        async def next_event() -> Result | None:
            return await anext(events, None)

        try:
            while (event := self._wait(next_event())) is not None:
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                self._wait(events.aclose())

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _LiveBlocking(_Blocking[Live]):
    """What both kinds of call have."""

    def send_audio(self, sound: Sound) -> bool:
        """Send sound; see `LiveSession.send_audio`."""
        return self._wait(self._session.send_audio(sound))

    def interrupt(self) -> bool:
        """End what the model is saying; the session continues."""
        return self._wait(self._session.interrupt())

    def stop(self) -> bool:
        """End the session; `stopped` follows as its last event."""
        return self._wait(self._session.stop())


class Duplex(_LiveBlocking[AsyncDuplex]):
    """Full duplex: each second of sound, with pictures or without, is answered by a `result`."""

    def __iter__(self) -> Iterator[DuplexEvent | ConnectionLost | SessionResumed]:
        return self._each(aiter(self._session))

    def send_picture(self, picture: bytes) -> bool:
        """Show a picture, JPEG, PNG or WebP; it belongs to the unit that is sent next."""
        return self._wait(self._session.send_picture(picture))

    def send_text(self, text: str) -> bool:
        """Say something in writing; the model knows it from its next pause on."""
        return self._wait(self._session.send_text(text))

    def pause(self) -> bool:
        """Suspend the session; `paused` follows."""
        return self._wait(self._session.pause())

    def resume(self) -> bool:
        """Continue after a pause; `resumed` follows."""
        return self._wait(self._session.resume())

    def play(
        self, sound: Sound, pictures: Sequence[bytes] = (), rest_s: int = 5
    ) -> Iterator[DuplexEvent | ConnectionLost | SessionResumed]:
        """Play a recording to the model; see `AsyncDuplex.play`."""
        return self._each(self._session.play(sound, pictures, rest_s))


class HalfDuplex(_LiveBlocking[AsyncHalfDuplex]):
    """Half duplex: the server finds out when the user has finished, and answers."""

    def __iter__(self) -> Iterator[HalfDuplexEvent | ConnectionLost | SessionResumed]:
        return self._each(aiter(self._session))

    def play(
        self, sound: Sound, rest_s: float = 2.0
    ) -> Iterator[HalfDuplexEvent | ConnectionLost | SessionResumed]:
        """Say something, and yield every event until it is answered."""
        return self._each(self._session.play(sound, rest_s))


class Chat(_Blocking[AsyncChat]):
    """Chat by turns."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history. Any: content is text or items."""
        return self._session.messages

    def ask(
        self, text: str = "", sound: Sound | None = None, pictures: Sequence[bytes] = ()
    ) -> Iterator[StreamingEvent | ConnectionLost | SessionResumed]:
        """Say something, and yield every event of the answer; see `AsyncChat.ask`."""
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
        """Return a call in which both may speak at once; see `AsyncClient.duplex`."""
        return Duplex(self._client.duplex(with_pictures=with_pictures, **settings))

    def half_duplex(self, **settings: Unpack[HalfDuplexPrepare]) -> HalfDuplex:
        """Return a call by turns; see `AsyncClient.half_duplex`."""
        return HalfDuplex(self._client.half_duplex(**settings))

    def chat(self, **settings: Unpack[ChatSettings]) -> Chat:
        """Return a chat; see `AsyncClient.chat`."""
        return Chat(self._client.chat(**settings))
