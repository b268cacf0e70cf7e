"""Turn-based conversations with the defects of the reference, on top of our code.

Only defects that show in a recording. Source: docs/specification/model.md#10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.engine.session import Round, Session
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.prompt_input import (
    MessageInput,
    Pieces,
    PrefillOptions,
    embed_clips,
    embed_pictures,
    lay_out,
)
from MiniCPMO45.modes.speech import ReplySpeech
from MiniCPMO45.modes.streaming import GROUP_TOKENS, ReplyResult, StreamingCapability
from MiniCPMO45.processing.processor import Message, Prompt
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.settings import GenerationSettings, SpeechSampling
from tests.goldens.recorded_model import GappedRope


class RecordedInput(MessageInput):
    """D5: the clips of a message are concatenated before the log-mel."""

    def render_message(self, session: Session, message: Message, options: PrefillOptions) -> Prompt:
        prompt = super().render_message(session, message, options)
        return _joined(prompt, [len(prompt.clips)])

    def render_history(self, messages: Sequence[Message], options: PrefillOptions) -> Prompt:
        counts = [sum(isinstance(part, np.ndarray) for part in m.content) for m in messages]
        return _joined(super().render_history(messages, options), counts)

    def embed_message(
        self, session: Session, prompt: Prompt, role: str, options: PrefillOptions
    ) -> Steps[Pieces]:
        """Embed one message; recordings have no live streams."""
        return (yield from self._embed(prompt, None))

    def embed_history(self, session: Session, prompt: Prompt) -> Steps[Pieces]:
        return (yield from self._embed(prompt, self.config.audio_block_frames))

    def _embed(self, prompt: Prompt, block_frames: int | None) -> Steps[Pieces]:
        pictures = yield from embed_pictures(prompt)
        rows = yield from embed_clips(prompt, block_frames)
        return lay_out(prompt, pictures, _split(rows, prompt) if rows else [])


def _joined(prompt: Prompt, counts: Sequence[int]) -> Prompt:
    clips: Iterator[np.ndarray] = iter(prompt.clips)
    of_messages = [[next(clips) for _ in range(count)] for count in counts if count]
    return replace(prompt, clips=tuple(np.concatenate(each) for each in of_messages))


def _split(rows: Sequence[Tensor], prompt: Prompt) -> list[Tensor]:
    """Split the concatenated rows by the length of the spans; a surplus is dropped."""
    joined, lengths = torch.cat(list(rows)), [stop - start for start, stop in prompt.audio_spans]
    return list(joined[: sum(lengths)].split(lengths))


class RecordedSpeech(ReplySpeech):
    """D16: after a group that ended at the code limit, the next one begins a position later."""

    def __init__(self, config: Any, rope: GappedRope) -> None:
        super().__init__(config)
        self.rope = rope

    def speak_group(
        self,
        session: Session,
        ids: Sequence[int],
        hidden: Tensor,
        sampling: SpeechSampling,
        **more: Any,
    ) -> Steps[None]:
        before = len(session.speech.codes)
        yield from super().speak_group(session, ids, hidden, sampling, **more)
        if len(session.speech.codes) - before >= sampling.max_codes_per_chunk:
            self.rope.gaps.append(session.speech.kv.length)


class RecordedStreaming(StreamingCapability):
    """Replies with D10, D13 and D14.

    Rounds have the length of the spoken text, the token limit is rounded up and its last token
    lost, and every reply begins as if a message were still open.
    """

    speech: RecordedSpeech

    def generate(self, session: Session, settings: GenerationSettings) -> Steps[ReplyResult]:
        """Generate a streamed reply."""
        most = -(-settings.max_new_tokens // GROUP_TOKENS) * GROUP_TOKENS + 1
        session.turn.opening = TurnOpening.CONTINUED
        self.speech.rope.gaps.clear()
        self._counts_rounds = settings.generate_audio
        return (yield from super().generate(session, replace(settings, max_new_tokens=most)))

    def _split_into_rounds(
        self, session: Session, ids: Sequence[int], messages: Sequence[Message]
    ) -> None:
        """Keep a history as one round."""

    def _feed_last(self, session: Session, reply: Any) -> Steps[None]:
        yield from ()  # the last token is not fed

    def _emit_group(self, session: Session, reply: Any, *args: Any) -> Steps[None]:
        hit_limit, reply.hit_limit = reply.hit_limit, False  # without the end-of-text token
        yield from super()._emit_group(session, reply, *args)
        reply.hit_limit = hit_limit

    def _end(self, session: Session, reply: Any, start: int) -> ReplyResult:
        result, rounds = super()._end(session, reply, start), session.window.rounds
        number = rounds.pop().number
        if self._counts_rounds:
            ids = self.tokenizer.encode(self.tokenizer.decode(reply.ids[: reply.grouped]))
            rounds.append(Round(number, "assistant", len(ids)))
        else:
            session.turn.round = number
        return result
