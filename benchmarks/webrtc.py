"""Latency of WebRTC compared with WebSocket: `python -m benchmarks.webrtc`."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import statistics
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, cast

import httpx
import numpy as np
import typer
from aiortc import MediaStreamTrack, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack, MediaStreamError
from av import AudioFrame
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from benchmarks.launched import HOST, free_ports
from benchmarks.processes import cpu_s
from benchmarks.relay import running
from benchmarks.summary import format_table
from core.schemas.webrtc import CALLS_PATH
from webrtc.playout import RATE_HZ

PIECE_S: Final = 0.1
EVERY: Final = 10  # pieces; one of them is loud
LOUD: Final = 3_000
START_LIMIT_S: Final = 120.0
JITTER_S: Final = 0.05
PLAYER_S: Final = 0.1  # what a player keeps ahead, so that jitter is not heard
FRAME_S: Final = 0.02
CANDIDATE: Final = re.compile(r"^(a=candidate:\S+ 1 udp \d+ )(\d[\d.]+) (\d+)( typ host.*)$")
SETTLE_S: Final = 2.0  # connecting, and the first pieces, are not counted


@dataclass
class Found:
    delays_ms: list[float] = field(default_factory=list)  # of bursts, until loud
    frames: int = 0  # number of frames due; late: those received late or never
    late: int = 0
    cpu_share: float = 0.0


class Source:
    """A stub of GPT-Live's gateway: audio every 100 ms, one piece in ten loud."""

    def __init__(self) -> None:
        self.sent_s: list[float] = []

    async def send_to(self, socket: ServerConnection) -> None:
        await socket.recv()
        started = {"type": "session.started", "session": {"id": "live_benchmark"}}
        await socket.send(json.dumps(started))
        hearing = asyncio.create_task(self._hear(socket))
        samples = int(RATE_HZ * PIECE_S)
        tone = (np.sin(np.arange(samples) * 0.2) * LOUD * 3).astype("<i2").tobytes()
        begun_s, at = time.monotonic(), 0
        try:
            while not hearing.done():
                await asyncio.sleep(max(0.0, begun_s + at * PIECE_S - time.monotonic()))
                is_loud = at % EVERY == 0
                sound = base64.b64encode(tone if is_loud else bytes(samples * 2)).decode()
                if is_loud:
                    self.sent_s.append(time.monotonic())
                event = {"type": "session.output_audio.delta", "delta": sound}
                await socket.send(json.dumps(event))
                at += 1
        except ConnectionClosed:
            pass
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _hear(self, socket: ServerConnection) -> None:
        async for _ in socket:
            pass


