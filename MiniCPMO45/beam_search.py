"""Several candidate replies at once: beam search, or beam sampling when tokens are drawn.

Every candidate owns a fork of the conversation's cache; all forks are closed when the search ends.
The rules are those of the `transformers` library, which the reference runs:
docs/specification/model.md#5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from MiniCPMO45.kv_cache import KvHandle
from MiniCPMO45.sampling import keep_top_k, keep_top_p_ascending, penalise_repetition
from MiniCPMO45.session import Session
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.steps import LlmForward, Steps, TokenIds

UNSAMPLED_REPETITION_PENALTY = 1.2  # without sampling; source: docs/specification/model.md#5.2
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True, eq=False)
class Draft:
    """What was written in one go.

    Attributes:
        ids: tokens drawn, without the terminator.
        hidden: state [hidden] of the tokens fed, from the first on. Of a search with several
            candidates it is that of whichever candidate led at the time.
        has_ended: a terminator was drawn.
        was_stopped: the caller ended it.
    """

    ids: tuple[int, ...]
    hidden: tuple[Tensor, ...] = ()
    has_ended: bool = False
    was_stopped: bool = False

    @property
    def hit_limit(self) -> bool:
        """Whether nothing but the token limit ended it."""
        return not (self.has_ended or self.was_stopped)


@dataclass(frozen=True)
class Hypothesis:
    """A finished candidate; `score` is its log-probability per token."""

    ids: tuple[int, ...]
    score: float
    has_ended: bool


@dataclass(frozen=True, eq=False)
class _Beam:
    """A running candidate.

    Attributes:
        kv: its fork of the cache; the last id is not in it yet.
        ids: tokens drawn.
        score: sum of their log-probabilities.
        logits: [vocabulary] of the next token.
    """

    kv: KvHandle
    ids: tuple[int, ...]
    score: float
    logits: Tensor


@dataclass(frozen=True)
class _Candidate:
    """A beam extended by one token."""

    parent: int
    token: int
    score: float


@dataclass
class _Finished:
    """The best finished candidates, at most `most`."""

    most: int
    kept: list[Hypothesis] = field(default_factory=list)

    def add(self, hypothesis: Hypothesis) -> None:
        """Keep it if it is among the best."""
        self.kept.append(hypothesis)
        self.kept.sort(key=lambda each: -each.score)
        del self.kept[self.most :]

    def cannot_improve(self, attainable: float) -> bool:
        """Whether no running candidate can get among the kept; `attainable` is the best score."""
        return len(self.kept) == self.most and self.kept[-1].score >= attainable


class BeamSearch:
    """One search; it holds the rules and no conversation."""

    def __init__(
        self, n_beams: int, settings: GenerationSettings, terminators: frozenset[int]
    ) -> None:
        """Choose the rules.

        Args:
            n_beams: candidates kept, at least 2.
            settings: how tokens are drawn. Without sampling the repetition penalty is 1.2.
            terminators: ids that end a reply.
        """
        self.n_beams = n_beams
        self.settings = settings
        self.terminators = sorted(terminators)
        # Enough to fill the beams although terminators may be among them.
        self.n_candidates = n_beams * max(2, 1 + len(terminators))

    def run(self, session: Session, logits: Tensor) -> Steps[Draft]:
        """Write a reply.

        Args:
            session: a conversation whose cache holds the prompt; it is left as it is.
            logits: [vocabulary] after the prompt.

        Returns:
            The best candidate.
        """
        forks = [session.kv.fork()]
        running = [_Beam(forks[0], (), 0.0, logits)]
        finished, lead_hidden = _Finished(self.n_beams), []
        try:
            for step in range(self.settings.max_new_tokens):
                candidates = self._candidates(running, session.sampler.generator)
                self._finish(running, candidates, finished)
                chosen = [each for each in candidates if each.token not in self.terminators]
                chosen = chosen[: self.n_beams]
                attainable = candidates[0].score / (step + 1)
                if session.stop.is_set() or finished.cannot_improve(attainable) or not chosen:
                    break
                running = _hand_down(running, chosen, forks)
                if step + 1 < self.settings.max_new_tokens:
                    running, lead = yield from _feed(running)
                    lead_hidden.append(lead)
            else:
                self._finish_running(running, finished)
            if not finished.kept:  # stopped before any candidate ended
                self._finish_running(running, finished)
        finally:
            for fork in forks:
                fork.close()
        best = finished.kept[0]
        was_stopped = session.stop.is_set() and not best.has_ended
        return Draft(best.ids, tuple(lead_hidden), best.has_ended, was_stopped)

    def log_probabilities(self, logits: Tensor, ids: Sequence[int]) -> Tensor:
        """Score every next token.

        Args:
            logits: [vocabulary].
            ids: tokens of the candidate so far.

        Returns:
            float32 [vocabulary]; penalised and filtered, hence not normalised.
        """
        settings = self.settings
        scores = logits.float().log_softmax(-1)
        if len(ids) < settings.min_new_tokens:
            scores = scores.index_fill(0, self._terminator_index(scores), -torch.inf)
        if not settings.do_sample:
            return penalise_repetition(scores, ids, UNSAMPLED_REPETITION_PENALTY)
        scores = penalise_repetition(scores, ids, settings.repetition_penalty)
        scores = scores / max(settings.temperature, MIN_TEMPERATURE)
        fewest = 1 + len(self.terminators)  # so that a candidate can always go on
        scores = keep_top_k(scores, max(settings.top_k, fewest) if settings.top_k else 0)
        return keep_top_p_ascending(scores, settings.top_p, keep=fewest)

    def _terminator_index(self, scores: Tensor) -> Tensor:
        return torch.tensor(self.terminators, device=scores.device)

    def _candidates(self, running: Sequence[_Beam], generator: torch.Generator) -> list[_Candidate]:
        """Extensions of the running beams, best first."""
        rows = [beam.score + self.log_probabilities(beam.logits, beam.ids) for beam in running]
        scores = torch.stack(rows)  # [beams, vocabulary]
        width = scores.shape[1]
        flat = scores.flatten()
        count = min(self.n_candidates, int(flat.isfinite().sum()))
        if self.settings.do_sample:
            drawn = torch.multinomial(flat.softmax(-1), count, generator=generator)
            values, order = flat[drawn].sort(descending=True)
            places = drawn[order]
        else:
            values, places = flat.topk(count)
        return [
            _Candidate(place // width, place % width, value)
            for place, value in zip(places.tolist(), values.tolist(), strict=True)
        ]

    def _finish(
        self, running: Sequence[_Beam], candidates: Sequence[_Candidate], finished: _Finished
    ) -> None:
        """Keep what ended; a terminator that is not among the best `n_beams` does not count."""
        for each in candidates[: self.n_beams]:
            if each.token in self.terminators:
                ids = running[each.parent].ids
                finished.add(Hypothesis(ids, each.score / (len(ids) + 1), has_ended=True))

    def _finish_running(self, running: Sequence[_Beam], finished: _Finished) -> None:
        for beam in running:
            score = beam.score / max(len(beam.ids), 1)
            finished.add(Hypothesis(beam.ids, score, has_ended=False))


def _hand_down(
    running: Sequence[_Beam], chosen: Sequence[_Candidate], forks: list[KvHandle]
) -> list[_Beam]:
    """Make the chosen candidates the running beams; only a parent's later children copy a cache."""
    heirs: list[_Beam] = []
    taken: set[int] = set()
    for each in chosen:
        parent = running[each.parent]
        kv = parent.kv
        if each.parent in taken:
            kv = kv.fork()
            forks.append(kv)
        taken.add(each.parent)
        heirs.append(_Beam(kv, (*parent.ids, each.token), each.score, parent.logits))
    for index, beam in enumerate(running):
        if index not in taken:
            beam.kv.close()
    return heirs


def _feed(running: Sequence[_Beam]) -> Steps[tuple[list[_Beam], Tensor]]:
    """Feed every beam's last token; also returns the state [hidden] of the leading beam."""
    fed, hidden = [], []
    for beam in running:
        output = yield LlmForward(beam.kv, (TokenIds((beam.ids[-1],)),))
        fed.append(_Beam(beam.kv, beam.ids, beam.score, output.logits))
        hidden.append(output.hidden[-1])
    return fed, hidden[0]
