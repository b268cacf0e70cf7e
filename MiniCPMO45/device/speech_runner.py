"""Draws speech codes in fixed passes: what starts a run, the head, then a step per code.

Codes are fed back on the device; the host reads them when all are drawn. One pass serves all
conversations of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.device import ops
from MiniCPMO45.device.code_sampler import CodeSampler
from MiniCPMO45.device.decoder_runner import DecoderRunner
from MiniCPMO45.device.graphs import Piece
from MiniCPMO45.device.packed_rows import (
    DECODE_BUCKETS,
    NO_VECTOR,
    PREFILL_BUCKETS,
    FedRows,
    PackedRows,
    bucket_of,
    buckets_up_to,
    gather_vectors,
    passes,
)
from MiniCPMO45.device.paged_kv import PagedKvHandle
from MiniCPMO45.device.readback import read_back
from MiniCPMO45.device.upload import upload
from MiniCPMO45.steps import DrawCodes, DrawnCodes, SpeechCodes, SpokenText
from MiniCPMO45.tts import MiniCPMTTS

STEPS_PER_LOOK = 8  # codes drawn between two looks at whether every run has ended


class StartPass:
    """The rows that start runs: text with its language-model states, markers, codes.

    Attributes:
        vectors: [rows, language-model width] input: the states of spoken text, one after the other.
    """

    def __init__(self, tts: MiniCPMTTS, runner: DecoderRunner, rows: int) -> None:
        self.packed = PackedRows(runner.store, rows, is_decode=False)
        weight = tts.emb_text.weight
        width = tts.projector_semantic.linear1.in_features
        self.vectors = torch.zeros(rows, width, dtype=weight.dtype, device=weight.device)
        self.piece = Piece(f"speech start of {rows}", self._work)
        self._tts = tts
        self._runner = runner

    def load(self, parts: Sequence[FedRows]) -> None:
        """Describe a pass and copy its vectors."""
        self.packed.load(parts)
        gather_vectors(parts, self.vectors)

    def _work(self) -> Tensor:
        """Return the hidden states [sequences, width] of last rows."""
        tts, ids = self._tts, self.packed.ids
        n_text = tts.emb_text.num_embeddings
        text = tts.emb_text(ids.clamp(max=n_text - 1))
        codes = tts.emb_code[0]((ids - n_text).clamp(min=0))
        bare = torch.where(ids[:, None] < n_text, text, codes)
        states = F.normalize(tts.projector_semantic(self.vectors), dim=-1)
        chosen = self.packed.vector_of_row
        spoken = bare + states.index_select(0, chosen.clamp(min=0))
        rows = torch.where(chosen[:, None] == NO_VECTOR, bare, spoken)
        return self._runner.run(rows, self.packed.map).index_select(0, self.packed.last_rows)


class CodePass:
    """A bucket of runs: the head draws a code, a step feeds it and draws the next.

    Attributes:
        hidden: [rows, width] input of the head.
        sampler: draws; loaded before every run.
        packed: where the code of each run goes; a step moves it on by one.
    """

    def __init__(self, tts: MiniCPMTTS, runner: DecoderRunner, head: Tensor, rows: int) -> None:
        device = head.device
        self.packed = PackedRows(runner.store, rows, is_decode=True)
        self.hidden = torch.zeros(rows, head.shape[1], dtype=head.dtype, device=device)
        self.sampler = CodeSampler(rows, device)
        self.first = Piece(f"first code of {rows}", lambda: self._draw(self.hidden))
        self.step = Piece(f"code of {rows}", self._work)
        self._codes = torch.zeros(rows, dtype=torch.int64, device=device)
        self._last_positions = torch.zeros(rows, dtype=torch.int32, device=device)
        self._head = head
        self._tts = tts
        self._runner = runner

    def load(self, requests: Sequence[DrawCodes], held: Sequence[int]) -> None:
        """Get ready for runs whose caches hold `held` tokens when the first code is drawn."""
        self.sampler.load(requests)
        rows = [
            FedRows(_paged(request), (0,), offset=length - 1 - request.kv.length)
            for request, length in zip(requests, held, strict=True)
        ]
        self.packed.load(rows)  # each at its last row: a step moves on before it feeds
        lasts = [h + request.count - 2 for request, h in zip(requests, held, strict=True)]
        upload(lasts, self._last_positions[: len(lasts)])

    def _work(self) -> None:
        """Move on, feed the code drawn last and draw the next."""
        rows = self.packed.map
        ops.advance_runs(
            rows.positions, rows.tile_rows, self._last_positions, self.sampler.has_ended
        )
        self._draw(self._runner.run(self._tts.emb_code[0](self._codes), rows))

    def _draw(self, hidden: Tensor) -> None:
        logits = ops.norm_linear(hidden, None, 0.0, self._head)
        self._codes.copy_(self.sampler.choose(logits))


class SpeechRunner:
    """All passes of the speech decoder."""

    def __init__(
        self,
        tts: MiniCPMTTS,
        head: Tensor,
        runner: DecoderRunner,
        *,
        most_conversations: int,
        most_rows: int,
    ) -> None:
        """Make the passes.

        Args:
            tts: the speech decoder.
            head: [codes, width] output matrix.
            runner: its layers.
            most_conversations: in one pass.
            most_rows: in one starting pass.
        """
        self.starts = {
            rows: StartPass(tts, runner, rows) for rows in buckets_up_to(most_rows, PREFILL_BUCKETS)
        }
        self.draws = {
            rows: CodePass(tts, runner, head, rows)
            for rows in buckets_up_to(most_conversations, DECODE_BUCKETS)
        }
        self._n_text = tts.emb_text.num_embeddings

    @property
    def pieces(self) -> list[Piece[Any]]:
        """Everything to capture, largest first."""
        draws = [piece for each in self.draws.values() for piece in (each.first, each.step)]
        return [*reversed([each.piece for each in self.starts.values()]), *reversed(draws)]

    def draw(self, requests: Sequence[DrawCodes]) -> list[DrawnCodes]:
        """Draw codes for different conversations; their caches have room and are not advanced."""
        drawn: list[DrawnCodes] = []
        most = max(self.draws)
        for start in range(0, len(requests), most):
            drawn += self._draw(requests[start : start + most])
        return drawn

    def _draw(self, requests: Sequence[DrawCodes]) -> list[DrawnCodes]:
        run = self.draws[bucket_of(len(requests), list(self.draws))]
        self._start(requests, run.hidden)
        run.load(requests, [request.kv.length + request.n_rows for request in requests])
        run.first.run()
        count = max(request.count for request in requests)
        may_end = any(request.least < request.count for request in requests)
        for step in range(1, count):
            looks = may_end and step % STEPS_PER_LOOK == 0
            if looks and read_back(run.sampler.has_ended[: len(requests)]).all():
                break
            run.step.run()
        codes = read_back(run.sampler.drawn[: len(requests), :count]).tolist()
        return [_answer(row, request) for row, request in zip(codes, requests, strict=True)]

    def _start(self, requests: Sequence[DrawCodes], hidden: Tensor) -> None:
        """Feed what starts the runs; the state of each last row goes to `hidden`."""
        rows = [self._fed_rows(request) for request in requests]
        owners = {id(request.kv): row for row, request in enumerate(requests)}
        for group in passes(rows, max(self.starts), max(self.draws)):
            start = self.starts[bucket_of(sum(len(part.ids) for part in group), list(self.starts))]
            start.load(group)
            last = start.piece.run()
            if len(group) == len(requests):
                hidden[: len(group)].copy_(last[: len(group)])
                continue
            for row, part in enumerate(group):
                hidden[owners[id(part.kv)]].copy_(last[row])

    def _fed_rows(self, request: DrawCodes) -> FedRows:
        ids: list[int] = []
        vectors: list[tuple[int, Tensor]] = []
        for piece in request.pieces:
            if isinstance(piece, SpokenText):
                vectors.append((len(ids), piece.hidden))
            shift = self._n_text if isinstance(piece, SpeechCodes) else 0  # codes follow the text
            ids += [each + shift for each in piece.ids]
        return FedRows(_paged(request), ids, vectors)


def _answer(codes: list[int], request: DrawCodes) -> DrawnCodes:
    codes = codes[: request.count]
    has_ended = request.eos in codes
    return DrawnCodes(tuple(codes[: codes.index(request.eos)] if has_ended else codes), has_ended)


def _paged(request: DrawCodes) -> PagedKvHandle:
    assert isinstance(request.kv, PagedKvHandle)
    return request.kv
