"""The unit loop with the defects of the reference, on top of our code.

Only defects that show in a recording. Source: docs/specification/model.md#10.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.policies import UnitPolicy, draw, penalise_repetition
from MiniCPMO45.engine.session import Session, maintain_units, units_to_drop
from MiniCPMO45.engine.steps import LlmForward, Steps
from MiniCPMO45.modes.duplex import DuplexCapability, UnitDraft
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from MiniCPMO45.settings import GREEDY, DuplexSettings, WindowMode
from MiniCPMO45.token2wav.vocoder import SpeechBuffer


class RecordedUnitPolicy(UnitPolicy):
    """Greedy decisions with D24 and D25.

    Listen scale and rank apply to `<|im_end|>`, logits of repeated ids are divided whatever their
    sign, and the history includes control tokens and is never cleared.

    Attributes:
        decisions: of the whole conversation, in order.
    """

    def __init__(self, tokens: SpecialTokens) -> None:
        super().__init__(tokens, torch.device("cpu"))
        self.decisions: list[int] = []
        self._excluded = torch.tensor(tokens.unit_forbidden())

    def decide(
        self,
        logits: Tensor,
        history: list[int],
        settings: DuplexSettings,
        generator: torch.Generator,
    ) -> int:
        """Decide one token; `history`, which the session clears, is unused."""
        assert settings.decode_mode == GREEDY, "only greedy conversations can be reproduced"
        tokens, size = self.tokens, settings.text_repetition_window_size
        if draw(logits, None) == tokens.chunk_eos:
            return tokens.chunk_eos
        logits = logits.index_fill(0, self._excluded, -torch.inf)
        recent = sorted(set(self.decisions[-size:] if size > 0 else []))
        logits[recent] /= settings.text_repetition_penalty
        logits = penalise_repetition(logits, (tokens.turn_eos,), settings.length_penalty)
        logits[tokens.im_end] *= settings.listen_prob_scale
        rank = int((logits > logits[tokens.im_end]).sum())
        if settings.listen_top_k is not None and rank < settings.listen_top_k:
            return tokens.im_end
        self.decisions.append(draw(logits, None))
        return self.decisions[-1]


class RecordedDuplex(DuplexCapability):
    """Closes units at once and recomputes the carried text per dropped unit, with D21 and D22.

    Text may continue after the end of a turn, and an interruption keeps speech codes.
    """

    def __init__(
        self,
        config: MiniCPMOConfig,
        tokenizer: MiniCPMOTokenizerFast,
        policy: UnitPolicy,
        settings: DuplexSettings,
    ) -> None:
        self.window = settings.window
        idle = replace(settings, window=replace(settings.window, mode=WindowMode.OFF))
        super().__init__(config, tokenizer, policy, defaults=idle)

    def close_unit(self, session: Session) -> Steps[None]:
        """Close the unit in a pass of its own, then apply the window (section 6.6)."""
        yield from super().close_unit(session)
        if not session.turn.closing:
            return
        yield from self._write_closing(session)
        if self.window.mode is WindowMode.BASIC:
            yield from maintain_units(session.kv, session.window, self.window)
            return
        for _ in range(units_to_drop(session.window, self.window)):
            yield from self._carry_one(session)

    def _ends_unit(self, session: Session, draft: UnitDraft, token: int) -> bool:
        has_ended, draft.end_of_turn = draft.end_of_turn, False
        ends = super()._ends_unit(session, draft, token)
        draft.end_of_turn = has_ended and not draft.is_listen
        return ends

    def _interrupt(self, session: Session) -> Steps[None]:
        yield LlmForward(session.kv, Rows((self.tokens.turn_eos,)), wants_logits=False)
        session.turn.has_ended = True
        session.speech.buffer = SpeechBuffer()
        if session.speech.vocoder is not None:
            with torch.inference_mode():
                session.speech.vocoder.reset()

    def _carry_one(self, session: Session) -> Steps[None]:
        """Drop the oldest unit and feed the carried text again, even if unchanged (section 6.9)."""
        kv, window = session.kv, session.window
        unit = window.units.pop(0)
        carried = window.carried_ids + unit.text_ids
        most = self.window.context_previous_max_tokens
        window.carried_ids = carried[max(0, len(carried) - most) :]
        if not window.carried_ids:
            kv.drop(window.preserved, window.preserved + unit.length)
            return
        kept = kv.rows(window.preserved + unit.length, kv.length)
        kv.truncate(window.prefix)
        rebuilt = window.marker_ids + window.carried_ids + window.suffix_ids
        yield LlmForward(kv, Rows(rebuilt), wants_logits=False)
        window.preserved = kv.length
        kv.put(kept)


class DecisionLog(RecordedUnitPolicy):
    """Records every decision of a unit and its raw logits."""

    def __init__(self, tokens: SpecialTokens) -> None:
        super().__init__(tokens)
        self.ids: list[int] = []
        self.logits: list[Tensor] = []

    def decide(self, logits: Tensor, *args: Any) -> int:
        token = super().decide(logits, *args)
        self.ids.append(token)
        self.logits.append(logits.clone())
        return token

    def clear(self) -> None:
        self.ids, self.logits = [], []
