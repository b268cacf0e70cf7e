"""The text side of one duplex unit: decisions until something ends the unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from MiniCPMO45.session import Session
from MiniCPMO45.steps import ChooseToken, LlmForward, Steps, TextDecision, TokenIds
from MiniCPMO45.tokenization_minicpmo_fast import MiniCPMOTokenizerFast
from MiniCPMO45.unit_policy import MAX_UNIT_CHARACTERS, UnitPolicy

FEWEST_STEPS: Final = 3  # the decision to listen or to speak, one token of text, the unit's end


@dataclass
class UnitDraft:
    """A unit's text while it is being decoded.

    Attributes:
        ids: spoken ids; the unit's first decision is not among them.
        hidden: hidden state [hidden] of each of them.
        terminator: id to feed when the unit is finalized.
        is_listen: the unit stays silent.
        end_of_turn: the turn ended in this unit.
        barge_in: a running turn was cut.
    """

    ids: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    terminator: int | None = None
    is_listen: bool = False
    end_of_turn: bool = False
    barge_in: bool = False


class UnitDecoder:
    """Decodes the text of units; holds no conversation."""

    def __init__(self, tokenizer: MiniCPMOTokenizerFast, policy: UnitPolicy) -> None:
        self.tokenizer = tokenizer
        self.tokens = tokenizer.special
        self.policy = policy

    def decode(
        self, session: Session, logits: Tensor, force_listen: bool, force_speak: bool = False
    ) -> Steps[UnitDraft]:
        """Decide tokens until the unit ends.

        Args:
            session: the conversation; its cache takes every accepted token in.
            logits: [vocabulary] after the unit's input.
            force_listen: listen whatever the model wants; a running turn is ended first.
            force_speak: speak whatever the model wants, unless it has to listen.

        Returns:
            The unit's text; its terminator is not in the cache yet.

        Source: docs/specification/model.md#6.4.
        """
        turn, settings, draft = session.turn, session.settings, UnitDraft()
        override = self._take_break(session) or force_listen
        is_early = turn.decisions < settings.force_listen_count and not force_speak
        force = override or is_early
        turn.decisions += 1
        if override and not turn.has_ended:
            yield from self._interrupt(session)
            draft.barge_in = True
        decision = None if force else self._decision(session)
        last = max(settings.max_new_speak_tokens_per_chunk, FEWEST_STEPS) - 1
        token: int | None = None
        for step in range(last):
            if session.stop.is_set():
                return draft
            if step == 0 and decision is not None:
                if force_speak:
                    token = self.policy.settle(self.tokens.speak, decision.history)
                else:
                    token = yield ChooseToken(logits, decision)
            token = self.tokens.listen if token is None else token
            if self._ends_unit(session, draft, token, step):
                return draft
            if token == self.tokens.listen:
                token = self.tokens.tts_bos  # a running turn cannot turn silent without ending
            turn.has_ended = False
            if step > 0 and self._is_full([*draft.ids, token]):
                draft.terminator = self.tokens.chunk_eos
                return draft
            output = yield LlmForward(
                session.kv,
                (TokenIds((token,)),),
                wants_logits=False,
                decision=decision if step + 1 < last else None,
            )
            draft.end_of_turn = turn.has_ended = token == self.tokens.turn_eos
            if step > 0:
                draft.ids.append(token)
                draft.hidden.append(output.hidden[-1])
            token = output.token
        draft.terminator = self.tokens.chunk_eos
        return draft

    def _decision(self, session: Session) -> TextDecision:
        sampler = session.sampler
        return TextDecision(self.policy, sampler.history, session.settings, sampler.generator)

    def _ends_unit(self, session: Session, draft: UnitDraft, token: int, step: int) -> bool:
        """Whether `token` ends the unit instead of being fed; completes the draft if so."""
        tokens = self.tokens
        if draft.end_of_turn:
            draft.terminator = token if token in tokens.chunk_terminators else tokens.chunk_eos
            return True
        if token == tokens.listen and not session.turn.has_ended:
            return False
        draft.is_listen = token == tokens.listen
        if draft.is_listen:
            draft.end_of_turn = False
        if token in tokens.chunk_terminators:
            draft.terminator = token
            return True
        return False

    def _take_break(self, session: Session) -> bool:
        asked, session.turn.force_next_listen = session.turn.force_next_listen, False
        return asked

    def _interrupt(self, session: Session) -> Steps[None]:
        """End the running turn in the cache and forget its speech."""
        yield LlmForward(session.kv, (TokenIds((self.tokens.turn_eos,)),), wants_logits=False)
        session.turn.has_ended = True
        session.reset_speech()
        session.sampler.history.clear()

    def _is_full(self, ids: list[int]) -> bool:
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return len(text) >= MAX_UNIT_CHARACTERS
