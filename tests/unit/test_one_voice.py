"""A model with one voice says once that the client's is not used; its own sample is no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from core.audio import FloatArray, encode_wire_audio
from core.processors import DuplexView
from core.schemas.duplex import Prepare
from core.serving.backend import OneVoiceError, Signals, VoiceCutError
from core.serving.real_talks import RealDuplexTalk

USED_S = 2.0
OWN = np.linspace(-0.5, 0.5, 16_000, dtype=np.float32)


class View:
    """Looks like a view of a model that may have one voice."""

    prompt_tokens = 3
    kv_cache_length = 3

    def __init__(self, *, has_one_voice: bool) -> None:
        used_s = None if has_one_voice else USED_S
        model = SimpleNamespace(has_one_voice=has_one_voice, voice_used_s=used_s)
        self.context = SimpleNamespace(model=model, default_voice=OWN)

    def prepare(self, *given: Any, **named: Any) -> str:
        """Prepare nothing."""
        return "prompt"


def left_out(voice: FloatArray | None, *, has_one_voice: bool, times: int = 1) -> list[object]:
    """Prepare a conversation so many times; return what it said was left out."""
    view = cast(DuplexView, View(has_one_voice=has_one_voice))
    talk = RealDuplexTalk(view, Signals())
    values = {} if voice is None else {"ref_audio_base64": encode_wire_audio(voice)}
    message = Prepare.model_validate({"type": "prepare", **values})
    return [problem for _ in range(times) for problem in talk.prepare(message).left_out]


def test_it_is_said_once_that_another_voice_is_not_used() -> None:
    [problem] = left_out(OWN[::-1].copy(), has_one_voice=True, times=2)
    assert isinstance(problem, OneVoiceError)


def test_nothing_is_said_without_need() -> None:
    assert not left_out(None, has_one_voice=True)
    assert not left_out(OWN, has_one_voice=True)
    assert not left_out(OWN[::-1].copy(), has_one_voice=False)


def test_of_a_long_voice_it_is_said_how_much_is_used() -> None:
    [problem] = left_out(np.tile(OWN, 3), has_one_voice=False, times=2)
    assert isinstance(problem, VoiceCutError)
    assert problem.message == (
        "The voice sample lasts 3.00 s; replies are spoken with its first 2.00 s."
    )
    assert not left_out(np.tile(OWN, 2), has_one_voice=False)
