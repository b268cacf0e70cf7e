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

from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.session import Round, Session
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.prompt_input import embed_clips, embed_pictures, lay_out
from MiniCPMO45.modes.streaming import GROUP_TOKENS, ReplyResult, StreamingCapability
from MiniCPMO45.processing.mel import clip_mels
from MiniCPMO45.processing.processor import Message, Prompt
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.settings import GenerationSettings
from tests.goldens.recorded_model import GappedRope


def clip_count(message: Message) -> int:
    return sum(isinstance(part, np.ndarray) for part in message.content)


def _joined(prompt: Prompt, counts: Sequence[int]) -> Prompt:
    clips: Iterator[np.ndarray] = iter(prompt.clips)
    of_messages = [[next(clips) for _ in range(count)] for count in counts if count]
    return replace(prompt, clips=tuple(np.concatenate(each) for each in of_messages))


def _split(rows: Sequence[Tensor], prompt: Prompt) -> list[Tensor]:
    """Split the concatenated rows by the length of the spans; a surplus is dropped."""
    joined, lengths = torch.cat(list(rows)), [stop - start for start, stop in prompt.audio_spans]
    return list(joined[: sum(lengths)].split(lengths))


class GappedStreaming(StreamingCapability):
    """D16: after a group that ended at the code limit, the next one begins a position later."""

    rope: GappedRope

    def _emit_group(self, reply: Any) -> Steps[None]:
        speech = reply.session.speech
        before = len(speech.codes)
        yield from super()._emit_group(reply)
        if len(speech.codes) - before >= reply.settings.speech.max_codes_per_chunk:
            self.rope.gaps.append(speech.kv.length)


class RecordedStreaming(GappedStreaming):
    """Replies with D5, D10, D13 and D14 as well.

    The clips of a message are concatenated before the log-mel. Rounds have the length of the spoken
    text, the token limit is rounded up and its last token lost, and every reply begins as if a
    message were still open.
    """

    counts: Sequence[int] = ()  # clips of each message that is fed next

    def _embed(self, prompt: Prompt, block_frames: int | None, is_voice: bool) -> Steps[Rows]:
        counts, self.counts = self.counts or [1] * len(prompt.clips), ()
        joined = _joined(prompt, counts)
        pictures = yield from embed_pictures(joined)
        rows = yield from embed_clips(
            [clip_mels(clip) for clip in joined.clips], block_frames, is_voice
        )
        return lay_out(joined, pictures, _split(rows, joined) if rows else [])

    def generate(self, session: Session, settings: GenerationSettings) -> Steps[ReplyResult]:
        """Generate a streamed reply."""
        most = -(-settings.max_new_tokens // GROUP_TOKENS) * GROUP_TOKENS + 1
        session.turn.opening = TurnOpening.CONTINUED
        self.rope.gaps.clear()
        self._counts_rounds = settings.generate_audio
        return (yield from super().generate(session, replace(settings, max_new_tokens=most)))

    def _split_into_rounds(self, session: Session, prompt: Prompt) -> None:
        """Keep a history as one round."""

    def _feed_last(self, reply: Any) -> Steps[None]:
        yield from ()  # the last token is not fed

    def _emit_group(self, reply: Any) -> Steps[None]:
        hit_limit, reply.hit_limit = reply.hit_limit, False  # without the end-of-text token
        yield from super()._emit_group(reply)
        reply.hit_limit = hit_limit

    def _end(self, reply: Any) -> ReplyResult:
        session = reply.session
        result, rounds = super()._end(reply), session.window.rounds
        number = rounds.pop().number
        if self._counts_rounds:
            ids = self.tokenizer.encode(self.tokenizer.decode(reply.ids[: reply.grouped]))
            rounds.append(Round(number, "assistant", len(ids)))
        else:
            session.turn.round = number
        return result
