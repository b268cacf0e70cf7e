"""The voice of a turn-based reply: spoken while the text is written, or all at once afterwards.

Source: docs/specification/model.md#5.6, #5.7 and #7.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.code_rule import CodeRule
from MiniCPMO45.configuration_minicpmo import TTSConfig
from MiniCPMO45.session import Session
from MiniCPMO45.settings import SpeechSampling
from MiniCPMO45.speech import CODES_PER_UNIT, CodeBudget, CodeRun, condition, vocode
from MiniCPMO45.steps import Emit, Steps, Vocode
from MiniCPMO45.token2wav.chunking import WINDOW_CODES, cut_whole_reply


@dataclass(frozen=True, eq=False)
class ReplyPiece:
    """What a streamed reply hands out next.

    Attributes:
        text: text since the last piece.
        waveform: float32 [samples] at 24 kHz; None when the reply is text only.
    """

    text: str
    waveform: np.ndarray | None = None


class ReplySpeech:
    """Speaks replies; holds no conversation."""

    def __init__(self, config: TTSConfig) -> None:
        self.config = config

    def speak_group(
        self,
        session: Session,
        ids: Sequence[int],
        hidden: Tensor,
        sampling: SpeechSampling,
        *,
        is_text_end: bool,
        take_text: Callable[[], str],
    ) -> Steps[None]:
        """Speak one group of text tokens; emits a `ReplyPiece` per second of speech.

        Args:
            session: the conversation; a voice is open.
            ids: text tokens of the group.
            hidden: [n, hidden] language-model state of each.
            sampling: how codes are drawn.
            is_text_end: the reply's text is complete.
            take_text: returns the text not handed out yet and marks it handed out.
        """
        run = CodeRun(
            session,
            condition(ids, hidden, self.config, is_text_end=is_text_end),
            self._rule(sampling),
            CodeBudget(sampling.max_codes_per_chunk),
            eos=self.config.speech_eos_id,
            heard=session.speech.codes,
        )
        while not run.is_over:
            due = CODES_PER_UNIT - len(session.speech.codes) % CODES_PER_UNIT
            if len((yield from run.draw(due))) == due:
                second = session.speech.codes[-CODES_PER_UNIT:]
                wave = yield from vocode(session, second, is_last=False, fewest=WINDOW_CODES)
                if len(wave):
                    yield Emit(ReplyPiece(take_text(), wave.cpu().numpy()))

    def finish(self, session: Session, take_text: Callable[[], str]) -> Steps[None]:
        """Voice the codes that still wait and end the reply; emits the last `ReplyPiece`."""
        spoken = len(session.speech.codes) // CODES_PER_UNIT * CODES_PER_UNIT
        rest = session.speech.codes[spoken:]
        if session.speech.codes:
            wave = yield from vocode(session, rest, is_last=True, fewest=WINDOW_CODES)
            yield Emit(ReplyPiece(take_text(), wave.cpu().numpy()))
        session.reset_speech()

    def speak_whole(
        self, session: Session, ids: Sequence[int], hidden: Tensor, sampling: SpeechSampling
    ) -> Steps[np.ndarray]:
        """Speak a finished reply at once.

        Args:
            session: the conversation; a voice is open.
            ids: all text tokens.
            hidden: [n, hidden] language-model state of each.
            sampling: how codes are drawn.

        Returns:
            float32 [samples] at 24 kHz.
        """
        session.reset_speech()
        budget = CodeBudget(sampling.max_codes_per_reply, sampling.min_codes_per_reply)
        run = CodeRun(
            session,
            condition(ids, hidden, self.config, is_text_end=True),
            self._rule(sampling),
            budget,
            eos=self.config.speech_eos_id,
        )
        codes = (yield from run.finish())[: budget.most - 1]
        vocoder = session.speech.vocoder
        assert vocoder is not None, "speech needs an open voice"
        waves = []
        for piece in cut_whole_reply(codes):
            if session.stop.is_set():
                break
            waves.append((yield Vocode(vocoder, piece.codes, piece.is_last)))
        session.reset_speech()
        joined = torch.cat(waves) if waves else torch.zeros(0)
        return joined.cpu().numpy()

    def _rule(self, sampling: SpeechSampling) -> CodeRule:
        return CodeRule(
            temperature=sampling.temperature,
            repetition_penalty=sampling.repetition_penalty,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            is_greedy=sampling.is_greedy,
        )
