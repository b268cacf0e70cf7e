"""Turn-based conversations with the scripted executor, and with a recorded toy model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import Answers, LlmForward, Request, Steps
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.modes.prompt_input import (
    PrefillOptions,
    render_history,
    render_message,
    render_question,
)
from MiniCPMO45.modes.speech import ReplyChunk
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import Content, Message, MiniCPMOProcessor
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import GenerationSettings, SpeechSampling
from tests.fakes.batching import at_once, collect
from tests.fakes.scripted import ScriptedExecutor, ToneVoice, cached_labels
from tests.model.toy import Toy

FEW_CODES = SpeechSampling(max_codes_per_chunk=12, min_codes_per_reply=0)
GREEDY = GenerationSettings(do_sample=False, generate_audio=False)
VARIED = GenerationSettings(
    do_sample=False,
    generate_audio=False,
    repetition_penalty=2.0,
    min_new_tokens=10,
    max_new_tokens=24,
)
SPOKEN = GenerationSettings(do_sample=False, speech=FEW_CODES)


class Recorder:
    """An executor that records requests."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.requests: list[Request] = []

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        self.requests += requests
        return self.executor.submit(requests)()

    def of_kind(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]


def unified(toy: Toy) -> UnifiedModel:
    executor = toy.executor()
    return UnifiedModel(toy.model, MiniCPMOProcessor.of(toy.tokenizer), executor)


class Stopping:
    """An executor that stops the session after a number of forward passes."""

    def __init__(self, executor: Answers, session: Session, n_passes: int) -> None:
        self.executor = executor
        self.session = session
        self.left = n_passes
        if n_passes == 0:
            session.stop.set()

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        self.left -= sum(isinstance(request, LlmForward) for request in requests)
        if self.left <= 0:
            self.session.stop.set()
        return self.executor.submit(requests)()


class Turns:
    """A conversation by turns, of either kind."""

    model: UnifiedModel
    session: Session
    executor: Any  # of the kind's own type
    answers: Answers  # of replies

    def run(self, steps: Steps[Any]) -> Any:
        return run_alone(steps, self.executor)

    def prefill(self, role: str, content: Content, **options: Any) -> str:
        chunk, processor = PrefillOptions(**options), self.model.processor
        prompt = render_message(processor, self.session, Message(role, content), chunk)
        return self.run(self.model.streaming.prefill(self.session, prompt, chunk))

    def prefill_history(self, history: Sequence[tuple[str, Content]], **options: Any) -> str:
        messages = [Message(role, content) for role, content in history]
        prefill = PrefillOptions(omni_mode=False, **options)
        prompt = render_history(self.model.processor, messages, prefill)
        return self.run(self.model.streaming.prefill_history(self.session, prompt))

    def reply(
        self,
        messages: Sequence[Message],
        settings: GenerationSettings,
        options: PrefillOptions | None = None,
    ) -> Steps[ReplyResult]:
        """Return the steps of a one-shot reply."""
        prompt = render_question(self.model.processor, messages, settings, options)
        return self.model.streaming.reply(self.session, prompt, settings)

    def reply_over_cache(self, settings: GenerationSettings) -> ReplyResult:
        return self.run(self.model.streaming.reply_over_cache(self.session, settings))

    def generate(
        self, settings: GenerationSettings = GREEDY, *, takes_snapshot: bool = False
    ) -> tuple[list[ReplyChunk], ReplyResult]:
        if takes_snapshot:
            self.session.take_snapshot()
        return collect(self.model.streaming.generate(self.session, settings), self.answers)


class ScriptedTurns(Turns):
    """A scripted conversation.

    Attributes:
        executor: plays the model.
        session: the conversation; its cache can be read back.
        model: the capabilities.
        tokens: control ids.
    """

    def __init__(self, toy: Toy, *, has_voice: bool = False) -> None:
        self.executor = ScriptedExecutor(len(toy.tokenizer))
        self.model = unified(toy)
        self.tokenizer = toy.tokenizer
        self.tokens: SpecialTokens = toy.tokenizer.special
        self.session = self.executor.open_session()
        self.answers = self.executor
        if has_voice:
            self.session.speech.vocoder = ToneVoice()

    @property
    def cached(self) -> list[int]:
        return cached_labels(self.session.kv)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def stop_after(self, n_passes: int) -> None:
        """Stop the session after a number of forward passes."""
        self.answers = Stopping(self.executor, self.session, n_passes)

    def script(self, reply: str | Sequence[int], end: int | None = None) -> list[int]:
        """Script a reply and its end; return its ids."""
        ids = self.encode(reply) if isinstance(reply, str) else list(reply)
        self.executor.decisions = [*ids, self.tokens.tts_eos if end is None else end]
        return ids

    def turn(self, question: str, reply: str, settings: GenerationSettings = GREEDY) -> ReplyResult:
        self.prefill("user", question)
        self.script(reply)
        return self.generate(settings)[1]


class ToyTurns(Turns):
    """A conversation with the toy model.

    Attributes:
        model: weights and capabilities.
        recorder: answers and remembers.
        session: the conversation.
    """

    def __init__(self, toy: Toy, *, seed: int = 0, has_voice: bool = False) -> None:
        self.model = unified(toy)
        self.recorder = self.executor = self.answers = Recorder(self.model.executor)
        self.session = self.model.executor.open_session("toy", seed=seed)
        if has_voice:
            self.session.speech.vocoder = toy.open_voice(self.session.sampler.generator)


def joined(chunks: Sequence[ReplyChunk]) -> tuple[str, np.ndarray]:
    waves = [chunk.waveform for chunk in chunks if chunk.waveform is not None]
    sound = np.concatenate(waves) if waves else np.zeros(0, np.float32)
    return "".join(chunk.text for chunk in chunks), sound


def certain(size: int, *tokens: int) -> torch.Tensor:
    """Return logits of equally likely tokens, with all others far below."""
    logits = torch.full((size,), -40.0)
    logits[list(tokens)] = 40.0
    return logits
