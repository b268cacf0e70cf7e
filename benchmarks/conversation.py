"""One measured duplex conversation: warm-up, units, times and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch
from PIL import Image

from benchmarks.machine import read_memory, reset_peak, waiter
from benchmarks.rig import Rig
from benchmarks.scripted import Act, ScriptedAnswers, ScriptedPolicy, text_ids
from benchmarks.summary import Unit
from MiniCPMO45.audio_cache import new_audio_cache
from MiniCPMO45.compat import Compat
from MiniCPMO45.configuration_minicpmo import StreamTiming
from MiniCPMO45.duplex import DuplexCapability
from MiniCPMO45.prompts import DUPLEX_SUFFIX, duplex_prefix
from MiniCPMO45.session import Session
from MiniCPMO45.settings import DuplexSettings
from MiniCPMO45.speech import CODES_PER_UNIT
from MiniCPMO45.steps import run_alone
from MiniCPMO45.unit_results import PrefillResult, UnitResult

PICTURE_MARKS = 2  # tokens around a picture
CONTROL_TOKENS = 8  # of a unit at most: its own marks, decisions, terminators, a cut turn's end
NOISE_LEVEL = 0.05  # of the input audio, full scale 1
TILE = 8  # pixels; pictures are coloured squares of this size


class BenchmarkError(RuntimeError):
    """A unit did not do what it was told."""


@dataclass(frozen=True)
class Plan:
    """What a conversation consists of.

    Attributes:
        units: measured units.
        warm_up: units before them.
        extra: units that may follow, for a profile.
        pattern: what the units do, repeated.
        text_tokens: text ids of a speaking unit.
        picture_size: width and height of each unit's picture; None for sound alone.
        voice_sample_s: seconds of sound in the system prompt.
        waits: wait for the device after each stage, so that stages are told apart.
        seed: of inputs and draws.
    """

    units: int
    warm_up: int
    extra: int
    pattern: tuple[Act, ...]
    text_tokens: int
    picture_size: tuple[int, int] | None
    voice_sample_s: float
    waits: bool
    seed: int


class Conversation:
    """A prepared session and its script."""

    def __init__(self, rig: Rig, plan: Plan) -> None:
        """Open the session, take all its memory and feed the prompt.

        Raises:
            CacheFullError: the plan is longer than the model's context.
        """
        executor = rig.executor
        wait = waiter(executor.device)
        eos = rig.config.tts_config.speech_eos_id
        tokens = rig.tokenizer.special
        words = text_ids(rig.tokenizer, plan.text_tokens)
        self.rig = rig
        self.plan = plan
        self.wait: Callable[[], None] = wait
        self.policy = ScriptedPolicy(tokens, executor.device, Compat(), words)
        self.duplex = DuplexCapability(rig.config, rig.tokenizer, self.policy, compat=Compat())
        self.answers = ScriptedAnswers(executor, eos, wait if plan.waits else None)
        self.session = executor.open_session("benchmark", seed=plan.seed)
        self._random = np.random.default_rng(plan.seed)
        self._acts = cycle(plan.pattern)
        self._prepare()

    def measure(self) -> Iterator[Unit]:
        """Run the warm-up, then yield every measured unit as it is done."""
        for _ in range(self.plan.warm_up):
            self.run_unit(-1)
        for index in range(self.plan.units):
            yield self.run_unit(index)

    def run_unit(self, index: int) -> Unit:
        """Run the script's next unit.

        Raises:
            BenchmarkError: it said more or less than the script.
        """
        session, duplex, device = self.session, self.duplex, self.rig.executor.device
        audio, frames = self._input()
        act = next(self._acts)
        self.policy.begin(act)
        cuts = act is Act.LISTEN and not session.turn.has_ended
        reset_peak(device)
        self.wait()
        marks = [time.perf_counter()]
        prefill = run_alone(duplex.prefill(session, audio, frames), self.answers)
        self._mark(marks)
        result = run_alone(duplex.generate(session, force_listen=cuts), self.answers)
        self._mark(marks)
        run_alone(duplex.finalize(session), self.answers)
        self._mark(marks)
        self._check(act, prefill, result)
        wave = result.audio_waveform
        return Unit(
            index=index,
            kind=_kind(act, cuts),
            stages_ms=_stages_ms(prefill, result, marks),
            memory=read_memory(device, session),
            cache_tokens=session.kv.length,
            text_tokens=result.n_tokens,
            speech_codes=result.n_tts_tokens,
            samples=0 if result.is_listen or wave is None else len(wave),
        )

    def _prepare(self) -> None:
        rig, plan, session = self.rig, self.plan, self.session
        units = plan.units + plan.warm_up + plan.extra
        _reserve(rig, session, plan, units)
        n_samples = round(plan.voice_sample_s * StreamTiming().sample_rate_hz)
        vocoder = rig.executor.vocoder
        assert vocoder is not None, "the rig is built with a vocoder"
        with torch.inference_mode():
            stream = vocoder.new_state(rig.voice, session.sampler.generator)
        steps = self.duplex.prepare(
            session,
            duplex_prefix(),
            DUPLEX_SUFFIX,
            settings=DuplexSettings(force_listen_count=0),
            voice_sample=self._noise(n_samples) if n_samples else None,
            vocoder=stream,
        )
        run_alone(steps, self.answers)

    def _mark(self, marks: list[float]) -> None:
        self.wait()
        marks.append(time.perf_counter())

    def _input(self) -> tuple[np.ndarray, tuple[Image.Image, ...]]:
        audio = self._noise(StreamTiming().unit_samples)
        if self.plan.picture_size is None:
            return audio, ()
        width, height = self.plan.picture_size
        tiles = self._random.integers(0, 256, (height // TILE, width // TILE, 3), dtype=np.uint8)
        return audio, (Image.fromarray(tiles).resize((width, height), Image.Resampling.NEAREST),)

    def _noise(self, n_samples: int) -> np.ndarray:
        return (NOISE_LEVEL * self._random.standard_normal(n_samples)).astype(np.float32)

    def _check(self, act: Act, prefill: PrefillResult, result: UnitResult) -> None:
        listens = act is Act.LISTEN
        n_text = self.plan.text_tokens + (act is Act.SPEAK_LAST)  # the turn's end is spoken, too
        expected = (0, 0) if listens else (n_text, CODES_PER_UNIT)
        found = (result.n_tokens, result.n_tts_tokens)
        if not prefill.success or result.is_listen != listens or found != expected:
            raise BenchmarkError(
                f"a unit told to {act.name} gave {found} text tokens and codes instead of "
                f"{expected} (prefill: {prefill.reason or 'success'})"
            )
        wave = result.audio_waveform
        if wave is None or not np.isfinite(wave).all():
            raise BenchmarkError("a unit's sound is missing or not finite")


def acts_of(plan: Plan, count: int) -> tuple[Act, ...]:
    """Return what the first `count` units do."""
    return tuple(islice(cycle(plan.pattern), count))


def _reserve(rig: Rig, session: Session, plan: Plan, units: int) -> None:
    """Take all memory the conversation will need, so that nothing has to grow on the way."""
    picture = rig.config.query_num + PICTURE_MARKS if plan.picture_size is not None else 0
    heard = StreamTiming().unit_samples // (
        StreamTiming().hop_samples * StreamTiming().mel_frames_per_embedding
    )
    per_unit = picture + heard + plan.text_tokens + CONTROL_TOKENS
    prompt = len(rig.tokenizer.encode(duplex_prefix() + DUPLEX_SUFFIX))
    sample = round(plan.voice_sample_s * heard)
    session.kv.reserve(prompt + sample + units * per_unit)
    spoken, longest = 0, 0
    for act in acts_of(plan, units):
        spoken = 0 if act is Act.LISTEN else spoken + plan.text_tokens + 2 + CODES_PER_UNIT
        longest = max(longest, spoken)
        spoken = 0 if act is Act.SPEAK_LAST else spoken
    session.speech.kv.reserve(longest)
    executor, audio = rig.executor, rig.config.audio_config
    session.hearing.cache = new_audio_cache(
        audio,
        device=executor.device,
        dtype=executor.dtype,
        capacity_frames=audio.max_source_positions,
    )


def _kind(act: Act, cuts: bool) -> str:
    if act is Act.LISTEN:
        return "listen, cut" if cuts else "listen"
    return "speak" if act is Act.SPEAK else "speak, end"


def _stages_ms(prefill: PrefillResult, result: UnitResult, marks: list[float]) -> dict[str, float]:
    """Milliseconds per stage; `marks` are the seconds at start and after each of three calls."""
    start, fed, answered, done = marks
    seconds = {
        "vision_process": prefill.cost_vision_process,
        "vision_embed": prefill.cost_vision_embed,
        "audio_process": prefill.cost_audio_process,
        "audio_embed": prefill.cost_audio_embed,
        "feed": prefill.cost_audio_feed + prefill.cost_vision_feed,
        "prefill": fed - start,
        "llm": result.cost_llm,
        "tts_prep": result.cost_tts_prep,
        "tts": result.cost_tts,
        "token2wav": result.cost_token2wav,
        "generate": answered - fed,
        "finalize": done - answered,
        "answer": answered - start,
        "unit": done - start,
    }
    return {name: 1000.0 * value for name, value in seconds.items()}
