"""An executor without a model: answers follow a script, caches hold what was fed.

Cached values are the ids of the rows, so that a test can read a conversation back from its cache,
whatever was dropped or moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import AudioConfig, SpeechTiming, TTSConfig
from MiniCPMO45.engine.kv_cache import KvHandle, KvRows, KvStore
from MiniCPMO45.engine.session import AudioInputState, SamplerState, Session, SpeechState
from MiniCPMO45.engine.steps import (
    ChooseToken,
    DrawCodes,
    DrawnCodes,
    EncodeClips,
    EncodeImages,
    LlmForward,
    LlmOutput,
    OpenVoice,
    Request,
    TextDecision,
    Vocode,
)
from MiniCPMO45.kernels.products import rotate
from MiniCPMO45.model.audio_encoder import EncodeStream, new_audio_cache
from MiniCPMO45.token2wav.vocoder import CodeChunk
from MiniCPMO45.token2wav.vocoder_state import SpeechStream
from tests.fakes.batching import at_once
from tests.fakes.decoders import decoder_shape
from tests.fakes.vocoder_lengths import count_samples

R = TypeVar("R")
Row = int | Tensor  # a token to be certain of, or a whole row of logits

EMBEDDING = -1  # label of a row that was fed as a vector
CODE_COUNT = 6562
CODE_EOS = CODE_COUNT - 1
FIRST_CODE = TTSConfig().num_text_tokens
ROWS_PER_SECOND = 10
ROWS_PER_SLICE = 64
CERTAIN = 40.0  # logit of a scripted token; all others are 0
TONE_LEVEL = 0.25
HIDDEN_SIZE = 4

POSITIONS = 100_000
_AUDIO = AudioConfig(d_model=4, encoder_layers=1, encoder_attention_heads=1, encoder_ffn_dim=16)


def one_hot(token: int, size: int) -> Tensor:
    """Logits that leave no choice, float32 [size]."""
    logits = torch.zeros(size)
    logits[token] = CERTAIN
    return logits


def cached_labels(kv: KvHandle) -> list[int]:
    """What a scripted cache holds, oldest first: token ids, `EMBEDDING` for vectors."""
    return [int(label) for label in kv.rows(0, kv.length).values[0, 0, :, 0]]


def cached_angles(kv: KvHandle) -> Tensor:
    """Angle each cached key is rotated to, float32 [length] in -pi ... pi."""
    keys = kv.rows(0, kv.length).keys[0, 0]  # [n, 2]
    return torch.atan2(keys[:, 1], keys[:, 0])


class ToneVoice(SpeechStream):
    """A voice that counts what happens to it."""

    def __init__(self) -> None:
        self.resets = 0
        self.calls = 0

    def reset(self) -> None:
        self.resets += 1
        self.calls = 0


class ScriptedExecutor:
    """Plays the model's part.

    Attributes:
        decisions: logits of the next language-model calls that want any, in order.
        codes: speech codes of the next speech-decoder calls; counted up from 0 when used up.
        requests: everything asked for, in order.
    """

    def __init__(
        self,
        vocabulary_size: int,
        decisions: Iterable[Row] = (),
        *,
        speech_limit: int = POSITIONS,
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.decisions: list[Row] = list(decisions)
        self.codes: list[Row] = []
        self.requests: list[Request] = []
        self.llm_store = _store()
        self.tts_store = _store(speech_limit)
        self._next_code = 0

    def open_session(self, session_id: str = "scripted", *, seed: int = 0) -> Session:
        return Session(
            id=session_id,
            kv=self.llm_store.open(),
            audio_input=AudioInputState(new_audio_cache(_AUDIO)),
            speech=SpeechState(self.tts_store.open()),
            sampler=SamplerState(torch.Generator().manual_seed(seed)),
        )

    def of_kind(self, kind: type[R]) -> list[R]:
        return [request for request in self.requests if isinstance(request, kind)]

    def fed_ids(self) -> list[tuple[int, ...]]:
        return [tuple(_labels(request)) for request in self.of_kind(LlmForward)]

    @at_once
    @torch.inference_mode()
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        self.requests += requests
        handlers: dict[type, Callable[[Any], Any]] = {
            LlmForward: self._run_llm,
            ChooseToken: lambda r: _decide(r.logits, r.decision),
            DrawCodes: self._draw_codes,
            Vocode: self._vocode,
            EncodeStream: lambda _: torch.zeros(ROWS_PER_SECOND, HIDDEN_SIZE),
            EncodeClips: lambda r: [torch.zeros(ROWS_PER_SECOND, HIDDEN_SIZE) for _ in r.mels],
            EncodeImages: lambda r: [torch.zeros(ROWS_PER_SLICE, HIDDEN_SIZE) for _ in r.slices],
            OpenVoice: lambda _: ToneVoice(),
        }
        return [handlers[type(request)](request) for request in requests]

    def _run_llm(self, request: LlmForward) -> LlmOutput:
        labels = _labels(request)
        first = request.kv.length
        _append(request.kv, labels)
        hidden = torch.zeros(len(labels), HIDDEN_SIZE)
        hidden[:, 0] = torch.tensor(labels)
        hidden[:, 1] = torch.arange(first, first + len(labels))
        if not request.wants_logits and request.decision is None:
            return LlmOutput(None, hidden)
        assert self.decisions, "the script has ended and another decision is wanted"
        logits = self._logits(self.decisions.pop(0), self.vocabulary_size)
        token = None if request.decision is None else _decide(logits, request.decision)
        return LlmOutput(logits if request.wants_logits else None, hidden, token)

    def _draw_codes(self, request: DrawCodes) -> DrawnCodes:
        codes: list[int] = []
        fed = [each % FIRST_CODE for each in request.rows.ids]
        while len(codes) < request.count:
            _append(request.kv, fed)
            code = request.rule.choose(
                self._code_logits(),
                [*request.recent, *codes],
                request.eos,
                request.generator,
                may_end=len(codes) >= request.least,
            )
            if code == request.eos:
                return DrawnCodes(tuple(codes), True)
            codes.append(code)
            fed = [code]
        return DrawnCodes(tuple(codes), False)

    def _code_logits(self) -> Tensor:
        if self.codes:
            return self._logits(self.codes.pop(0), CODE_COUNT)
        self._next_code += 1
        return one_hot(self._next_code - 1, CODE_COUNT)

    def _vocode(self, request: Vocode) -> Tensor:
        assert isinstance(request.state, ToneVoice)
        is_first = request.state.calls == 0
        request.state.calls += 1
        timing = SpeechTiming()
        if not request.is_last:
            assert len(request.codes) > timing.lookahead_codes
        n_samples = count_samples(
            CodeChunk(tuple(request.codes), request.is_last), is_first=is_first
        )
        return torch.full((n_samples,), TONE_LEVEL)

    def _logits(self, row: Row, size: int) -> Tensor:
        return row.clone() if isinstance(row, Tensor) else one_hot(row, size)


def spoken(request: DrawCodes) -> tuple[int, ...]:
    """The text of a run's condition."""
    ids = request.rows.ids
    return tuple(i for at, states in request.rows.vectors for i in ids[at : at + len(states)])


