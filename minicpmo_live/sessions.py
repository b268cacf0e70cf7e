"""Sessions: full duplex, half duplex and turn-based chat."""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from minicpmo_live import events
from minicpmo_live.errors import LiveError
from minicpmo_live.events import (
    Done,
    DuplexEvent,
    DuplexPrepared,
    DuplexStopped,
    DuplexTimeout,
    Generate,
    Generating,
    HalfDuplexEvent,
    HalfDuplexPrepared,
    HalfDuplexStopped,
    HalfDuplexTimeout,
    Prefill,
    PrefillDone,
    QueueDone,
    Result,
    SessionResumed,
    StreamingEvent,
    TurnDone,
)
from minicpmo_live.link import Address, ConnectionLost, Link
from minicpmo_live.sound import INPUT_RATE_HZ, Sound, float_samples, to_base64

STOP_LIMIT_S: Final = 8.0  # the server waits up to 5 s for a running unit
# How far a recording is sent ahead of real time; the server ends a session that is 40 s ahead.
AHEAD_S: Final = 20.0
MS_PER_S: Final = 1_000
COLD_START_MS: Final = 500  # half duplex: audio that the server ignores after `prepared`
PREPARED: Final = (DuplexPrepared, HalfDuplexPrepared)
LAST: Final = (DuplexStopped, DuplexTimeout, HalfDuplexStopped, HalfDuplexTimeout)

Event = TypeVar("Event")

# Any: settings are JSON.
Json = Mapping[str, Any]


class LiveSession(Generic[Event]):
    """A call whose audio is sent as it is recorded; an iterator over its events."""

    _kinds: Mapping[str, type[Event]]  # its events by type
    _chunk_ms: int  # of one message of audio

    def __init__(self, address: Address, prepare: Json) -> None:
        self._link: Link[Event] = Link(address, self._kinds, self._note, is_resumable=True)
        self._prepare = prepare
        self._unsent: array[float] = array("f")
        self._prepared = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Connect; the first events are those of the queue, then `prepared`."""
        await self._link.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self._link.has_ended and await self._link.send({"type": "stop"}):
                await self._link.wait_for_end(STOP_LIMIT_S)
        finally:
            await self._link.close()

    def __aiter__(self) -> AsyncIterator[Event | ConnectionLost | SessionResumed]:
        return self

    async def __anext__(self) -> Event | ConnectionLost | SessionResumed:
        """Return the next event; a LiveError if the session ended with an error."""
        event = await self._link.inbox.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def send_audio(self, sound: Sound) -> bool:
        """Send audio as it is recorded, mono, 16 kHz, in pieces of any length.

        Waits until the session is ready; an incomplete unit waits for the next call. Returns
        whether all complete units were sent: without a connection they are lost. Raises
        `SoundError` for an unsupported format, and `LiveError` if the session has ended before.
        """
        self._unsent.extend(float_samples(sound))
        await self._until_prepared()
        size, is_sent = self._chunk_ms * INPUT_RATE_HZ // MS_PER_S, True
        while len(self._unsent) >= size:
            unit, self._unsent = self._unsent[:size], self._unsent[size:]
            is_sent &= await self._link.send({"type": "audio_chunk", "audio": to_base64(unit)})
        return is_sent

    async def interrupt(self) -> bool:
        """Stop the model's speech; the session continues."""
        return await self._link.send({"type": "interrupt"})

    async def stop(self) -> bool:
        """End the session; `stopped` follows as its last event."""
        return await self._link.send({"type": "stop"})

    async def _until_prepared(self) -> None:
        if not self._prepared.is_set() and not await self._link.wait_for(self._prepared):
            raise LiveError("the session ended before it was ready; see its events")

    async def _note(self, event: Event) -> bool:
        # Also if it was sent before: it may be lost, and a second one is only warned about.
        is_new = isinstance(event, SessionResumed) and not self._prepared.is_set()
        if isinstance(event, QueueDone) or is_new:
            await self._link.send({"type": "prepare", **self._prepare})
        elif isinstance(event, PREPARED):
            self._prepared.set()
        return isinstance(event, LAST)


