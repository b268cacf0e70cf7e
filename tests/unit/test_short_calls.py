"""Live input of all conversations shares two threads, which no large picture takes."""

from __future__ import annotations

import threading
from io import BytesIO

import pytest
from PIL import Image
from pybase64 import b64encode_as_string

from core.images import PictureLimits, decode_wire_picture
from core.schemas.queue import RequestType
from core.serving import duplex_handler
from core.serving.duplex_handler import DuplexHandler
from core.serving.fake_backend import FakeBackend
from core.serving.runtime import CALLS, SHORT_CALLS, WorkerRuntime
from core.serving.slots import Owner
from tests.system.loops import in_loop


def png_base64(size: tuple[int, int]) -> str:
    content = BytesIO()
    Image.new("L", size).save(content, "PNG")
    return b64encode_as_string(content.getvalue())


@in_loop
async def test_a_large_picture_takes_no_thread_of_short_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: list[str] = []

    def decode(data: str, *, allowed: PictureLimits) -> Image.Image:
        picture = decode_wire_picture(data, allowed=allowed)
        pools.append(threading.current_thread().name.rpartition("_")[0])
        return picture

    monkeypatch.setattr(duplex_handler, "decode_wire_picture", decode)
    runtime = WorkerRuntime(FakeBackend, 1)
    await runtime.load()
    try:
        handler = DuplexHandler(runtime, Owner("s", RequestType.OMNI_DUPLEX))
        for size in ((1920, 1080), (1920, 1088)):
            assert (await handler._decoded(png_base64(size))).size == size
    finally:
        runtime.close()
    assert pools == [SHORT_CALLS, CALLS]