def markers(request: DrawCodes) -> tuple[int, ...]:
    """What follows the text of a run's condition."""
    return request.rows.ids[len(spoken(request)) :]


def _decide(logits: Tensor, decision: TextDecision) -> int:
    return decision.policy.decide(logits, decision.history, decision.settings, decision.generator)


def _labels(request: LlmForward) -> list[int]:
    labels = list(request.rows.ids)
    for start, vectors in request.rows.vectors:
        labels[start : start + len(vectors)] = [EMBEDDING] * len(vectors)
    return labels


def _append(kv: KvHandle, labels: Sequence[int]) -> None:
    """Feed rows: values are labels, keys the unit vector rotated to its position."""
    count, first = len(labels), kv.length
    cos, sin = kv.store.rope.tables(torch.arange(first, first + count), torch.float32)
    keys = rotate(torch.tensor([1.0, 0.0]).expand(count, 1, 2), cos, sin)
    values = torch.tensor(labels, dtype=torch.float32)[:, None, None].expand(count, 1, 2)
    kv.put(KvRows(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], kv.length))


def _store(positions: int = POSITIONS) -> KvStore:
    device, shape = torch.device("cpu"), decoder_shape(HIDDEN_SIZE, positions=positions)
    return KvStore(shape, device=device, dtype=torch.float32, pages=2, can_grow=True)
