"""The executor on a graphics card: both decoders over paged caches, in captured graphs.

Everything else is answered as in `executor`. Without graphs the same code runs on a CPU, which is
how tests hold it to the plain executor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.audio_encoder import StreamItem
from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.device import ops
from MiniCPMO45.device.code_sampler import CodeSampler
from MiniCPMO45.device.decoder_runner import DecoderRunner
from MiniCPMO45.device.encoders_audio import AudioStreamEncoder
from MiniCPMO45.device.graphs import capture_all
from MiniCPMO45.device.packed_rows import DECODE_BUCKETS, FedRows, buckets_up_to
from MiniCPMO45.device.paged_kv import PAGE_TOKENS, PagedKvHandle, PagedKvStore
from MiniCPMO45.device.speech_runner import SpeechRunner
from MiniCPMO45.device.text_runner import TextRows, TextRunner
from MiniCPMO45.device.unit_sampler import UnitSampler
from MiniCPMO45.device.vocoder import DeviceCall, DeviceVocoder
from MiniCPMO45.device.vocoder_streams import VocoderStream
from MiniCPMO45.executor import Executor
from MiniCPMO45.kv_cache import KvHandle
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.steps import (
    ChooseToken,
    DrawCodes,
    DrawnCodes,
    EncodeStream,
    LlmForward,
    LlmOutput,
    TextDecision,
    TokenIds,
    Vocode,
)
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream, VoiceBase
from MiniCPMO45.voices import VoiceLibrary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceOptions:
    """How the engine uses the card.

    Attributes:
        most_conversations: that share one pass; more are answered in several.
        most_rows: rows of one prefill pass; longer input is fed in several.
        text_cache_bytes: memory of all language-model caches; None takes a share of what is free,
            at most what all conversations need at `TOKENS_EACH`.
        speech_cache_bytes: memory of all speech-decoder caches, likewise.
        show_progress: draw a progress bar while graphs are captured.
    """

    most_conversations: int = 64
    most_rows: int = 1024
    text_cache_bytes: int | None = None
    speech_cache_bytes: int | None = None
    show_progress: bool = True


TOKENS_EACH = 8192  # the context a conversation usually ends at; longer ones share the pool
TEXT_SHARE = 0.55  # of the memory that is free once the weights are loaded
SPEECH_SHARE = 0.1
SPEECH_ROWS_EACH = 32  # a unit's text and markers; longer starts are fed in several passes
CPU_PAGES = 16  # to begin with; the pool grows


@dataclass(frozen=True)
class CardMemory:
    """Memory of a card.

    Attributes:
        free_bytes: what the driver has left, for whoever asks first.
        unused_bytes: what torch holds and nothing is in.
    """

    free_bytes: int
    unused_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> CardMemory:
        """Return how a card's memory is used now."""
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return cls(free, held - torch.cuda.memory_allocated(device))

    def share_left(self, now: CardMemory) -> float:
        """Return how much of what the driver had left then is left now, 0 to 1.

        Args:
            now: the same card, later. What lay unused then belongs to the graphs for good.
        """
        left = now.free_bytes + now.unused_bytes - self.unused_bytes
        return min(max(left / max(self.free_bytes, 1), 0.0), 1.0)


