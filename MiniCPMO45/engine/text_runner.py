"""Forward passes of the language model and choice of tokens: decode, prefill and head passes.

A decode pass feeds one token of each conversation; every other mix is a prefill pass, followed by
the head on the last rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.engine.kv_cache import FedRows, KvStore, PackedRows, PassLimits, passes, reserve_all
from MiniCPMO45.engine.policies import KEEPS_ALL, MIN_TEMPERATURE, UnitPolicy, draw_uniforms
from MiniCPMO45.engine.steps import ChooseToken, LlmForward, LlmOutput, TextDecision
from MiniCPMO45.kernels import unit_choice
from MiniCPMO45.kernels.device import Capturable, HostCopy, Staging, read_back
from MiniCPMO45.kernels.products import matrix_of, multiply
from MiniCPMO45.kernels.unit_choice import NO_TOKEN, UNIT_FORMAT, UnitWords
from MiniCPMO45.model.transformer import CausalLM
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import GREEDY


class UnitSampler:
    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._staging = Staging(rows, unit_choice.N_COLUMNS, device)
        self._is_forbidden = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._tokens: SpecialTokens | None = None
        self.load(())

    @staticmethod
    def covers(decision: TextDecision) -> bool:
        settings = decision.settings
        is_narrow = 1 <= settings.top_k <= unit_choice.MOST_CANDIDATES
        is_recent = settings.text_repetition_window_size <= unit_choice.MOST_RECENT
        is_usual = type(decision.policy).decide is UnitPolicy.decide
        return is_usual and is_recent and (is_narrow or settings.decode_mode == GREEDY)

    def load(self, decisions: Sequence[TextDecision | None]) -> None:
        """Set the decisions for the rows of the next `choose`, without waiting for the device.

        All decisions are covered; None leaves a row unused. Each that is not greedy draws two
        numbers from its generator.
        """
        words = self._staging.begin()
        for row, decision in zip_longest(words, decisions):
            if decision is None:
                struct.pack_into(UNIT_FORMAT, row.data, 0, *UnitWords())
                continue
            _write_decision(row, decision)
            tokens = decision.policy.tokens
            if tokens is not self._tokens:
                forbidden = torch.tensor(tokens.unit_forbidden(), device=self._is_forbidden.device)
                self._is_forbidden.zero_().index_fill_(0, forbidden, True)
                self._tokens = tokens
        self._staging.send()

    def choose(self, logits: Tensor) -> Tensor:
        return unit_choice.choose_tokens(self._staging.device_words, self._is_forbidden, logits)


def _write_decision(words: np.ndarray, decision: TextDecision) -> None:
    tokens, settings = decision.policy.tokens, decision.settings
    size = settings.text_repetition_window_size
    recent = decision.history[-size:] if size > 0 else []
    scale = settings.listen_prob_scale
    is_greedy = settings.decode_mode == GREEDY
    probe, draw = (0.0, 0.0) if is_greedy else draw_uniforms(decision.generator, 2)
    parameters = UnitWords(
        chunk_eos=tokens.chunk_eos,
        turn_eos=tokens.turn_eos,
        listen=tokens.listen,
        is_greedy=is_greedy,
        top_k=1 if is_greedy else settings.top_k,
        listen_top_k=settings.listen_top_k or 0,
        n_recent=len(recent),
        temperature=max(settings.temperature, MIN_TEMPERATURE),
        top_p=settings.top_p if settings.top_p < 1.0 else KEEPS_ALL,
        repetition_penalty=settings.text_repetition_penalty,
        length_penalty=settings.length_penalty,
        listen_bias=math.log(scale) if scale > 0 else -math.inf,
        probe=probe,
        draw=draw,
    )
    struct.pack_into(f"{UNIT_FORMAT}{len(recent)}i", words.data, 0, *parameters, *recent)


@dataclass(eq=False)
class TextRows:
    """One request and the results of its passes.

    `wants_logits` also if the policy decides on the host; `decision` is None then. `hidden`
    [n, width] holds the states of each pass. `tokens` holds the chosen token, which the policy has
    not settled yet, at index `row`.
    """

    request: LlmForward
    wants_logits: bool
    decision: TextDecision | None
    hidden: list[Tensor] = field(default_factory=list)
    logits: Tensor | None = None
    tokens: HostCopy | None = None
    row: int = 0

    @classmethod
    def of(cls, request: LlmForward) -> TextRows:
        decision = request.decision
        if decision is None or UnitSampler.covers(decision):
            return cls(request, request.wants_logits, decision)
        return cls(request, True, None)

    def answer(self) -> LlmOutput | Exception:
        hidden = self.hidden[0] if len(self.hidden) == 1 else torch.cat(self.hidden)
        logits, decision = self.logits if self.request.wants_logits else None, self.request.decision
        if decision is None:
            return LlmOutput(logits, hidden)
        if self.tokens is not None:
            token = _settle(self.tokens.numbers[self.row], decision)
        else:
            assert self.logits is not None
            token = _decide(self.logits, decision)
        return token if isinstance(token, Exception) else LlmOutput(logits, hidden, token)


@dataclass(frozen=True, eq=False)
class Scores:
    """Results of a pass that ends with the head: [rows, width], [rows, vocabulary], int64 [rows]"""

    hidden: Tensor
    logits: Tensor
    tokens: Tensor


class HeadPass:
    """The output head over a bucket of hidden states, and the choice of a token for each."""

    def __init__(self, llm: CausalLM, rows: int) -> None:
        norm, n_tokens = llm.model.norm.weight, llm.lm_head.out_features
        self.hidden = norm.new_zeros(rows, len(norm))
        self.logits = norm.new_zeros(rows, n_tokens)
        self.sampler = UnitSampler(rows, n_tokens, norm.device)
        self.piece = Capturable(f"head of {rows}", lambda: self.score(self.hidden))
        self.choice = Capturable(f"choice of {rows}", lambda: self.sampler.choose(self.logits))
        self._llm = llm  # its head may be replaced or given another weight

    def score(self, hidden: Tensor) -> Scores:
        logits = multiply(hidden, matrix_of(self._llm.lm_head))
        return Scores(hidden, logits, self.sampler.choose(logits))


class DecodePass(Capturable[Scores]):
    """One token of each of a bucket of conversations: embedding, layers, head, choice."""

    def __init__(self, llm: CausalLM, store: KvStore, head: HeadPass, rows: int) -> None:
        super().__init__(f"decode of {rows}")
        self.packed = PackedRows(store, rows)
        self.head, self._decoder = head, llm.model

    def _work(self) -> Scores:
        embedded = self._decoder.embed_tokens(self.packed.ids)
        return self.head.score(self._decoder(embedded, self.packed.batch()))


class PrefillPass(Capturable[tuple[Tensor, Tensor]]):
    """Any mix of rows up to a bucket: embedding and layers."""

    def __init__(self, llm: CausalLM, store: KvStore, rows: int, rows_per_tile: int) -> None:
        super().__init__(f"prefill of {rows}")
        norm = llm.model.norm.weight
        self.vectors = norm.new_zeros(rows, len(norm))
        self.packed = PackedRows(store, rows, rows_per_tile=rows_per_tile, vectors=self.vectors)
        self._decoder = llm.model

    def _work(self) -> tuple[Tensor, Tensor]:
        """Return hidden states [rows, width] and those of last rows [sequences, width]."""
        embedded = self._decoder.embed_tokens(self.packed.ids)
        vectors, is_vector = self.packed.spread(self.vectors)
        inputs = torch.where(is_vector, vectors, embedded)
        hidden = self._decoder(inputs, self.packed.batch())
        return hidden, hidden.index_select(0, self.packed.last_rows)


class TextRunner:
    def __init__(self, llm: CausalLM, store: KvStore, limits: PassLimits) -> None:
        self.heads = limits.decodes(lambda rows: HeadPass(llm, rows))
        self.decodes = limits.decodes(
            lambda rows: DecodePass(llm, store, self.heads.of(rows), rows)
        )
        self.prefills = limits.prefills(lambda rows, tile: PrefillPass(llm, store, rows, tile))
        self._n_tokens = llm.lm_head.out_features

    @property
    def decode_pieces(self) -> list[Capturable[Any]]:
        heads = [part for each in self.heads.captured for part in (each.choice, each.piece)]
        return [*self.decodes.captured, *heads]

    def feed(self, requests: Sequence[LlmForward]) -> Callable[[], list[LlmOutput | Exception]]:
        """Enqueue rows of different conversations; either all caches grow, or none.

        Raises:
            CacheFullError: a conversation would exceed the context length or the memory.
        """
        reserve_all([(request.kv, len(request.rows)) for request in requests])
        texts = {id(request.kv): TextRows.of(request) for request in requests}
        parts = [FedRows(request.kv, request.rows) for request in requests]
        for group in passes(parts, self.prefills.most, self.decodes.most):
            is_decode = all(len(part) == 1 and not part.rows.vectors for part in group)
            run = self._decode if is_decode else self._prefill
            run(group, [texts[id(part.kv)] for part in group])
        for request in requests:
            request.kv.advance(len(request.rows))
        return lambda: [text.answer() for text in texts.values()]

    def choose(self, requests: Sequence[ChooseToken]) -> list[int | Exception]:
        """Choose a token from logits [vocabulary] of each conversation.

        Raises:
            ValueError: logits do not have the vocabulary's size; no generator has advanced.
        """
        usual = [request for request in requests if UnitSampler.covers(request.decision)]
        most, shape = self.heads.most, (self._n_tokens,)
        if wrong := [each.logits for each in usual if each.logits.shape != shape]:
            raise ValueError(f"logits {list(wrong[0].shape)} are not {list(shape)}")
        tokens: list[int] = []
        for start in range(0, len(usual), most):
            some = usual[start : start + most]
            head = self.heads.of(len(some))
            torch.stack([each.logits for each in some], out=head.logits[: len(some)])
            head.sampler.load([each.decision for each in some])
            tokens += read_back(head.choice.run()[: len(some)]).tolist()
        left = iter(tokens)
        return [
            _settle(next(left), each.decision)
            if UnitSampler.covers(each.decision)
            else _decide(each.logits, each.decision)
            for each in requests
        ]

    def _decode(self, group: list[FedRows], texts: list[TextRows]) -> None:
        step = self.decodes.of(len(group))
        step.packed.load(group)
        step.head.sampler.load([text.decision for text in texts])
        scores = step.run()
        states = scores.hidden[: len(group)].clone()
        for text, state in zip(texts, states.split(1), strict=True):
            text.hidden.append(state)
        _take(scores, texts)

    def _prefill(self, group: list[FedRows], texts: list[TextRows]) -> None:
        counts = [len(part) for part in group]
        step = self.prefills.of(sum(counts))
        step.packed.load(group)
        hidden, last = step.run()
        states = hidden[: sum(counts)].clone()
        for text, state in zip(texts, states.split(counts), strict=True):
            text.hidden.append(state)
        ready = [text if part.has_last else None for part, text in zip(group, texts, strict=True)]
        if any(text is not None and (text.wants_logits or text.decision) for text in ready):
            head = self.heads.of(len(group))
            head.hidden[: len(group)].copy_(last[: len(group)])
            head.sampler.load([None if text is None else text.decision for text in ready])
            _take(head.piece.run(), ready)


def _take(scores: Scores, texts: Sequence[TextRows | None]) -> None:
    ready = [(row, text) for row, text in enumerate(texts) if text is not None]
    if wanting := [(row, text) for row, text in ready if text.wants_logits]:
        kept = scores.logits[: len(texts)].clone()  # the next replay writes over the original
        for row, text in wanting:
            text.logits = kept[row]
    if deciding := [(row, text) for row, text in ready if text.decision is not None]:
        tokens = HostCopy(scores.tokens[: len(texts)])
        for row, text in deciding:
            text.tokens, text.row = tokens, row


def _decide(logits: Tensor, decision: TextDecision) -> int | Exception:
    try:
        return decision.policy.decide(
            logits, decision.history, decision.settings, decision.generator
        )
    except (RuntimeError, ValueError, TypeError, LookupError) as error:  # invalid logits, settings
        return error


def _settle(token: int, decision: TextDecision) -> int | Exception:
    if token == NO_TOKEN:
        return RuntimeError("the language model's logits are not numbers")
    return decision.policy.settle(token, decision.history)
