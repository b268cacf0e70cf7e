"""Measurements of one conversation: stages and memory of its units, and the time to prepare it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.floors import Rates, stage_floors
from benchmarks.inputs import Inputs
from benchmarks.machine import read_memory, reset_peak, settle_memory, unsettle_memory
from benchmarks.rig import Rig
from benchmarks.scripted import (
    WINDOW_SWING,
    Act,
    Plan,
    ScriptedAnswers,
    ScriptedConversation,
    kind_of,
)
from benchmarks.summary import MS_PER_S, ScenarioResult, Unit, by_kind
from core.engine.passes import Task, TaskState, run_alone, run_pass
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import (
    CODES_PER_UNIT,
    Answers,
    ChooseToken,
    Collect,
    DrawCodes,
    EncodeImages,
    LlmForward,
    OpenVoice,
    Request,
    Steps,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream, new_audio_cache
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.modes.prompt_input import EncodedPicture, encode_picture
from MiniCPMO45.processing.mel import (
    CONV_STRIDE,
    HOP_SAMPLES,
    POOL_STEP,
    SAMPLE_RATE_HZ,
    UNIT_SAMPLES,
)
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix
from MiniCPMO45.settings import WindowMode

PICTURE_MARKS = 2  # tokens around a picture
CONTROL_TOKENS = 8  # most per unit: markers, decisions, terminators, an interrupted turn's end
PROFILED_ROWS = 40
NEW_VOICE_S = 6.0
STAGE_OF = {
    EncodeStream: "encode_audio",
    EncodeImages: "encode_vision",
    ChooseToken: "decision",
    DrawCodes: "tts",
    Vocode: "token2wav",
}


class StageClock:
    """Answers the requests of one conversation and measures their time."""

    def __init__(self, answers: Answers, wait: Callable[[], None] | None) -> None:
        """Measure an executor; `wait` synchronises with the device after each request."""
        self.seconds: dict[str, float] = {}  # by stage, since `begin`
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

    def submit(self, requests: Sequence[Request]) -> Collect:
        began_s = time.perf_counter()
        answers = self._answers.submit(requests)()
        if self._wait is not None:
            self._wait()
        stage = STAGE_OF.get(type(requests[0]), "prepare")
        if isinstance(requests[0], LlmForward):
            stage = self._forward
            if stage == "prefill":
                self._forward = "decode"
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began_s
        return lambda: answers


class Conversation:
    def __init__(self, rig: Rig, plan: Plan) -> None:
        """Open the session and feed the prompt; CacheFullError if the plan exceeds the context."""
        self.rig = rig
        self.plan = plan
        self._scripted = ScriptedConversation(rig, plan.script, seed=plan.seed)
        self._inputs = Inputs(plan.picture_size, plan.seed)
        self._clock = StageClock(ScriptedAnswers(rig.executor), rig.wait if plan.waits else None)
        _reserve(self._scripted, plan)
        self._scripted.prepare(self._clock, self._inputs)
        settle_memory()

    def run_unit(self, index: int) -> Unit:
        """Run the script's next unit; BenchmarkError if the unit did not follow the script."""
        scripted, clock, wait = self._scripted, self._clock, self.rig.wait
        device = self.rig.executor.device
        audio, frames = self._inputs.unit()
        act, cuts = scripted.begin_unit()
        reset_peak(device)
        wait()
        prefetch_s, prefetched = self._prefetch(frames)
        clock.begin()
        began_s = time.perf_counter()
        pictures = prefetched if self.plan.prefetches else self.rig.cut(frames)
        clock.seconds["picture"] = time.perf_counter() - began_s
        task = Task(scripted.unit(audio, pictures, act, cuts=cuts))
        first_sound_s: float | None = None
        while not task.has_ended:
            run_pass(clock, [task])
            if task.state is TaskState.EMITTED:
                first_sound_s = first_sound_s or time.perf_counter()
        result: UnitResult = task.take()
        wait()
        answered_s = time.perf_counter()
        requested_s = sum(clock.seconds.values())
        clock.close()
        run_alone(scripted.finalize(), clock)
        wait()
        done_s = time.perf_counter()
        stages_s = {
            **clock.seconds,
            "host": answered_s - began_s - requested_s,
            "answer": answered_s - began_s,
            "finalize": done_s - answered_s,
            "unit": done_s - began_s,
        }
        if self.plan.prefetches:
            stages_s["prefetch"] = prefetch_s
        if not result.is_listen:
            stages_s["first_audio"] = (first_sound_s or answered_s) - began_s
        wave = result.audio_waveform
        return Unit(
            index=index,
            kind=kind_of(act, cuts),
            stages_ms={name: MS_PER_S * value for name, value in stages_s.items()},
            memory=read_memory(device, scripted.session),
            cache_tokens=scripted.session.kv.length,
            text_tokens=result.n_tokens,
            speech_codes=result.n_tts_tokens,
            samples=0 if result.is_listen or wave is None else len(wave),
        )

    def _prefetch(self, frames: Sequence[Image.Image]) -> tuple[float, list[EncodedPicture]]:
        """Encode a unit's pictures ahead, if planned; also return the time."""
        if not self.plan.prefetches:
            return 0.0, []
        began_s = time.perf_counter()
        done = [run_alone(encode_picture(each, 1), self._clock) for each in self.rig.cut(frames)]
        self.rig.wait()
        return time.perf_counter() - began_s, done

    def close(self) -> None:
        unsettle_memory()
        self._scripted.session.close()


