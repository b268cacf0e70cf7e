"""A WebRTC client as pages are one: a microphone, a loudspeaker and the channel `oai-events`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from fractions import Fraction
from typing import Any

import av
import httpx
import numpy as np
import uvicorn
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError

from config import Settings
from tests.fakes.gateway_stage import HOST, LIMIT_S, Stage, until
from webrtc.calls import Calls, GatewayAddress, create_app

RATE_HZ, FRAME = 48_000, 960
FRAME_S = FRAME / RATE_HZ
LOUD = 500  # of a tone's samples in 16 bits
Raw = dict[str, Any]


def is_loud(frame: np.ndarray) -> bool:
    return int(np.abs(frame).max()) > LOUD


class Mouth(MediaStreamTrack):
    """A microphone: silence, or the sound that was put before it, at the pace of the clock."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.sound = np.zeros(0, np.int16)
        self._frames = 0
        self._begun_s = 0.0

    async def recv(self) -> av.AudioFrame:
        now_s = asyncio.get_running_loop().time()
        if not self._frames:
            self._begun_s = now_s
        await asyncio.sleep(max(0.0, self._begun_s + self._frames * FRAME_S - now_s))
        samples, self.sound = self.sound[:FRAME], self.sound[FRAME:]
        samples = np.pad(samples, (0, FRAME - len(samples)))
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, self._frames * FRAME
        frame.time_base = Fraction(1, RATE_HZ)
        self._frames += 1
        return frame


class Peer:
    """One client."""

    def __init__(self, *, only_listens: bool = False) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.mouth = Mouth()
        if only_listens:
            self.connection.addTransceiver("audio", direction="recvonly")
        else:
            self.connection.addTrack(self.mouth)
        self.channel = self.connection.createDataChannel("oai-events")
        self.events: list[Raw] = []
        self.arrived: asyncio.Queue[Raw] = asyncio.Queue()
        self.heard: list[np.ndarray] = []  # of each frame, mono
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = asyncio.Event()
        self.channel.on("open", self._opened.set)
        self.channel.on("message", self._take)
        self.connection.on("track", self._listen)

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        sdp: str = self.connection.localDescription.sdp
        return sdp

    async def accept(self, sdp: str) -> None:
        """Take the answer, and wait until events can be sent."""
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        # Not the state of the channel: a call that is over closes it as soon as it has opened.
        async with asyncio.timeout(LIMIT_S):
            await self._opened.wait()

    def say(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def hear(self, kind: str) -> Raw:
        async with asyncio.timeout(LIMIT_S):
            while True:
                event = await self.arrived.get()
                assert "audio.delta" not in event["type"], event
                if event["type"] == kind:
                    return event
                assert event["type"] != "error", event

    @property
    def is_loud(self) -> bool:
        """Whether the newest frame has sound in it."""
        return bool(self.heard) and is_loud(self.heard[-1])

    @property
    def loud_ms(self) -> int:
        """How long there has been sound."""
        return round(sum(map(is_loud, self.heard)) * FRAME_S * 1_000)

    async def close(self) -> None:
        await self.connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, text: str) -> None:
        event = json.loads(text)
        self.events.append(event)
        self.arrived.put_nowait(event)

    def _listen(self, track: MediaStreamTrack) -> None:
        self._tasks.add(asyncio.create_task(self._keep(track)))

    async def _keep(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, av.AudioFrame)
            self.heard.append(frame.to_ndarray().reshape(-1, len(frame.layout.channels))[:, 0])


class _Server(uvicorn.Server):
    """Leaves signals to the tests."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def webrtc_process(settings: Settings, gateway_port: int) -> AsyncIterator[Calls]:
    app = create_app(settings, GatewayAddress(f"ws://{HOST}:{gateway_port}"))
    config = uvicorn.Config(app, HOST, settings.webrtc.port, log_config=None, access_log=False)
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started or task.done(), "it did not start")
    try:
        yield app.state.calls
        await until(lambda: not len(app.state.calls), "a call is left")
    finally:
        server.should_exit = True
        await task


async def call(stage: Stage, peer: Peer, **session: Any) -> httpx.Response:
    fields = {"sdp": (None, await peer.offer(), "application/sdp")}
    fields["session"] = (None, json.dumps({"type": "realtime", **session}), "application/json")
    return await stage.http.post("/v1/realtime/calls", files=fields)
