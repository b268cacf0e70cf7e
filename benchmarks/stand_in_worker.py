"""A worker that answers every chunk at once with a second of audio, to measure relays.

`python -m benchmarks.stand_in_worker PORT DOWN_BYTES [CERTIFICATE]`. It implements what the gateway
needs; with a PEM file of certificate and key it serves TLS.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http
import json
import signal
import ssl
import sys
from random import Random

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

HOST = "127.0.0.1"
MAX_BYTES = 8 * 1024 * 1024
SHORT_CHARS = 1_024  # every message but a chunk of sound is shorter
HEALTH = {
    "status": "healthy",
    "worker_status": "idle",
    "model_loaded": True,
    "active_sessions": 0,
    "slots": 64,
}


def result_of(size_bytes: int) -> str:
    fields = {
        "type": "result",
        "is_listen": False,
        "text": "hello",
        "audio_data": "",
        "end_of_turn": False,
        "current_time": 1_000,
        "kv_cache_length": 100,
    }
    noise = base64.b64encode(Random(0).randbytes(size_bytes)).decode()
    fields["audio_data"] = noise[: max(0, size_bytes - len(json.dumps(fields)))]
    return json.dumps(fields)


async def answer(socket: ServerConnection, result: str) -> None:
    with contextlib.suppress(ConnectionClosed):  # the gateway may be killed
        async for text in socket:
            if len(text) > SHORT_CHARS:
                await socket.send(result)
                continue
            kind = json.loads(text).get("type")
            if kind == "prepare":
                await socket.send(json.dumps({"type": "prepared"}))
            elif kind == "stop":
                await socket.send(json.dumps({"type": "stopped", "session_id": "measured"}))
                return


def health(socket: ServerConnection, request: Request) -> Response | None:
    if request.path.startswith("/ws/"):
        return None
    body = json.dumps(HEALTH).encode()
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body))})
    return Response(http.HTTPStatus.OK, "OK", headers, body)


async def main(port: int, down_bytes: int, certificate: str = "") -> None:
    asked_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_end.set)
    result = result_of(down_bytes)
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    async with serve(
        lambda socket: answer(socket, result),
        HOST,
        port,
        ssl=tls,
        process_request=health,
        compression=None,
        max_size=MAX_BYTES,
    ):
        await asked_to_end.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