def _reserve(scripted: ScriptedConversation, plan: Plan) -> None:
    """Reserve the memory of the whole conversation, so that nothing grows."""
    rig, script, session = scripted.rig, plan.script, scripted.session
    units = plan.units + plan.warm_up + plan.extra
    picture = rig.config.query_num + PICTURE_MARKS if plan.picture_size is not None else 0
    audio_tokens = UNIT_SAMPLES // (HOP_SAMPLES * CONV_STRIDE * POOL_STEP)
    per_unit = picture + audio_tokens + script.text_tokens + CONTROL_TOKENS
    prompt = scripted.prompt_tokens + round(script.voice_sample_s * audio_tokens)
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
    for act in islice(cycle(plan.script.pattern), units):
        spoken = 0 if act is Act.LISTEN else spoken + plan.script.text_tokens + 2 + CODES_PER_UNIT
        longest = max(longest, spoken)
        spoken = 0 if act is Act.SPEAK_LAST else spoken
    return longest


def measure_scenario(
    rig: Rig, name: str, plan: Plan, rates: Rates, profile: Path | None = None
) -> ScenarioResult:
    """Run and measure one conversation; `profile` is a file for one more round of its pattern.

    BenchmarkError if a unit did not follow the script; CacheFullError if the plan exceeds the
    model's context.
    """
    conversation = Conversation(rig, plan)
    try:
        for _ in range(plan.warm_up):
            conversation.run_unit(-1)
        units = tuple(conversation.run_unit(index) for index in range(plan.units))
        if profile is not None:
            _write_profile(conversation, profile)
    finally:
        conversation.close()
    cached = sum(unit.cache_tokens for unit in units) / len(units)
    floors = stage_floors(rig, plan, rates, cached, by_kind(units))
    return ScenarioResult(name, units, floors, plan.most_spread)


def _write_profile(conversation: Conversation, path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    orders = ["self_cpu_time_total"]
    if conversation.rig.executor.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        orders.append("self_device_time_total")
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in conversation.plan.script.pattern:
            conversation.run_unit(-1)
    averages = profiler.key_averages()
    tables = [averages.table(sort_by=order, row_limit=PROFILED_ROWS) for order in orders]
    path.write_text("\n\n".join(tables) + "\n", encoding="utf8")


def measure_preparation(rig: Rig, seed: int, times: int) -> dict[str, list[float]]:
    """Return ms until a session is ready, by kind of voice: `times` of each, after a warm-up."""
    duplex, inputs = rig.unified.duplex, Inputs(None, seed)

    def new_voice() -> np.ndarray:
        return inputs.sound(round(NEW_VOICE_S * SAMPLE_RATE_HZ))

    def steps(session: Session, voice: np.ndarray) -> Steps[None]:
        vocoder = yield OpenVoice(voice, session.sampler.generator)
        yield from duplex.feed_prompt(
            session, duplex_prefix(), duplex_suffix(), voice_sample=voice, vocoder=vocoder
        )

    def prepare_ms(voice: np.ndarray) -> float:
        rig.wait()
        began_s = time.perf_counter()
        session = rig.executor.open_session("prepared")
        run_alone(steps(session, voice), rig.executor)
        rig.wait()
        taken_s = time.perf_counter() - began_s
        session.close()
        return MS_PER_S * taken_s

    known = new_voice()
    new_ms = [prepare_ms(new_voice()) for _ in range(times + 1)]
    prepare_ms(known)
    known_ms = [prepare_ms(known) for _ in range(times + 1)]
    return {"known voice": known_ms[1:], "new voice": new_ms[1:]}
