"""Time of each stage of a unit, measured at the answers to its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from MiniCPMO45.engine.steps import (
    Answers,
    ChooseToken,
    DrawCodes,
    EncodeImages,
    LlmForward,
    Request,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream

STAGE_OF = {
    EncodeStream: "encode_audio",
    EncodeImages: "encode_vision",
    ChooseToken: "decision",
    DrawCodes: "tts",
    Vocode: "token2wav",
}


class StageClock:
    """Answers the requests of one conversation and measures their time.

    Attributes:
        seconds: by stage, since `begin`.
    """

    def __init__(self, answers: Answers, wait: Callable[[], None]) -> None:
        """Measure an executor.

        Args:
            answers: the executor.
            wait: synchronises with the device.
        """
        self.seconds: dict[str, float] = {}
        self._answers = answers
        self._wait = wait
        self._forward = "prefill"

    def begin(self) -> None:
        """Start a unit, whose first stage is the prefill of its input."""
        self.seconds = {}
        self._forward = "prefill"

    def close(self) -> None:
        """Switch to the stage after the answer."""
        self._forward = "finalize"

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        began_s = time.perf_counter()
        answers = self._answers.answer(requests)
        self._wait()
        stage = self._stage(requests[0])
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began_s
        return answers

    def _stage(self, request: Request) -> str:
        if not isinstance(request, LlmForward):
            return STAGE_OF.get(type(request), "prepare")
        stage = self._forward
        if stage == "prefill":
            self._forward = "decode"
        return stage
