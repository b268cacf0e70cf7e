"""LiveKit plugin with camera support: the extra `livekit`.

LiveKit's own GPT-Live client has audio and text; this one sends pictures too. If frames arrive
faster than they are sent, the newest is sent.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from livekit import rtc
from livekit.agents.utils import images
from livekit.plugins.openai.realtime import GPTLiveModel, GPTLiveSession

DEFAULT_URL: Final = "http://localhost:8006/v1"
PERIOD_S: Final = 0.5  # between two pictures: the server's model looks once or twice a second
LONGEST_SIDE: Final = 1_280  # pixels; the model scales larger pictures down anyway


# Any, also as base: the server's checks run without LiveKit.
class LiveModel(GPTLiveModel):  # type: ignore[misc]
    """A `DuplexModel`: pass it to `AgentSession(llm=…)`, and start it with `video_input=True`."""

    def __init__(self, *, base_url: str = DEFAULT_URL, api_key: str = "none", **options: Any):
        """Store the address of the gateway's OpenAI interface; nothing connects.

        `api_key` is one of the server's, if it requires keys; `options` are `GPTLiveModel`'s.
        """
        super().__init__(base_url=base_url, api_key=api_key, **options)

    def session(self) -> LiveSession:
        return LiveSession(self)


class LiveSession(GPTLiveSession):  # type: ignore[misc]
    """A GPT-Live session with a camera."""

    def __init__(self, model: LiveModel) -> None:
        super().__init__(model)
        self._newest: rtc.VideoFrame | None = None
        self._sending: asyncio.Task[None] | None = None

    def push_video(self, frame: rtc.VideoFrame) -> None:
        """Send a frame, unless a newer one replaces it first."""
        self._newest = frame
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_frames())

    async def aclose(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await super().aclose()

    async def _send_frames(self) -> None:
        while (frame := self._newest) is not None:
            self._newest = None
            picture = await asyncio.to_thread(_encoded, frame)
            self.send_event({"type": "session.input_image.append", "image": picture})
            await asyncio.sleep(PERIOD_S)


def _encoded(frame: rtc.VideoFrame) -> str:
    options = images.EncodeOptions(format="JPEG")
    if max(frame.width, frame.height) > LONGEST_SIDE:
        options.resize_options = images.ResizeOptions(
            width=LONGEST_SIDE, height=LONGEST_SIDE, strategy="scale_aspect_fit"
        )
    return base64.b64encode(images.encode(frame, options)).decode()
