"""The gateway's longest stall while clients flood it: `python -m benchmarks.floods`."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import typer

from benchmarks.summary import MS_PER_S, format_table
from config import Settings
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB
from gateway import create_app, settle
from gateway_modules.web.server import GatewayConfig, GatewayServer

HOST: Final = "127.0.0.1"
NO_WORKER: Final = ("127.0.0.1:9",)  # the port of `discard`: no server answers
BEAT_S: Final = 0.002
FLOOD_S: Final = 3.0
SOCKETS: Final = ("/ws/streaming/s_1", "/ws/chat", "/ws/half_duplex/h_1", "/ws/duplex/adx_1")
COMPLETIONS: Final = "/v1/chat/completions"
SPEECH: Final = "/v1/audio/speech"
TEXT, PING, PONG = 0x81, 0x89, 0x8A
CONTINUED_TEXT, FRAGMENT = 0x01, 0x00
MASKED: Final = 0x80


def frame(head: int, payload: bytes = b"") -> bytes:
    """Return a frame with a zero mask. Source: RFC 6455, section 5.2."""
    size = len(payload)
    if size < 126:
        return bytes([head, MASKED | size]) + bytes(4) + payload
    return bytes([head, MASKED | 127]) + size.to_bytes(8, "big") + bytes(4) + payload


def handshake(path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def post(path: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def frames(path: str, first: bytes, more: bytes) -> Iterator[bytes]:
    """Yield a handshake, a beginning, and then the same frames endlessly."""
    yield handshake(path)
    yield first
    while True:
        yield more * 2_000


def bombs() -> Iterator[bytes]:
    """Yield one message of nested lists; each connection uses the next socket."""
    nested = b'{"type":"prepare","x":[' + b"[]," * (2 * MIB) + b"[]]}"
    path = SOCKETS[int(time.monotonic() * 10) % len(SOCKETS)]
    yield handshake(path)
    yield frame(TEXT, nested)


def chunks() -> Iterator[bytes]:
    yield f"POST /api/chat HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    while True:
        yield b"1\r\nx\r\n" * 2_000


def conversation(media: int, letter: bytes = b"A") -> bytes:
    """Return a request of the largest size with this number of videos in its history."""
    size = CHAT_SOCKET_LIMIT_BYTES // media - MIB // 4
    items = b",".join(
        b'{"type":"video","data":"' + letter * (size // len(letter)) + b'"}' for _ in range(media)
    )
    messages = b'{"role":"user","content":[' + items + b"]},"
    messages += b'{"role":"assistant","content":"Yes."},{"role":"user","content":"Why?"}'
    return b'{"messages":[' + messages + b"]"


def completion(size_bytes: int) -> bytes:
    sound = b'{"type":"input_audio","input_audio":{"format":"wav","data":"' + b"A" * size_bytes
    message = b'{"role":"user","content":[' + sound + b'"}}]}'
    return b'{"model":"x","messages":[' + message + b"]}"


def upload(path: str, size_bytes: int) -> bytes:
    """Return a form with a file of this size that is no audio."""
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = head + b"\xff" * size_bytes + b"\r\n--b--\r\n"
    return post(path, body, "multipart/form-data; boundary=b")


def turn(message: bytes) -> Iterator[bytes]:
    yield handshake(SOCKETS[0])
    yield frame(TEXT, message + b',"type":"prefill"}')


FLOODS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "silence": lambda: iter(()),
    "empty fragments": lambda: frames(SOCKETS[0], frame(CONTINUED_TEXT), frame(FRAGMENT)),
    "pings": lambda: frames(SOCKETS[2], b"", frame(PING, b"x" * 100)),
    "pongs": lambda: frames(SOCKETS[3], b"", frame(PONG)),
    "short messages": lambda: frames(SOCKETS[1], b"", frame(TEXT, b"{}")),
    "nested lists, sockets": bombs,
    "nested lists, HTTP": lambda: iter([post("/api/chat", b"[" + b"[]," * (2 * MIB))]),
    "no UTF-8": lambda: iter([post("/api/chat", b"\xff" * (16 * MIB))]),
    "a long picture": lambda: iter([post("/api/chat", b'{"x":"' + b"A" * (32 * MIB) + b'"}')]),
    "a long video, streaming": lambda: turn(conversation(1)),
    "long videos, streaming": lambda: turn(conversation(8)),
    "no ASCII, streaming": lambda: turn(conversation(1, "汉".encode())),
    "a long video, HTTP": lambda: iter([post("/api/chat", conversation(1) + b"}")]),
    "a long sound, completions": lambda: iter([post(COMPLETIONS, completion(32 * MIB))]),
    "nested lists, completions": lambda: iter([post(COMPLETIONS, b"[" + b"[]," * (2 * MIB))]),
    "a long text, speech": lambda: iter([post(SPEECH, b'{"input":"' + b"A" * (32 * MIB))]),
    "a long sound, upload": lambda: iter([upload("/api/assets/ref_audio", 32 * MIB)]),
    "chunks of a byte": chunks,
    "requests in a row": lambda: iter([b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000]),
}


def attack(name: str, port: int) -> None:
    """Flood a gateway for some time, one connection after the other."""
    end_s = time.monotonic() + FLOOD_S
    while time.monotonic() < end_s:
        try:
            with socket.create_connection((HOST, port), timeout=FLOOD_S) as connection:
                _flood(connection, FLOODS[name](), end_s)
        except OSError:
            continue  # the gateway has had enough of this one


def _flood(connection: socket.socket, blocks: Iterator[bytes], end_s: float) -> None:
    for block in blocks:
        connection.sendall(block)
        if block.startswith(b"GET /ws"):
            connection.recv(MIB)
        if time.monotonic() > end_s:
            return
    connection.settimeout(max(0.1, end_s - time.monotonic()))
    while time.monotonic() < end_s and connection.recv(MIB):
        continue


async def stall_of(name: str, client: asyncio.subprocess.Process) -> float:
    assert client.stdin and client.stdout
    client.stdin.write(f"{name}\n".encode())
    ended = asyncio.ensure_future(client.stdout.readline())
    longest_s = 0.0
    while not ended.done():
        before_s = time.process_time()
        await asyncio.sleep(BEAT_S)
        longest_s = max(longest_s, time.process_time() - before_s)
    assert ended.result().decode() == f"{name}\n", "the client has ended"
    return longest_s * MS_PER_S


async def measured(folder: Path, names: list[str]) -> dict[str, float]:
    settings = Settings.model_validate({"service": {"data_dir": folder, "https": False}})
    app = create_app(settings, NO_WORKER)
    connections = app.state.gateway.connections
    config = GatewayConfig(app, HOST, 0, connections=connections, heartbeat_s=20.0)
    server = GatewayServer(config, drain=lambda: asyncio.sleep(0))
    settle()
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(BEAT_S)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.floods", "--port", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        return {name: await stall_of(name, client) for name in names}
    finally:
        client.kill()
        await client.wait()
        server.should_exit = True
        await serving
        gc.unfreeze()


def main(port: int = typer.Option(0, help="Be the client of the gateway there.")) -> None:
    if port:
        for line in sys.stdin:
            attack(line.strip(), port)
            print(line, end="", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        stalls_ms = asyncio.run(measured(Path(folder), list(FLOODS)))
    rows = [[name, f"{stall_ms:.1f}"] for name, stall_ms in stalls_ms.items()]
    print(format_table(["flood", "longest stall, ms"], rows))


if __name__ == "__main__":
    typer.run(main)
