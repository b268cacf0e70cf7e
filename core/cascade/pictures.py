"""Pictures of a duplex call, of which the newest is described when a question is about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from PIL import Image

# This many consecutive pictures come from a camera, which is off after this time without one. Fewer
# were sent on purpose, and questions about them may come at any time.
CAMERA_PICTURES: Final = 3
CAMERA_GAP_S: Final = 5.0  # LiveKit's client sends one each 3 s during silence


@dataclass(frozen=True)
class PrefetchedPicture:
    """An RGB picture sent before its unit, never sliced."""

    picture: Image.Image
    max_slices: int


class SeenPictures:
    """The newest picture, until its camera is off; times are on the clock of received audio."""

    def __init__(self) -> None:
        self._newest: Image.Image | None = None
        self._came_s = 0.0
        self._in_a_row = 0

    def add(self, picture: Image.Image, now_s: float) -> None:
        self._in_a_row = 1 if self._is_old(now_s) else self._in_a_row + 1
        self._newest, self._came_s = picture, now_s

    def newest(self, now_s: float) -> Image.Image | None:
        is_off = self._in_a_row >= CAMERA_PICTURES and self._is_old(now_s)
        return None if is_off else self._newest

    def _is_old(self, now_s: float) -> bool:
        return now_s - self._came_s > CAMERA_GAP_S
