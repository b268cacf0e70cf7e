"""A session that nothing may disturb: it talks on in a thread of its own while others fail."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from tests.system.client import DuplexClient, Message, Samples, to_base64
from tests.system.loops import new_id
from tests.system.running import RunningSystem

PACE_S = 0.7  # between two units; just within the 1.5 times real time that a session may send
LIMIT_S = 120.0  # ends a test that hangs; a disturbed session gets no result at all


class Bystander:
    """One duplex session from `__enter__` to `__exit__`."""

    def __init__(self, system: RunningSystem, sound: Samples) -> None:
        """Take where to talk and what to say.

        Args:
            system: it runs.
            sound: one second, said again and again.
        """
        self.results: list[Message] = []
        self.others: list[Message] = []
        self._system = system
        self._sound = sound
        self._problem: BaseException | None = None
        self._is_ready = threading.Event()
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(LIMIT_S), self._problem
        return self

    def __exit__(self, *problem: object) -> None:
        self._must_end.set()
        self._thread.join()

    def check(self) -> None:
        """Nothing has gone wrong so far: a result for each unit, in order, and nothing else."""
        assert self._problem is None, self._problem
        assert [result["step"] for result in self.results] == list(range(len(self.results)))
        assert self.others == []

    def _run(self) -> None:
        try:
            asyncio.run(self._talk())
        except BaseException as error:
            self._problem = error
            raise

    async def _talk(self) -> None:
        path = f"/ws/duplex/{new_id('adx')}"
        async with DuplexClient.connected(self._system.ws(path)) as client:
            await client.prepare()
            self._is_ready.set()
            known = len(client.messages)
            while not self._must_end.is_set():
                await client.say("audio_chunk", audio=to_base64(self._sound))
                self.results.append(await client.hear("result"))
                fresh = client.messages[known:]
                known += len(fresh)
                self.others += [message for message in fresh if message["type"] != "result"]
                await asyncio.sleep(PACE_S)
            await client.say("stop")
            await client.hear("stopped")