class Receiver:
    """Records when the audio became loud, and which frames were in time."""

    def __init__(self, source: Source) -> None:
        self.found = Found()
        self._source, self._was_loud = source, False
        self._from_s = time.monotonic() + SETTLE_S
        self._arrivals: dict[int, float] = {}

    def receive(self, samples: np.ndarray[Any, Any]) -> None:
        now_s, is_loud = time.monotonic(), int(np.abs(samples).max()) > LOUD
        if is_loud and not self._was_loud and now_s > self._from_s and self._source.sent_s:
            self.found.delays_ms.append((now_s - self._source.sent_s[-1]) * 1_000)
        self._was_loud = is_loud

    def receive_frame(self, frame: AudioFrame) -> None:
        channels = len(frame.layout.channels)
        self.receive(frame.to_ndarray().reshape(-1, channels)[:, 0])
        if time.monotonic() > self._from_s:
            self._arrivals[(frame.pts or 0) // 960] = time.monotonic()

    def judge(self) -> Found:
        """Count what a player with a buffer would have missed."""
        if self._arrivals:
            first, last = min(self._arrivals), max(self._arrivals)
            lags = [at_s - (n - first) * FRAME_S for n, at_s in self._arrivals.items()]
            due_s = statistics.median(lags) + PLAYER_S
            in_time = sum(lag <= due_s for lag in lags)
            self.found.frames = last - first + 1
            self.found.late = self.found.frames - in_time
        return self.found


class Relay(asyncio.DatagramProtocol):
    """One side of a relay between two peers."""

    def __init__(self, loss: float, jitter_s: float) -> None:
        self.other: Relay | None = None
        self.peer: tuple[str, int] | None = None
        self._loss, self._jitter_s, self._random = loss, jitter_s, random.Random(1)
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.peer = addr
        if self._random.random() >= self._loss and self.other is not None:
            delay_s = self._random.random() * self._jitter_s
            asyncio.get_running_loop().call_later(delay_s, self.other.send, data)

    def send(self, data: bytes) -> None:
        if self.peer is not None and self.transport is not None and not self.transport.is_closing():
            self.transport.sendto(data, self.peer)


def through(sdp: str, end: Relay, other: Relay) -> str:
    """Return a description whose only candidate is one end of a relay.

    The other end then sends to the candidate that it replaces.
    """
    assert end.transport is not None
    port, lines, has_one = end.transport.get_extra_info("sockname")[1], list[str](), False
    for line in sdp.splitlines():
        found = CANDIDATE.match(line)
        if found and not has_one:
            has_one, other.peer = True, (found[2], int(found[3]))
            lines.append(f"{found[1]}{found[2]} {port}{found[4]}")
        elif not line.startswith("a=candidate"):
            lines.append(line)
    return "\r\n".join(lines) + "\r\n"


async def over_websocket(source: Source, url: str, seconds: float) -> Found:
    receiver, until_s = Receiver(source), time.monotonic() + seconds + SETTLE_S
    async with connect(url, compression=None, proxy=None) as socket:
        await socket.send(json.dumps({"type": "session.start", "session": {}}))
        async for text in socket:
            event = json.loads(text)
            if event["type"] == "session.output_audio.delta":
                receiver.receive(np.frombuffer(base64.b64decode(event["delta"]), "<i2"))
            if time.monotonic() > until_s:
                break
    return receiver.judge()


async def relayed(sdp: str, near: Relay, far: Relay) -> None:
    """Open both ends of a relay for a description's first candidate."""
    near.other, far.other = far, near
    address = next(found for found in map(CANDIDATE.match, sdp.splitlines()) if found)[2]
    for end in (near, far):
        await asyncio.get_running_loop().create_datagram_endpoint(
            lambda end=end: end,  # type: ignore[misc]
            local_addr=(address, 0),
        )


async def over_webrtc(
    source: Source, pid: int, port: int, seconds: float, network: tuple[float, float]
) -> Found:
    peer, near, far = RTCPeerConnection(), Relay(*network), Relay(*network)
    tasks: list[asyncio.Task[None]] = []
    receivers: list[Receiver] = []

    async def keep(track: MediaStreamTrack) -> None:
        receivers.append(Receiver(source))
        try:
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                receivers[0].receive_frame(frame)
        except MediaStreamError:
            return

    peer.on("track", lambda track: tasks.append(asyncio.create_task(keep(track))))
    peer.addTrack(AudioStreamTrack())
    peer.createDataChannel("oai-events")
    await peer.setLocalDescription(await peer.createOffer())
    await relayed(peer.localDescription.sdp, near, far)
    try:
        sdp = through(peer.localDescription.sdp, far, near)
        async with httpx.AsyncClient(trust_env=False, timeout=START_LIMIT_S) as client:
            url = f"http://{HOST}:{port}{CALLS_PATH}"
            answer = await client.post(url, json={"protocol": "live", "sdp": sdp})
        answer.raise_for_status()
        sdp = through(answer.json()["sdp"], near, far)
        await peer.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        await asyncio.sleep(SETTLE_S)
        used_s = cpu_s(pid)
        await asyncio.sleep(seconds)
        share = (cpu_s(pid) - used_s) / seconds
    finally:
        await peer.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (near, far):
            if end.transport is not None:
                end.transport.close()
    found = receivers[0].judge()
    found.cpu_share = share
    return found


# Share of lost packets, and jitter in s.
NETWORKS: Final = {
    "WebRTC, no jitter": (0.0, 0.0),
    "WebRTC, 50 ms jitter, 0 % lost": (0.0, JITTER_S),
    "WebRTC, 50 ms jitter, 3 % lost": (0.03, JITTER_S),
    "WebRTC, 50 ms jitter, 5 % lost": (0.05, JITTER_S),
}


async def measure(seconds: float) -> dict[str, Found]:
    port = free_ports(2)
    found: dict[str, Found] = {}

    async def fresh(socket: ServerConnection) -> None:
        await sources[-1].send_to(socket)

    sources = [Source()]
    async with serve(fresh, HOST, port, compression=None):
        url = f"ws://{HOST}:{port}/v1/live/sessions"
        found["WebSocket"] = await over_websocket(sources[-1], url, seconds)
        command = ["-m", "webrtc", "--gateway", f"ws://{HOST}:{port}", "--port", str(port + 1)]
        with running("the WebRTC process", command, port + 1, OMNI_LOGGING_LEVEL="WARNING") as pid:
            for name, network in NETWORKS.items():
                sources.append(Source())
                found[name] = await over_webrtc(sources[-1], pid, port + 1, seconds, network)
    return found


def main(seconds: Annotated[float, typer.Option(help="Length of each call, s.")] = 20) -> None:
    rows = []
    for name, found in asyncio.run(measure(seconds)).items():
        delay = f"{statistics.median(found.delays_ms):.0f}" if found.delays_ms else "-"
        late = f"{100 * found.late / found.frames:.1f} %" if found.frames else "-"
        cpu = f"{found.cpu_share:.3f}" if found.frames else "-"
        rows.append([name, delay, late, cpu])
    header = ["way", "delay p50, ms", "frames late or lost", "CPU s per call-second"]
    print(format_table(header, rows))


if __name__ == "__main__":
    typer.run(main)
