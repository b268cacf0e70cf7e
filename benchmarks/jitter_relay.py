"""A relay with jitter: it delays each WebSocket message by a random time, in order.

It runs in front of a gateway; plain HTTP is not delayed. Delays are uniform up to a limit.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from random import Random

from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

HOST = "127.0.0.1"
READ_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"
SWITCHING = b"HTTP/1.1 101"
EXTENSIONS = re.compile(rb"^Sec-WebSocket-Extensions:[^\r]*\r\n", re.IGNORECASE | re.MULTILINE)

Listener = Callable[[str], None]


class JitterRelay:
    """The relay, on a thread and event loop of its own."""

    def __init__(
        self, target_port: int, jitter_s: float, on_sent: Listener, *, seed: int = 0
    ) -> None:
        """Delay messages of a gateway's port by `jitter_s` at most.

        `on_sent` is called on the relay's thread with every text message of a client.
        """
        self.port = 0
        self._target_port = target_port
        self._jitter_s = jitter_s
        self._on_sent = on_sent
        self._random = Random(seed)
        self._loop = asyncio.new_event_loop()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> JitterRelay:
        self._thread.start()
        self._is_open.wait()
        return self

    def __exit__(self, *problem: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        async def listen() -> None:
            server = await asyncio.start_server(self._serve, HOST, 0)
            self.port = server.sockets[0].getsockname()[1]
            self._is_open.set()

        self._loop.create_task(listen())
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(HOST, self._target_port)
        try:
            # The answer says whether this is a WebSocket; until then nothing is delayed.
            upgraded = asyncio.Event()
            await asyncio.gather(
                self._up(reader, target_writer, upgraded),
                self._down(target_reader, writer, upgraded),
            )
        except (ConnectionError, EOFError):
            pass  # one side has gone; the other one follows
        finally:
            writer.close()
            target_writer.close()

    async def _up(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upgraded: asyncio.Event,
    ) -> None:
        while True:
            block = await reader.read(READ_BYTES)
            # Not compressed, so that the listener can read along.
            writer.write(EXTENSIONS.sub(b"", block))
            await writer.drain()
            if not block:
                return writer.close()
            if b"upgrade: websocket" in block.lower():
                await upgraded.wait()
                return await self._frames(reader, writer, self._on_sent)

    async def _down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upgraded: asyncio.Event,
    ) -> None:
        while True:
            block = await reader.read(READ_BYTES)
            head, end, rest = block.partition(HEAD_END)
            if block.startswith(SWITCHING) and end:
                writer.write(head + end)
                upgraded.set()
                return await self._frames(reader, writer, None, rest)
            writer.write(block)
            await writer.drain()
            if not block:
                return writer.close()

    async def _frames(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: Listener | None,
        begun: bytes = b"",
    ) -> None:
        """Forward frames with a delay, in order; those of a client, which are masked, are heard."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            while True:
                due_s, frame = await queue.get()
                await asyncio.sleep(due_s - self._loop.time())
                writer.write(frame)
                await writer.drain()

        sender = asyncio.create_task(send())
        stream = StreamReader()
        stream.feed_data(begun)
        is_masked, due_s = listener is not None, 0.0
        parsing = Frame.parse(stream.read_exact, mask=is_masked)
        try:
            while True:
                try:
                    next(parsing)
                except StopIteration as end:
                    frame: Frame = end.value
                    if listener is not None and frame.opcode is Opcode.TEXT and frame.fin:
                        listener(bytes(frame.data).decode("utf8", "replace"))
                    delay_s = self._random.uniform(0, self._jitter_s)
                    due_s = max(due_s, self._loop.time() + delay_s)
                    queue.put_nowait((due_s, frame.serialize(mask=is_masked)))
                    parsing = Frame.parse(stream.read_exact, mask=is_masked)
                    continue
                block = await reader.read(READ_BYTES)
                if not block:
                    raise EOFError
                stream.feed_data(block)
        finally:
            await asyncio.sleep(self._jitter_s)  # the last words get through
            sender.cancel()
            writer.close()
