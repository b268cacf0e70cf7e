"""A prepared duplex conversation with the scripted executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from core.engine.passes import run_alone
from MiniCPMO45.engine.session import Session
from MiniCPMO45.modes.duplex import PrefillResult, UnitResult
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import DuplexSettings
from tests.fakes.scripted import (
    EMBEDDING,
    ROWS_PER_SECOND,
    ROWS_PER_SLICE,
    ScriptedExecutor,
    ToneVoice,
    cached_labels,
)
from tests.model.toy import Toy, prepare

SECOND = np.full(16_000, 0.01, np.float32)
SILENCE = 24_000
AUDIO = [EMBEDDING] * ROWS_PER_SECOND
SLICE = [EMBEDDING] * ROWS_PER_SLICE
SETTINGS = DuplexSettings(
    decode_mode="greedy", force_listen_count=0, text_repetition_penalty=1.0, length_penalty=1.0
)


class Bench:
    """A prepared scripted conversation; `a`, `b`, `c` are words."""

    def __init__(
        self,
        toy: Toy,
        chosen: DuplexSettings = SETTINGS,
        *,
        defaults: DuplexSettings | None = None,
        has_voice: bool = True,
    ) -> None:
        self.tokens: SpecialTokens = toy.tokenizer.special
        self.executor = ScriptedExecutor(len(toy.tokenizer))
        self.duplex = toy.duplex(defaults)
        self.session: Session = self.executor.open_session()
        self.voice = ToneVoice() if has_voice else None
        self.do(prepare(self.duplex, self.session, chosen, self.voice))
        self.head = cached_labels(self.session.kv)
        self.a, self.b, self.c = (toy.tokenizer.encode(w)[0] for w in (" hear", " go", " see"))
        if self.voice is not None:
            self.voice.resets = 0

    def do(self, steps: Any) -> Any:
        return run_alone(steps, self.executor)

    def prefill(
        self,
        *decisions: int,
        audio: np.ndarray | None = SECOND,
        frames: Sequence[Image.Image] = (),
        **options: Any,
    ) -> PrefillResult:
        """Feed a unit's input; its decisions follow the script."""
        self.executor.decisions = list(decisions)
        return self.do(self.duplex.streaming_prefill(self.session, audio, frames, **options))

    def generate(self, force_listen: bool = False) -> UnitResult:
        result = self.do(self.duplex.streaming_generate(self.session, force_listen))
        assert not self.executor.decisions, "decisions nobody asked for"
        return result

    def finalize(self) -> None:
        self.do(self.duplex.close_unit(self.session))

    def unit(self, *decisions: int, force_listen: bool = False, **options: Any) -> UnitResult:
        assert self.prefill(*decisions, **options).success
        result = self.generate(force_listen)
        self.finalize()
        return result

    @property
    def cached(self) -> list[int]:
        """Cached tokens after the system prompt, including pending terminators."""
        labels = [*cached_labels(self.session.kv), *self.session.turn.closing]
        assert labels[: len(self.head)] == self.head
        return labels[len(self.head) :]
