"""Time to prepare a conversation, with a known and with a new voice."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.machine import waiter
from benchmarks.rig import Rig
from core.engine.passes import run_alone
from MiniCPMO45.engine.policies import UnitPolicy
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import OpenVoice, Steps
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix

VOICE_S = 6.0
MS_PER_S = 1_000.0


class Preparing:
    def __init__(self, rig: Rig, seed: int) -> None:
        tokens, device = rig.tokenizer.special, rig.executor.device
        policy = UnitPolicy(tokens, device)
        self._rig = rig
        self._duplex = DuplexCapability(rig.config, rig.tokenizer, policy)
        self._wait: Callable[[], None] = waiter(device)
        self._inputs = Inputs(None, seed)

    def measure(self, times: int) -> dict[str, list[float]]:
        """Return milliseconds by kind of preparation.

        `times` is the number of each, after one for warm-up.
        """
        known = self._voice()
        found: dict[str, list[float]] = {"known voice": [], "new voice": []}
        for _ in range(times + 1):
            found["new voice"].append(self._prepare(self._voice()))
        self._prepare(known)
        for _ in range(times + 1):
            found["known voice"].append(self._prepare(known))
        return {name: values[1:] for name, values in found.items()}

    def _voice(self) -> np.ndarray:
        return self._inputs.sound(round(VOICE_S * SAMPLE_RATE_HZ))

    def _prepare(self, voice: np.ndarray) -> float:
        self._wait()
        began_s = time.perf_counter()
        session = self._rig.executor.open_session("prepared")
        run_alone(self._steps(session, voice), self._rig.executor)
        self._wait()
        taken_s = time.perf_counter() - began_s
        session.close()
        return MS_PER_S * taken_s

    def _steps(self, session: Session, voice: np.ndarray) -> Steps[None]:
        vocoder = yield OpenVoice(voice, session.sampler.generator)
        yield from self._duplex.feed_prompt(
            session, duplex_prefix(), duplex_suffix(), voice_sample=voice, vocoder=vocoder
        )
