"""How a client comes to every phase of every protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.system import shapes
from tests.system.client import RATE_HZ, Client, HalfDuplexClient, Samples, to_base64
from tests.system.loops import new_id
from tests.system.running import RunningSystem

HELLO = [{"role": "user", "content": "Hello."}]
MANY_TOKENS = 2_000
COLD_START_S = 0.5
SILENCE_S = 1.5

# Any: a client of one protocol or another.
Step = Callable[[Any, Samples], Awaitable[object]]


@dataclass(frozen=True)
class Protocol:
    """One of the four sockets.

    Attributes:
        name: part of its path.
        prefix: of session ids.
        shapes: its messages.
        has_turns: it queues for each turn, not once for all.
    """

    name: str
    prefix: str
    shapes: dict[str, dict[str, shapes.Check]]
    has_turns: bool = False

    def path(self) -> str:
        return "/ws/chat" if self.name == "chat" else f"/ws/{self.name}/{new_id(self.prefix)}"


STREAMING = Protocol("streaming", "stream", shapes.STREAMING, has_turns=True)
CHAT = Protocol("chat", "chat", shapes.CHAT, has_turns=True)
HALF_DUPLEX = Protocol("half_duplex", "hdx", shapes.HALF_DUPLEX)
DUPLEX = Protocol("duplex", "omni", shapes.DUPLEX)


def _silence(duration_s: float) -> Samples:
    return np.zeros(round(duration_s * RATE_HZ), np.float32)


async def _nothing(client: Client, speech: Samples) -> None:
    return


# --- turns ---


async def _prefilling(client: Client, speech: Samples) -> None:
    await client.say("prefill", messages=HELLO)
    await client.hear("queue_done")


async def _ready(client: Client, speech: Samples) -> None:
    await _prefilling(client, speech)
    await client.hear("prefill_done")


async def _replying(client: Client, speech: Samples) -> None:
    await _ready(client, speech)
    await client.say("generate", max_new_tokens=MANY_TOKENS)
    await client.hear("chunk")


async def _asking(client: Client, speech: Samples) -> None:
    generation = {"max_new_tokens": MANY_TOKENS}
    await client.say("chat", messages=HELLO, streaming=True, generation=generation)
    await client.hear("queue_done")


async def _chatting(client: Client, speech: Samples) -> None:
    await _asking(client, speech)
    await client.hear("chunk")


# --- sessions ---


async def _assigned(client: Client, speech: Samples) -> None:
    await client.hear("queue_done")


async def _preparing(client: Client, speech: Samples) -> None:
    await client.hear("queue_done")
    await client.say("prepare")


async def _listening(client: Client, speech: Samples) -> None:
    await client.hear("queue_done")
    await client.say("prepare", config={"generation": {"max_new_tokens": MANY_TOKENS}})
    await client.hear("prepared")


async def _hearing(client: HalfDuplexClient, speech: Samples) -> None:
    await _listening(client, speech)
    await client.send_sound(np.concatenate([_silence(COLD_START_S), speech[: 2 * RATE_HZ]]))
    await client.hear("vad_state")


async def _answering(client: HalfDuplexClient, speech: Samples) -> None:
    await _listening(client, speech)
    said = [_silence(COLD_START_S), speech[: 2 * RATE_HZ], _silence(SILENCE_S)]
    await client.send_sound(np.concatenate(said))
    await client.hear("chunk")


async def _stepping(client: Client, speech: Samples) -> None:
    await _preparing(client, speech)
    await client.hear("prepared")
    await client.say("audio_chunk", audio=to_base64(speech[:RATE_HZ]))


async def _between_units(client: Client, speech: Samples) -> None:
    await _stepping(client, speech)
    await client.hear("result")


async def _paused(client: Client, speech: Samples) -> None:
    await _between_units(client, speech)
    await client.say("pause")
    await client.hear("paused")


@dataclass(frozen=True)
class Scene:
    """A phase of a protocol and the way there.

    Attributes:
        protocol: which socket.
        phase: what it is called.
        steps: of the client.
        is_served: a worker is held.
    """

    protocol: Protocol
    phase: str
    steps: Step
    is_served: bool = True

    @property
    def name(self) -> str:
        return f"{self.protocol.name}-{self.phase}"

    @asynccontextmanager
    async def reached(
        self, system: RunningSystem, speech: Samples
    ) -> AsyncIterator[HalfDuplexClient]:
        """Have a client in this phase for the block; it may leave the phase as it likes."""
        async with HalfDuplexClient.connected(system.ws(self.protocol.path())) as client:
            await self.steps(client, speech)
            yield client


SCENES = (
    Scene(STREAMING, "open", _nothing, is_served=False),
    Scene(STREAMING, "prefilling", _prefilling),
    Scene(STREAMING, "ready", _ready),
    Scene(STREAMING, "generating", _replying),
    Scene(CHAT, "open", _nothing, is_served=False),
    Scene(CHAT, "prefilling", _asking),
    Scene(CHAT, "generating", _chatting),
    Scene(HALF_DUPLEX, "unprepared", _assigned),
    Scene(HALF_DUPLEX, "preparing", _preparing),
    Scene(HALF_DUPLEX, "listening", _listening),
    Scene(HALF_DUPLEX, "hearing", _hearing),
    Scene(HALF_DUPLEX, "generating", _answering),
    Scene(DUPLEX, "unprepared", _assigned),
    Scene(DUPLEX, "preparing", _preparing),
    Scene(DUPLEX, "active", _between_units),
    Scene(DUPLEX, "stepping", _stepping),
    Scene(DUPLEX, "paused", _paused),
)
"""Every phase but waiting in the queue, which takes a system without a free worker."""


async def _wait_for_turn(client: Client, speech: Samples) -> None:
    await client.say("prefill", messages=HELLO)
    await client.hear("queued")


async def _wait_for_chat(client: Client, speech: Samples) -> None:
    await client.say("chat", messages=HELLO)
    await client.hear("queued")


async def _wait_for_session(client: Client, speech: Samples) -> None:
    await client.hear("queued")


WAITING = (
    Scene(STREAMING, "waiting", _wait_for_turn, is_served=False),
    Scene(CHAT, "waiting", _wait_for_chat, is_served=False),
    Scene(HALF_DUPLEX, "waiting", _wait_for_session, is_served=False),
    Scene(DUPLEX, "waiting", _wait_for_session, is_served=False),
)
