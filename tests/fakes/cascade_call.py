"""A call over scripted parts, second by second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.audio import FloatArray
from core.cascade.duplex import CascadeDuplexView
from core.cascade.parts import Parts
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.serving.transcribers import LoopThreads
from tests.fakes.cascade_parts import ScriptedLanguageModel

QUESTION = "What is the capital of France?"
ANSWER = "It is Paris, of course, my dear friend. It lies on the Seine."
QUIET, VOICE = 0.0, 0.5


def second(*levels: float) -> FloatArray:
    """Return one second made of equal parts of these levels."""
    length = INPUT_SAMPLE_RATE_HZ // len(levels)
    return np.concatenate([np.full(length, level, np.float32) for level in levels])


SILENCE, SPEECH, ENDS, JUST_ENDS, SHORT = (
    second(QUIET),
    second(VOICE),
    second(VOICE, QUIET),
    second(*[VOICE] * 9, QUIET),
    second(VOICE, *[QUIET] * 9),
)


class Call:
    """A call that has begun, and what its units were."""

    def __init__(self, parts: Parts) -> None:
        self.view = CascadeDuplexView(parts, LoopThreads())
        self.view.patience_s = 60.0  # so that no verdict depends on how fast the machine is
        assert isinstance(parts.language_model, ScriptedLanguageModel)
        self.language_model = parts.language_model
        self.early: list[FloatArray] = []
        self.units: list[DuplexGenerateResult] = []

    async def hear(self, *seconds: FloatArray, **more: Any) -> list[DuplexGenerateResult]:
        """Hear seconds; return what became of them."""
        made = []
        for samples in seconds:
            frames: Sequence[Any] = more.get("frames", ())
            unit = await self.view.unit(
                samples,
                frames,
                force_listen=more.get("force_listen", False),
                force_speak=more.get("force_speak", False),
                due_s=None,
                on_sound=self._keep,
            )
            assert unit is not None
            await self.view.finish_unit()
            made.append(unit)
        self.units += made
        return made

    async def until_quiet(self) -> str:
        """Hear silence until the reply has ended; return what was said."""
        said = self.units[-1].text
        while not self.units[-1].is_listen and not self.units[-1].end_of_turn:
            said += (await self.hear(SILENCE))[0].text
        return said

    async def _keep(self, sound: FloatArray) -> None:
        self.early.append(sound)


async def call(parts: Parts, **config: Any) -> Call:
    begun = Call(parts)
    settings = DuplexConfig(**{"force_listen_count": 0, **config})
    await begun.view.begin("Be kind.", config=settings)
    return begun


def modes(units: Sequence[DuplexGenerateResult]) -> str:
    return "".join("L" if unit.is_listen else "S" for unit in units)


def seconds_of(unit: DuplexGenerateResult) -> float:
    return len(unit.audio_data or b"") / 4 / OUTPUT_SAMPLE_RATE_HZ
