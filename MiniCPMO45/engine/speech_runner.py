"""Draws speech codes in captured passes: a start, the head, then a step per code.

Codes are fed back on the device; the host reads them once all are drawn.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.engine.kv_cache import (
    FedRows,
    KvStore,
    PackedRows,
    PassLimits,
    Rows,
    passes,
    reserve_all,
)
from MiniCPMO45.engine.policies import KEEPS_ALL, CodeRule, draw_uniforms
from MiniCPMO45.engine.steps import CODES_PER_REQUEST, DrawCodes, DrawnCodes
from MiniCPMO45.kernels import code_choice
from MiniCPMO45.kernels.attention import advance_runs
from MiniCPMO45.kernels.code_choice import CODE_FORMAT, NO_CODE, PENALTY_WINDOW, CodeWords
from MiniCPMO45.kernels.device import Capturable, Staging, read_back
from MiniCPMO45.kernels.products import multiply
from MiniCPMO45.model.transformer import MiniCPMTTS

STEPS_PER_CHECK = 8  # codes between checks whether all runs have ended, which wait for the device


class CodeSampler:
    def __init__(self, rows: int, device: torch.device) -> None:
        # Codes since `load`, the end of speech included.
        self.drawn = torch.zeros(rows, CODES_PER_REQUEST, dtype=torch.int64, device=device)
        self._staging = Staging(rows, code_choice.UNIFORM + CODES_PER_REQUEST, device)
        self.load(())

    @property
    def has_ended(self) -> Tensor:
        """Rows that drew the end of speech, bool [rows]; their later draws are undefined."""
        return self._staging.device_words[:, CodeWords._fields.index("has_ended")] > 0

    @staticmethod
    def covers(request: DrawCodes) -> bool:
        rule = request.rule
        is_narrow = 1 <= rule.top_k <= code_choice.MOST_CANDIDATES
        is_bounded = rule.is_greedy or not _is_filtered(rule) or is_narrow
        is_usual = type(rule).choose is CodeRule.choose
        return is_usual and is_bounded and request.count <= CODES_PER_REQUEST

    def load(self, requests: Sequence[DrawCodes]) -> None:
        """Enqueue the parameters of at most one covered run per row.

        Each run that is not greedy takes one number per possible code from its generator.
        """
        words = self._staging.begin()
        words[:, code_choice.N_WORDS : code_choice.UNIFORM] = NO_CODE
        for row, request in zip_longest(words, requests):
            if request is None:
                CODE_FORMAT.pack_into(row.data, 0, *CodeWords())
            else:
                _write_codes(row, request)
        self._staging.send()

    def choose(self, logits: Tensor) -> Tensor:
        """Draw and record the next code of every run from logits [rows, codes]: int64 [rows]."""
        return code_choice.choose_codes(self._staging.device_words, self.drawn, logits)


def _is_filtered(rule: CodeRule) -> bool:
    return rule.top_p < 1.0 or rule.top_k > 0


def _write_codes(words: np.ndarray, request: DrawCodes) -> None:
    rule, recent = request.rule, request.recent[-PENALTY_WINDOW:]
    parameters = CodeWords(
        eos=request.eos,
        is_greedy=rule.is_greedy,
        top_k=min(max(rule.fewest_kept, 1), code_choice.MOST_CANDIDATES),
        is_filtered=_is_filtered(rule),
        least=request.least,
        n_recent=len(recent),
        divisor=rule.divisor,
        top_p=rule.top_p if rule.top_p < 1.0 else KEEPS_ALL,
        penalty=rule.repetition_penalty,
    )
    CODE_FORMAT.pack_into(words.data, 0, *parameters)
    words[code_choice.N_WORDS : code_choice.N_WORDS + len(recent)] = array("i", recent)
    if not rule.is_greedy:
        numbers = words[code_choice.UNIFORM : code_choice.UNIFORM + request.count].view(np.float32)
        numbers[:] = draw_uniforms(request.generator, request.count)


class StartPass(Capturable[Tensor]):
    """A pass over the prefixes of runs: text with its language-model states, markers, codes."""

    def __init__(self, tts: MiniCPMTTS, store: KvStore, rows: int, rows_per_tile: int) -> None:
        super().__init__(f"speech start of {rows}")
        width = tts.projector_semantic.linear1.in_features
        self.vectors = tts.emb_text.weight.new_zeros(rows, width)
        self.packed = PackedRows(store, rows, rows_per_tile=rows_per_tile, vectors=self.vectors)
        self._tts = tts

    def _work(self) -> Tensor:
        tts, ids = self._tts, self.packed.ids
        n_text = tts.emb_text.num_embeddings
        text = tts.emb_text(ids.clamp(max=n_text - 1))
        codes = tts.emb_code[0]((ids - n_text).clamp(min=0))
        bare = torch.where(ids[:, None] < n_text, text, codes)
        projected = F.normalize(tts.projector_semantic(self.vectors), dim=-1)
        states, is_spoken = self.packed.spread(projected)
        hidden = tts.model(torch.where(is_spoken, bare + states, bare), self.packed.batch())
        return hidden.index_select(0, self.packed.last_rows)


class CodePass:
    """Runs of one bucket size: `first` draws a code, `step` feeds it and draws the next.

    `hidden` [rows, width] is the input of the head.
    """

    def __init__(self, tts: MiniCPMTTS, store: KvStore, head: Tensor, rows: int) -> None:
        device = head.device
        self.packed = PackedRows(store, rows)
        self.hidden = torch.zeros(rows, head.shape[1], dtype=head.dtype, device=device)
        self.sampler = CodeSampler(rows, device)
        self.first = Capturable(f"first code of {rows}", lambda: self._draw(self.hidden))
        self.step = Capturable(f"code of {rows}", self._work)
        self._codes = torch.zeros(rows, dtype=torch.int64, device=device)
        self._last_positions = Staging(1, rows, device)
        self._head, self._tts = head, tts

    def load(self, requests: Sequence[DrawCodes], held: Sequence[int]) -> None:
        self.sampler.load(requests)
        rows = [
            FedRows(request.kv, Rows((0,)), offset=length - 1 - request.kv.length)
            for request, length in zip(requests, held, strict=True)
        ]
        self.packed.load(rows)  # each at its last row, since a step first advances
        lasts = [h + request.count - 2 for request, h in zip(requests, held, strict=True)]
        self._last_positions.begin()[0, : len(lasts)] = lasts
        self._last_positions.send()

    def _work(self) -> None:
        rows, last_positions = self.packed.map, self._last_positions.device_words[0]
        advance_runs(rows.positions, rows.tile_rows, last_positions, self.sampler.has_ended)
        embedded = self._tts.emb_code[0](self._codes)
        self._draw(self._tts.model(embedded, self.packed.batch()))

    def _draw(self, hidden: Tensor) -> None:
        logits = multiply(hidden, self._head)
        self._codes.copy_(self.sampler.choose(logits))


class SpeechRunner:
    def __init__(self, tts: MiniCPMTTS, store: KvStore, limits: PassLimits) -> None:
        with torch.inference_mode():
            self.head = head = tts.folded_head()
        self.starts = limits.prefills(lambda rows, tile: StartPass(tts, store, rows, tile))
        self.draws = limits.decodes(lambda rows: CodePass(tts, store, head, rows))
        self._n_text = tts.emb_text.num_embeddings
        self._steps_per_check = 1 if limits.is_exact else STEPS_PER_CHECK

    @property
    def pieces(self) -> list[Capturable[Any]]:
        """All passes to capture, largest first."""
        draws = [piece for each in self.draws.captured for piece in (each.step, each.first)]
        return [*self.starts.captured, *draws]

    def draw(self, requests: Sequence[DrawCodes]) -> list[DrawnCodes | RuntimeError]:
        """Draw codes for different conversations; on an error no cache has grown.

        Raises:
            CacheFullError: a conversation would exceed the context length, or the memory.
        """
        reserve_all([(each.kv, len(each.rows) + each.count - 1) for each in requests])
        usual = [request for request in requests if CodeSampler.covers(request)]
        most = self.draws.most
        groups = [usual[start : start + most] for start in range(0, len(usual), most)]
        together = iter([answer for group in groups for answer in self._draw(group)])
        drawn = [
            next(together) if CodeSampler.covers(request) else self._draw_on_host(request)
            for request in requests
        ]
        for request, answer in zip(requests, drawn, strict=True):
            if isinstance(answer, DrawnCodes):
                fed_back = len(answer.codes) if answer.has_ended else request.count - 1
                request.kv.advance(len(request.rows) + fed_back)
        return drawn

    def _draw(self, requests: Sequence[DrawCodes]) -> list[DrawnCodes | RuntimeError]:
        run = self.draws.of(len(requests))
        self._start([FedRows(each.kv, each.rows) for each in requests], run.hidden)
        run.load(requests, [each.kv.length + len(each.rows) for each in requests])
        run.first.run()
        count = max(request.count for request in requests)
        may_end = any(request.least < request.count for request in requests)
        for step in range(1, count):
            is_checked = may_end and step % self._steps_per_check == 0
            if is_checked and read_back(run.sampler.has_ended[: len(requests)]).all():
                break
            run.step.run()
        codes = read_back(run.sampler.drawn[: len(requests), :count]).tolist()
        return [_answer(row, request) for row, request in zip(codes, requests, strict=True)]

    def _draw_on_host(self, request: DrawCodes) -> DrawnCodes | RuntimeError:
        """Draw codes by a rule that the sampler does not cover."""
        codes: list[int] = []
        hidden = self.head.new_empty(1, self.head.shape[1])
        rows = FedRows(request.kv, request.rows)
        while len(codes) < request.count:
            self._start([rows], hidden)
            logits = multiply(hidden, self.head)[0].float()
            recent, may_end = [*request.recent, *codes], len(codes) >= request.least
            try:
                code = request.rule.choose(
                    logits, recent, request.eos, request.generator, may_end=may_end
                )
            except RuntimeError as error:
                return error
            if code == request.eos:
                return DrawnCodes(tuple(codes), has_ended=True)
            next_row, n_fed = Rows((self._n_text + code,)), len(request.rows) + len(codes)
            rows = FedRows(request.kv, next_row, offset=n_fed)
            codes.append(code)
        return DrawnCodes(tuple(codes), has_ended=False)

    def _start(self, rows: Sequence[FedRows], hidden: Tensor) -> None:
        """Feed the rows of each run; write the last row's state of each to `hidden`."""
        owners = {id(part.kv): row for row, part in enumerate(rows)}
        for group in passes(rows, self.starts.most, self.draws.most):
            start = self.starts.of(sum(len(part) for part in group))
            start.packed.load(group)
            last = start.run()
            if len(group) == len(rows):
                hidden[: len(group)].copy_(last[: len(group)])
                continue
            for row, part in enumerate(group):
                hidden[owners[id(part.kv)]].copy_(last[row])


def _answer(codes: list[int], request: DrawCodes) -> DrawnCodes | RuntimeError:
    codes = codes[: request.count]
    has_ended = request.eos in codes
    drawn = codes[: codes.index(request.eos)] if has_ended else codes
    if NO_CODE in drawn:
        return RuntimeError("the speech decoder's logits are not numbers")
    return DrawnCodes(tuple(drawn), has_ended)
