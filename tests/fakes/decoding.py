"""Decodes media in the process of the test, where a child process takes a second to start.

That a child's results and refusals are the same is seen in `tests/unit/test_media_process.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.errors import BadPayloadError, OmniError
from core.media import TASKS
from core.media_process import MediaProcesses
from gateway_modules.voices import DECODERS, AudioDecoder


class MediaHere(MediaProcesses):
    """Keeps no spare process."""

    def run(
        self,
        task: str,
        head: object,
        blobs: Sequence[bytes],
        *,
        problem: type[BadPayloadError],
        check: Callable[[], object] = lambda: None,
    ) -> tuple[Any, list[bytes]]:
        with self._turns:
            check()
            try:
                return TASKS[task](head, blobs)
            except BadPayloadError:
                raise
            except OmniError as error:
                raise problem(error.message) from error


class DecoderHere(AudioDecoder):
    """As many at once as a gateway decodes."""

    def __init__(self) -> None:
        self._processes = MediaHere(at_once=DECODERS)
