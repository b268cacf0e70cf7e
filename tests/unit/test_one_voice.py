"""A model with one voice says once that the client's is not used; its own sample is no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np

from core.audio import FloatArray
from core.errors import OneVoiceError, VoiceCutError
from core.processors import View, ViewContext

OWN = np.linspace(-0.5, 0.5, 16_000, dtype=np.float32)


def left_out(voice: FloatArray | None, *, has_one_voice: bool, times: int = 1) -> list[object]:
    """Bring a voice so many times; return what it was told was left out."""
    executor = SimpleNamespace(voices=SimpleNamespace(has_one_voice=has_one_voice))
    model = SimpleNamespace(executor=executor)
    view = View(cast(ViewContext, SimpleNamespace(model=model, default_voice=OWN)))
    found: list[object] = []
    for _ in range(times):
        view._check_voice(voice)
        found += view.take_notices()
    return found


def test_it_is_said_once_that_another_voice_is_not_used() -> None:
    [problem] = left_out(OWN[::-1].copy(), has_one_voice=True, times=2)
    assert isinstance(problem, OneVoiceError)


def test_nothing_is_said_without_need() -> None:
    assert not left_out(None, has_one_voice=True)
    assert not left_out(OWN, has_one_voice=True)
    assert not left_out(OWN[::-1].copy(), has_one_voice=False)


def test_of_a_long_voice_it_is_said_how_much_is_used() -> None:
    [problem] = left_out(np.tile(OWN, 17), has_one_voice=False, times=2)
    assert isinstance(problem, VoiceCutError)
    assert problem.message == (
        "The voice sample lasts 17.00 s; replies are spoken with its first 16.88 s."
    )
    assert not left_out(np.tile(OWN, 16), has_one_voice=False)
