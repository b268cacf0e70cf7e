"""One measured duplex conversation: warm-up, units, times and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from benchmarks.inputs import Inputs
from benchmarks.machine import (
    read_memory,
    reset_peak,
    settle_memory,
    unsettle_memory,
    waiter,
)
from benchmarks.rig import Rig
from benchmarks.scripted import Act, ScriptedAnswers
from benchmarks.stage_clock import StageClock
from benchmarks.summary import Unit
from benchmarks.talker import WINDOW_SWING, Script, Talker, acts_of, kind_of
from core.engine.passes import run_alone, stream_alone
from MiniCPMO45.engine.steps import CODES_PER_UNIT
from MiniCPMO45.model.audio_encoder import new_audio_cache
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.modes.prompt_input import EncodedPicture, encode_picture
from MiniCPMO45.processing.mel import CONV_STRIDE, HOP_SAMPLES, POOL_STEP, UNIT_SAMPLES
from MiniCPMO45.settings import WindowMode

PICTURE_MARKS = 2  # tokens around a picture
CONTROL_TOKENS = 8  # most per unit: markers, decisions, terminators, an interrupted turn's end
MS_PER_S = 1_000.0


@dataclass(frozen=True)
class Plan:
    """Plan of a measured conversation.

    Attributes:
        units: measured units.
        warm_up: units before them.
        extra: further units, for a profile.
        picture_size: width and height of each unit's picture; None for audio only.
        looks_ahead: pictures are encoded before their unit's audio is complete.
        waits: synchronise with the device after each stage, to measure stages separately.
        seed: of inputs and samples.
        most_spread: limit of the ratio of 99th percentile and median; None for no limit.
    """

    script: Script
    units: int
    warm_up: int = 0
    extra: int = 0
    picture_size: tuple[int, int] | None = None
    looks_ahead: bool = False
    waits: bool = True
    seed: int = 0
    most_spread: float | None = None


class Conversation:
    def __init__(self, rig: Rig, plan: Plan) -> None:
        """Open the session, reserve its memory and feed the prompt.

        Raises:
            CacheFullError: the plan exceeds the model's context.
        """
        self.rig = rig
        self.plan = plan
        self.wait = waiter(rig.executor.device)
        self.talker = Talker(rig, plan.script, seed=plan.seed)
        self._inputs = Inputs(plan.picture_size, plan.seed)
        answers = ScriptedAnswers(rig.executor, None)
        self._clock = StageClock(answers, self.wait if plan.waits else _no_wait)
        _reserve(self.talker, plan)
        self.talker.prepare(self._clock, self._inputs)
        settle_memory()

    def measure(self) -> Iterator[Unit]:
        """Run the warm-up, then yield every measured unit."""
        for _ in range(self.plan.warm_up):
            self.run_unit(-1)
        for index in range(self.plan.units):
            yield self.run_unit(index)

    def run_unit(self, index: int) -> Unit:
        """Run the script's next unit.

        Raises:
            BenchmarkError: the unit did not follow the script.
        """
        talker, device, clock = self.talker, self.rig.executor.device, self._clock
        audio, frames = self._inputs.unit()
        act, cuts = talker.begin_unit()
        reset_peak(device)
        self.wait()
        look_s, seen = self._look_ahead(frames)
        clock.begin()
        began_s = time.perf_counter()
        pictures = seen if self.plan.looks_ahead else self.rig.cut(frames)
        clock.seconds["picture"] = time.perf_counter() - began_s
        steps = stream_alone(talker.unit(audio, pictures, act, cuts=cuts), clock)
        heard_s: float | None = None
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: UnitResult = end.value
                break
            heard_s = heard_s or time.perf_counter()
        self.wait()
        answered_s = time.perf_counter()
        clock.close()
        run_alone(talker.finalize(), clock)
        self.wait()
        done_s = time.perf_counter()
        stages_s = {
            **clock.seconds,
            "host": answered_s - began_s - _requested_s(clock.seconds),
            "answer": answered_s - began_s,
            "finalize": done_s - answered_s,
            "unit": done_s - began_s,
        }
        if self.plan.looks_ahead:
            stages_s["look"] = look_s
        if not result.is_listen:
            stages_s["first_audio"] = (heard_s or answered_s) - began_s
        wave = result.audio_waveform
        return Unit(
            index=index,
            kind=kind_of(act, cuts),
            stages_ms={name: MS_PER_S * value for name, value in stages_s.items()},
            memory=read_memory(device, talker.session),
            cache_tokens=talker.session.kv.length,
            text_tokens=result.n_tokens,
            speech_codes=result.n_tts_tokens,
            samples=0 if result.is_listen or wave is None else len(wave),
        )

    def _look_ahead(self, frames: Sequence[Image.Image]) -> tuple[float, list[EncodedPicture]]:
        """Encode a unit's pictures ahead, if planned; also return the time."""
        if not self.plan.looks_ahead:
            return 0.0, []
        began_s = time.perf_counter()
        seen = [run_alone(encode_picture(each, 1), self._clock) for each in self.rig.cut(frames)]
        self.wait()
        return time.perf_counter() - began_s, seen

    def close(self) -> None:
        unsettle_memory()
        self.talker.close()


def _no_wait() -> None:
    return None


def _requested_s(seconds: dict[str, float]) -> float:
    return sum(value for stage, value in seconds.items() if stage != "finalize")


def _reserve(talker: Talker, plan: Plan) -> None:
    """Reserve the memory of the whole conversation, so that nothing grows."""
    rig, script, session = talker.rig, plan.script, talker.session
    units = plan.units + plan.warm_up + plan.extra
    picture = rig.config.query_num + PICTURE_MARKS if plan.picture_size is not None else 0
    audio_tokens = UNIT_SAMPLES // (HOP_SAMPLES * CONV_STRIDE * POOL_STEP)
    per_unit = picture + audio_tokens + script.text_tokens + CONTROL_TOKENS
    prompt = talker.prompt_tokens + round(script.voice_sample_s * audio_tokens)
    window = script.settings.window
    longest = prompt + units * per_unit
    if window.mode is WindowMode.BASIC:
        longest = min(longest, window.basic_high_tokens + WINDOW_SWING)
    session.kv.reserve(longest)
    positions = rig.config.tts_config.max_position_embeddings
    session.speech.kv.reserve(min(_longest_turn(plan, units), positions))
    executor, audio = rig.executor, rig.config.audio_config
    cache = new_audio_cache(audio, device=executor.device, dtype=executor.dtype)
    cache.reserve(audio.max_source_positions)
    session.audio_input.cache = cache


def _longest_turn(plan: Plan, units: int) -> int:
    spoken, longest = 0, 0
    for act in acts_of(plan.script.pattern, units):
        spoken = 0 if act is Act.LISTEN else spoken + plan.script.text_tokens + 2 + CODES_PER_UNIT
        longest = max(longest, spoken)
        spoken = 0 if act is Act.SPEAK_LAST else spoken
    return longest
