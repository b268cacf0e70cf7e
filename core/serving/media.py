"""Has the pictures and videos of one session decoded elsewhere, unless the session is given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.engine import WorkCancelledError
from core.errors import PictureError
from core.media import FACTS, Media, MediaContent, from_bytes
from core.media_process import MediaProcesses


@dataclass(frozen=True)
class SessionMedia:
    """A `MediaReader` of one session.

    Attributes:
        processes: what decodes.
        is_given_up: the session's work is not wanted any more.
    """

    processes: MediaProcesses
    is_given_up: Callable[[], bool]

    def __call__(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks.

        Raises:
            PictureError: One of them cannot be used.
            AudioError: The sound of a video cannot be used.
            WorkCancelledError: The session's work was given up.
        """
        facts, blobs = self.processes.run(
            "media",
            [item.model_dump(exclude={"data"}) for item in items],
            [item.data.encode() for item in items],
            problem=PictureError,
            check=self._check,
        )
        try:
            return from_bytes(FACTS.validate_python(facts), blobs)
        except ValueError as error:
            raise PictureError("It could not be decoded.") from error

    def _check(self) -> None:
        if self.is_given_up():
            raise WorkCancelledError
