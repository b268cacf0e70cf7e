"""Conversations with the loaded model, many concurrently and faster than real time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random
from typing import TypeVar

import numpy as np

from core.engine.passes import Task, run_pass
from core.processors.content import override
from core.processors.turns import open_voice
from core.processors.unified import UnifiedProcessor
from core.schemas.duplex_calls import DuplexConfig
from MiniCPMO45.engine.policies import GenerationSettings
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import OpenVoice, Steps
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.modes.prompt_input import PrefillOptions, render_question
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import Content, Message
from MiniCPMO45.processing.prompts import DUPLEX_SYSTEM_PROMPT, duplex_prefix, duplex_suffix
from MiniCPMO45.token2wav.voices import resample
from training.nano.bank import Samples
from training.nano.domain.catalogue import answer, words_of
from training.nano.domain.facts import ROLES, draw_facts, system_text
from training.nano.domain.kinds import Context, Question

UNIT_SAMPLES = 16_000
OUTPUT_RATE_HZ = 24_000
NOISE_FLOOR = 1e-4
MOST_UNITS = 30
POSSIBLE_DRAWS = 24
AT_ONCE = 32  # concurrent conversations

T = TypeVar("T")


@dataclass
class ConversationLog:
    units: list[UnitResult] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(unit.text for unit in self.units)

    @property
    def first_spoken(self) -> int | None:
        """Number of the first unit with speech."""
        spoken = (number for number, unit in enumerate(self.units) if not unit.is_listen)
        return next(spoken, None)

    @property
    def has_ended_turn(self) -> bool:
        return any(unit.end_of_turn for unit in self.units)

    @property
    def sound(self) -> Samples:
        """All speech, float32 at 24 kHz."""
        waves = [u.audio_waveform for u in self.units if not u.is_listen]
        return np.concatenate([w for w in waves if w is not None] or [np.zeros(0, np.float32)])


Scene = Callable[[int, ConversationLog], Samples]
"""Returns the audio of a second, given the conversation so far."""


@dataclass(frozen=True)
class Conversation:
    scene: Scene
    system: str | None = None
    speaks: bool = False  # synthesise speech
    is_over: Callable[[ConversationLog], bool] = lambda log: log.has_ended_turn  # after a unit
    most_units: int = MOST_UNITS


class Stage:
    """Runs conversations concurrently with one loaded model, as a worker does."""

    def __init__(self, processor: UnifiedProcessor) -> None:
        self._context = processor.duplex.context
        self._model = processor.model
        # With a constant clock, small batches wait until there are no other requests.
        self._run_pass = partial(run_pass, self._model.executor, now_s=lambda: 0.0)

    def hold(self, conversations: Iterable[Conversation]) -> list[ConversationLog]:
        """Run conversations; each gives the result that it gives alone."""
        return self._together(self._held(conversation) for conversation in conversations)

    def answer(
        self,
        questions: Iterable[Content],
        settings: GenerationSettings,
        options: PrefillOptions | None = None,
    ) -> list[ReplyResult]:
        """Answer questions of texts and pictures, each in a conversation of its own."""
        messages = ([Message("user", parts)] for parts in questions)
        return self._together(self._answered(each, settings, options) for each in messages)

    def _together(self, works: Iterable[Steps[T]]) -> list[T]:
        """Run steps, `AT_ONCE` of them at a time; return their results in order."""
        left = (Task(steps) for steps in works)
        begun = list(islice(left, AT_ONCE))
        going = begun.copy()
        while going:
            self._run_pass(going)
            going = [task for task in going if not task.has_ended]
            more = list(islice(left, AT_ONCE - len(going)))
            begun += more
            going += more
        return [task.take() for task in begun]

    def _held(self, conversation: Conversation) -> Steps[ConversationLog]:
        duplex, log = self._model.duplex, ConversationLog()
        config = DuplexConfig(force_listen_count=0, generate_audio=conversation.speaks)
        voice = self._context.default_voice
        session = self._opened()
        try:
            vocoder = None
            if conversation.speaks and voice is not None:
                vocoder = yield OpenVoice(voice, session.sampler.generator)
            yield from duplex.feed_prompt(
                session,
                duplex_prefix(conversation.system or DUPLEX_SYSTEM_PROMPT),
                duplex_suffix(""),
                settings=override(duplex.defaults, config),
                voice_sample=voice,
                vocoder=vocoder,
            )
            for number in range(conversation.most_units):
                yield from duplex.streaming_prefill(session, conversation.scene(number, log))
                log.units.append((yield from duplex.streaming_generate(session)))
                yield from duplex.close_unit(session)
                if conversation.is_over(log):
                    break
        finally:
            session.close()
        return log

    def _answered(
        self, messages: list[Message], settings: GenerationSettings, options: PrefillOptions | None
    ) -> Steps[ReplyResult]:
        session, voice = self._opened(), self._context.default_voice
        try:
            if settings.generate_audio and voice is not None:
                yield from open_voice(session, voice)
            prompt = render_question(self._model.processor, messages, settings, options)
            return (yield from self._model.streaming.reply(session, prompt, settings))
        finally:
            session.close()

    def _opened(self) -> Session:
        session = self._model.executor.open_session("gates", seed=self._context.seed)
        session.settings = self._model.duplex.defaults
        return session


def recorded(sound: Samples, random: Random) -> Scene:
    """Return a scene of a recording with background noise."""
    noise = np.random.default_rng(random.getrandbits(32))

    def second(number: int, log: ConversationLog) -> Samples:
        del log
        samples = np.zeros(UNIT_SAMPLES, np.float32)
        part = sound[number * UNIT_SAMPLES : (number + 1) * UNIT_SAMPLES]
        samples[: len(part)] = part
        return samples + NOISE_FLOOR * noise.standard_normal(UNIT_SAMPLES).astype(np.float32)

    return second


@dataclass(frozen=True)
class Setting:
    system: str
    context: Context

    @classmethod
    def draw(cls, random: Random) -> Setting:
        facts = draw_facts(random)
        return cls(system_text(random.choice(ROLES), facts), facts.context())

    def right_answers(self, question: Question) -> set[tuple[str, ...]]:
        """Return the words of every right reply at the beginning of a conversation."""
        draws = (
            answer(question, Context(**vars(self.context)), Random(seed))
            for seed in range(POSSIBLE_DRAWS)
        )
        return {tuple(words_of(text)) for text in draws}


def is_exact(said: str, right: set[tuple[str, ...]]) -> bool:
    return tuple(words_of(said)) in right


def to_input_rate(sound: Samples) -> Samples:
    """Resample from 24 to 16 kHz."""
    return np.asarray(resample(sound, OUTPUT_RATE_HZ, UNIT_SAMPLES), np.float32)


def led_by_silence(samples: Samples, lead_s: float) -> Samples:
    return np.pad(samples, (int(lead_s * UNIT_SAMPLES), 0))