class AsyncDuplex(LiveSession[DuplexEvent]):
    """Full duplex: a `result` for each second of audio, with or without pictures."""

    _kinds = events.DUPLEX
    _chunk_ms = MS_PER_S
    _is_paused = False  # by this client; the server drops audio and pictures meanwhile
    _is_due = False  # what is played next: all that was sent before has been answered

    async def __anext__(self) -> DuplexEvent | ConnectionLost | SessionResumed:
        event = await super().__anext__()
        # After a reconnect it is unknown what has arrived, so a recording continues.
        self._is_due |= isinstance(event, (DuplexPrepared, Result, SessionResumed))
        return event

    async def send_picture(self, picture: bytes) -> bool:
        """Send a JPEG, PNG or WebP picture; it belongs to the unit that is sent next."""
        await self._until_prepared()
        frame = base64.b64encode(picture).decode()
        return await self._link.send({"type": "video_frame", "frame": frame})

    async def send_text(self, text: str) -> bool:
        """Send text; the model gets it at its next pause."""
        await self._until_prepared()
        return await self._link.send({"type": "text_input", "text": text})

    async def pause(self) -> bool:
        """Suspend the session; `paused` follows."""
        self._is_paused = await self._link.send({"type": "pause"})
        return self._is_paused

    async def resume(self) -> bool:
        """Continue after a pause; `resumed` follows."""
        is_sent = await self._link.send({"type": "resume"})
        self._is_paused &= not is_sent
        return is_sent

    async def play(
        self, sound: Sound, pictures: Sequence[bytes] = (), rest_s: int = 5
    ) -> AsyncGenerator[DuplexEvent | ConnectionLost | SessionResumed, None]:
        """Play a recording, mono, 16 kHz, each second after the result of the one before.

        Sends one of `pictures` with each second while there are any, and `rest_s` seconds of
        silence after it, for the reply. Nothing is sent during a pause. Yields every event until
        the result of the last second; raises `LiveError` if the session ended with an error.
        """
        samples = float_samples(sound)
        seconds = -(-len(samples) // INPUT_RATE_HZ)
        samples.extend([0.0] * ((seconds + rest_s) * INPUT_RATE_HZ - len(samples)))
        at = 0
        while not (self._is_due and at >= len(samples)):
            if self._is_due and not self._is_paused:
                self._is_due = False
                if at // INPUT_RATE_HZ < len(pictures):
                    await self.send_picture(pictures[at // INPUT_RATE_HZ])
                await self.send_audio(samples[at : at + INPUT_RATE_HZ])
                at += INPUT_RATE_HZ
            event = await anext(self, None)
            if event is None:
                return
            yield event


class AsyncHalfDuplex(LiveSession[HalfDuplexEvent]):
    """Half duplex: the server detects the end of the user's turn, and replies."""

    _kinds = events.HALF_DUPLEX
    _chunk_ms = 500

    async def play(
        self, sound: Sound, rest_s: float = 2.0
    ) -> AsyncGenerator[HalfDuplexEvent | ConnectionLost | SessionResumed, None]:
        """Send a recording, mono, 16 kHz, and yield every event until the end of the reply.

        `rest_s` seconds of silence after it end the user's turn. Raises `LiveError` if the session
        ended with an error.
        """
        # The server takes the beginning for a microphone that opens.
        samples = array("f", [0.0] * (COLD_START_MS * INPUT_RATE_HZ // MS_PER_S))
        samples.extend(float_samples(sound))
        samples.extend([0.0] * round(rest_s * INPUT_RATE_HZ))
        sending = asyncio.create_task(self._send_ahead(samples))
        try:
            async for event in self:
                yield event
                if isinstance(event, Generating):
                    sending.cancel()  # audio is ignored from now on
                if isinstance(event, TurnDone):
                    return
        finally:
            sending.cancel()
            # The iterator raises what ended the session.
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_ahead(self, samples: array[float]) -> None:
        await self._until_prepared()
        clock, piece = asyncio.get_running_loop().time, self._chunk_ms * INPUT_RATE_HZ // MS_PER_S
        began_s = clock()
        for start in range(0, len(samples), piece):
            ahead_s = start / INPUT_RATE_HZ - (clock() - began_s)
            await asyncio.sleep(max(0.0, ahead_s - AHEAD_S))
            await self.send_audio(samples[start : start + piece])


class AsyncChat:
    """Turn-based chat. The history is kept here; the server caches what it has processed."""

    def __init__(self, address: Address, settings: Json) -> None:
        self.messages: list[dict[str, Any]] = []  # Any: content is text or items
        self._address = address
        self._settings = settings
        self._link: Link[StreamingEvent] | None = None
        self._is_asking = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()

    async def ask(
        self, text: str = "", sound: Sound | None = None, pictures: Sequence[bytes] = ()
    ) -> AsyncGenerator[StreamingEvent | ConnectionLost | SessionResumed, None]:
        """Send a message, and yield every event of its reply; ending the iteration stops it.

        `sound` is mono, 16 kHz, and `pictures` are encoded files. Raises `LiveError` if there is no
        reply; the history is unchanged then.
        """
        message = {"role": "user", "content": _content(text, sound, pictures)}
        if self._is_asking:
            await self._disconnect()  # the last reply was abandoned and may still arrive
        self._is_asking = True
        link = await self._connected()
        try:
            messages = [*self.messages, message]
            prefill, generate = (_known(kind, self._settings) for kind in (Prefill, Generate))
            await link.request({**prefill, "type": "prefill", "messages": messages})
            while (event := await link.inbox.get()) is not None:
                if isinstance(event, PrefillDone):
                    await link.send({**generate, "type": "generate"})
                elif isinstance(event, Done):
                    self._is_asking = False
                    self.messages += [message, {"role": "assistant", "content": event.text}]
                yield event
                if isinstance(event, Done):
                    return
            raise LiveError("the connection ended before the reply")
        finally:
            if self._is_asking and link is self._link:
                await self._disconnect()

    async def _connected(self) -> Link[StreamingEvent]:
        """Return the last turn's socket or a new one; each request has the whole history."""
        if self._link is None or self._link.has_ended:
            await self._disconnect()
            self._link = Link(self._address, events.STREAMING, _never_last, is_resumable=False)
            await self._link.open()
        return self._link

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


async def _never_last(event: StreamingEvent) -> bool:
    return False


# Any: a class of settings, and JSON.
def _known(kind: type[Any], settings: Json) -> dict[str, Any]:
    return {name: settings[name] for name in kind.__annotations__ if name in settings}


# Any: content is text or items.
def _content(text: str, sound: Sound | None, pictures: Sequence[bytes]) -> Any:
    items = [{"type": "image", "data": base64.b64encode(picture).decode()} for picture in pictures]
    if sound is not None:
        items.append({"type": "audio", "data": to_base64(float_samples(sound))})
    if not items:
        return text
    return [*items, {"type": "text", "text": text}] if text else items