class DeviceExecutor(Executor):
    """Answers requests of both decoders in fixed passes over paged caches.

    It is used by the thread that makes it, whose current device becomes that of the weights.

    Attributes:
        options: how the card is used.
        capture_seconds: how long the capture of all graphs took.
        memory_at_start: the card's, right after it; None without graphs.
    """

    llm_store: PagedKvStore
    tts_store: PagedKvStore

    def __init__(
        self,
        model: MiniCPMOForConditionalGeneration,
        vocoder: Token2Wav | None = None,
        voices: VoiceLibrary | None = None,
        *,
        options: DeviceOptions | None = None,
    ) -> None:
        self.options = options or DeviceOptions()
        self._free_bytes = _settle_on(model.llm.lm_head.weight.device)
        super().__init__(model, vocoder, voices)
        config, most = model.config, self.options.most_conversations
        self._text = TextRunner(
            model.llm,
            DecoderRunner(model.llm.model, config.decoder, self.llm_store),
            most_conversations=most,
            most_rows=self.options.most_rows,
        )
        self._speech = SpeechRunner(
            model.tts,
            self.speech_head,
            DecoderRunner(model.tts.model, config.tts_config.decoder, self.tts_store),
            most_conversations=most,
            most_rows=min(self.options.most_rows, SPEECH_ROWS_EACH * most),
        )
        self._audio = AudioStreamEncoder(
            model.apm, model.audio_projection_layer, pool_step=config.audio_pool_step
        )
        self._voice = None if vocoder is None else DeviceVocoder(vocoder)
        self.capture_seconds = 0.0
        self.memory_at_start: CardMemory | None = None
        if self._has_graphs:
            self.capture_seconds = self._capture()
            torch.cuda.empty_cache()
            self.memory_at_start = CardMemory.of(self.device)

    @property
    def free_share(self) -> float:
        """Of the caches, and of what voices and streams of speech take beside them."""
        if self.memory_at_start is None:
            return super().free_share
        on_card = self.memory_at_start.share_left(CardMemory.of(self.device))
        return min(super().free_share, on_card)

    @property
    def _has_graphs(self) -> bool:
        return self.device.type == "cuda"

    def _capture(self) -> float:
        start = time.perf_counter()
        rows = buckets_up_to(self.options.most_conversations, DECODE_BUCKETS)
        families = (
            self._text.prefill_pieces,
            self._text.decode_pieces,
            self._speech.pieces,
            [*self._audio.pieces(rows), *self._vision.pieces()],
            [] if self._voice is None else self._voice.pieces(rows),
        )
        for part in (self.llm_store, self.tts_store, self._vision):
            part.rehearse()  # before there are threads, and so alone with what compiles kernels
        capture_all(families, show_progress=self.options.show_progress)
        seconds = time.perf_counter() - start
        logger.info("captured the graphs in %.1f s", seconds)
        return seconds

    def _store(self, shape: DecoderConfig) -> PagedKvStore:
        is_text = shape == self.model.config.decoder
        asked = self.options.text_cache_bytes if is_text else self.options.speech_cache_bytes
        share = TEXT_SHARE if is_text else SPEECH_SHARE
        plain = super()._store(shape)
        if asked is None:
            most = most_tokens(shape, self.options.most_conversations) * plain.bytes_per_token
            asked = min(int(share * self._free_bytes), most)
        return PagedKvStore(
            shape,
            plain.rope,
            device=self.device,
            dtype=self.dtype,
            pages=max(CPU_PAGES, asked // (PAGE_TOKENS * plain.bytes_per_token)),
            can_grow=not self._has_graphs,
        )

    def _run_llm(self, requests: Sequence[LlmForward]) -> list[LlmOutput | Exception]:
        texts = [self._text_of(request) for request in requests]
        _reserve([(text.rows.kv, len(text.rows.ids)) for text in texts])
        results = self._text.feed(texts)
        answers: list[LlmOutput | Exception] = []
        for request, text, result in zip(requests, texts, results, strict=True):
            text.rows.kv.advance(len(text.rows.ids))
            hidden = result.hidden[0] if len(result.hidden) == 1 else torch.cat(result.hidden)
            if text.decision is None or result.token is None:
                answers.append(self._output(request, result.logits, hidden))
            else:
                token = _settle(result.token, text.decision)
                answers.append(LlmOutput(result.logits, hidden, token))
        return answers

    def _choose_tokens(self, requests: Sequence[ChooseToken]) -> list[int | Exception]:
        decisions = [request.decision for request in requests]
        if not all(UnitSampler.covers(decision) for decision in decisions):
            return super()._choose_tokens(requests)
        tokens = self._text.choose([request.logits for request in requests], decisions)
        return [_settle(token, decision) for token, decision in zip(tokens, decisions, strict=True)]

    def _draw_codes(self, requests: Sequence[DrawCodes]) -> list[DrawnCodes | RuntimeError]:
        if not all(CodeSampler.covers(request) for request in requests):
            return super()._draw_codes(requests)
        _reserve([(_paged(each.kv), each.n_rows + each.count - 1) for each in requests])
        answers: list[DrawnCodes | RuntimeError] = []
        for request, drawn in zip(requests, self._speech.draw(requests), strict=True):
            fed = len(drawn.codes) if drawn.has_ended else request.count - 1
            request.kv.advance(request.n_rows + fed)
            answers.append(drawn)
        return answers

    def open_stream(
        self, voice: VoiceBase, generator: torch.Generator | None = None
    ) -> SpeechStream:
        """Return a stream of speech at the start of a turn; see `Executor.open_stream`."""
        if self._voice is None:
            return super().open_stream(voice, generator)
        return self._voice.new_state(voice, generator)

    def _vocode(self, requests: Sequence[Vocode]) -> list[Tensor]:
        if self._voice is None:
            return super()._vocode(requests)
        calls = []
        for each in requests:
            assert isinstance(each.state, VocoderStream), "a stream of another executor"
            calls.append(DeviceCall(each.state, each.codes, each.is_last))
        return self._voice.stream_many(calls)

    def _encode_streams(self, requests: Sequence[EncodeStream]) -> list[Tensor]:
        return self._audio.encode(
            [StreamItem(r.mel, r.cache, r.prefix_frames, r.suffix_frames) for r in requests]
        )

    def _text_of(self, request: LlmForward) -> TextRows:
        """Lay a request out; a decision the device cannot take is left to the policy."""
        decision = request.decision
        if decision is None or UnitSampler.covers(decision):
            return TextRows(self._text_rows(request), request.wants_logits, decision)
        return TextRows(self._text_rows(request), wants_logits=True)

    def _text_rows(self, request: LlmForward) -> FedRows:
        ids: list[int] = []
        vectors: list[tuple[int, Tensor]] = []
        for piece in request.pieces:
            if isinstance(piece, TokenIds):
                ids += piece.ids
            else:
                vectors.append((len(ids), piece.rows))
                ids += [0] * len(piece.rows)
        return FedRows(_paged(request.kv), ids, vectors)


def make_executor(
    model: MiniCPMOForConditionalGeneration,
    vocoder: Token2Wav | None = None,
    voices: VoiceLibrary | None = None,
    *,
    options: DeviceOptions | None = None,
) -> Executor:
    """Return the engine where it can run, else the plain executor.

    Args:
        model: the checkpoint's modules, loaded.
        vocoder: flow and HiFT; None for text alone.
        voices: makes and keeps voices; None for text alone.
        options: how the engine uses the card.
    """
    if model.llm.lm_head.weight.is_cuda and ops.HAS_TRITON:
        return DeviceExecutor(model, vocoder, voices, options=options)
    return Executor(model, vocoder, voices)


def most_tokens(shape: DecoderConfig, conversations: int) -> int:
    """Return how many tokens caches are made for, so that another worker finds room on the card.

    Args:
        shape: the decoder's shape.
        conversations: at once; a single one may always use every position there is.
    """
    positions = shape.max_position_embeddings
    return max(conversations * min(TOKENS_EACH, positions), positions)


def _reserve(growth: Sequence[tuple[PagedKvHandle, int]]) -> None:
    """Make room in every cache before any of them takes a row.

    Raises:
        CacheFullError: a conversation would exceed the context length, or the memory.
        ValueError: one conversation appears twice.
    """
    if len({id(kv) for kv, _ in growth}) != len(growth):
        raise ValueError("one cache may appear only once in a batch")
    for kv, count in growth:
        kv.reserve(kv.length + count)


def _settle(token: int, decision: TextDecision) -> int:
    return decision.policy.settle(token, decision.history)


def _paged(kv: KvHandle) -> PagedKvHandle:
    assert isinstance(kv, PagedKvHandle), "a cache of another executor"
    return kv


def _settle_on(device: torch.device) -> int:
    """Make this thread's kernels run on the device, and return how much of its memory is free."""
    if device.type != "cuda":
        return 0
    torch.cuda.set_device(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free
