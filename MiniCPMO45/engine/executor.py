"""Answers requests with weights and caches; the only caller of any module's `forward`.

Requests of one kind are answered in as few passes as possible. On a card passes have fixed sizes
and are captured as graphs; elsewhere the same passes have exact sizes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.engine.kv_cache import KvStore, PassLimits, cached_bytes
from MiniCPMO45.engine.session import AudioInputState, SamplerState, Session, SpeechState
from MiniCPMO45.engine.speech_runner import SpeechRunner
from MiniCPMO45.engine.steps import (
    ChooseToken,
    Collect,
    DrawCodes,
    EncodeClips,
    EncodeImages,
    LlmForward,
    OpenVoice,
    Request,
    Vocode,
)
from MiniCPMO45.engine.text_runner import TextRunner
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.kernels.device import HAS_TRITON, CardMemory, HostCopy, capture_all, is_small_card
from MiniCPMO45.kernels.plan_search import Product, find_plans
from MiniCPMO45.kernels.products import matrix_of
from MiniCPMO45.kernels.quantised import Weight
from MiniCPMO45.model.audio_encoder import AudioEmbedder, EncodeStream, new_audio_cache
from MiniCPMO45.model.transformer import Decoder, DecoderLayer
from MiniCPMO45.model.vision import SliceEncoder
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.pictures import Slice
from MiniCPMO45.settings import CacheKind, LoadOptions
from MiniCPMO45.token2wav.vocoder import Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream
from MiniCPMO45.token2wav.voices import VoiceLibrary

logger = logging.getLogger(__name__)

# Memory of a card.
SPEECH_TOKENS_EACH = 1024  # 28 s of one turn; longer ones share, see `modes/speech.py`
KERNEL_BYTES = 550_000_000  # of compiled kernels and graphs
GRAPH_BYTES_EACH = 190_000_000  # of a conversation in the largest passes
TEXT_SHARE = 0.55  # of the memory free after loading the weights, without those
SPEECH_SHARE = 0.1
SPEECH_ROWS_EACH = 32  # a unit's text and markers; longer prefixes take several passes
FEWEST_PAGES = 16  # of a pool; that of a CPU grows
SMALL_CARD_ROWS = 512  # of a prefill pass on a small card

NO_VOICE = "this checkpoint was loaded without its Token2wav assets"


class MissingVoiceError(RuntimeError):
    """Speech was requested and the checkpoint has no vocoder."""


Handler = Callable[[Sequence[Any]], Collect]
Handlers = dict[type, Handler]


class Executor:
    """Weights, cache stores, and `answer`, which takes requests of one kind.

    Used by the thread that creates it, whose current device becomes that of the weights. Without
    Token2wav assets there are no vocoder and voices. `memory_at_start` is the card's memory after
    all graphs are captured; None without graphs.
    """

    def __init__(
        self,
        model: MiniCPMOForConditionalGeneration,
        vocoder: Token2Wav | None = None,
        voices: VoiceLibrary | None = None,
        *,
        options: LoadOptions | None = None,
    ) -> None:
        self.model = model
        self.vocoder = vocoder
        self.voices = voices
        self.options = options or LoadOptions()
        model.llm.model.fuse()  # first, since it temporarily needs memory besides the weights
        model.tts.model.fuse()
        if self._has_graphs and is_small_card(self.device):
            rows = min(self.options.most_rows, SMALL_CARD_ROWS)
            self.options = replace(self.options, least_conversations=1, most_rows=rows)
        free_bytes = self._use_device()
        if self._has_graphs:
            self._find_plans()
        config, asked = model.config, self.options
        text_bytes, speech_bytes = int(TEXT_SHARE * free_bytes), int(SPEECH_SHARE * free_bytes)
        has_codes = asked.text_cache is CacheKind.INT8
        self.llm_store = self._store(
            config, asked.text_cache_bytes, text_bytes, asked.tokens_each, has_codes
        )
        self.tts_store = self._store(
            config.tts_config, asked.speech_cache_bytes, speech_bytes, SPEECH_TOKENS_EACH
        )
        speech_rows = min(asked.most_rows, SPEECH_ROWS_EACH * asked.conversations)
        limits = PassLimits(asked.conversations, asked.most_rows, is_exact=not self._has_graphs)
        self._text = TextRunner(model.llm, self.llm_store, limits)
        self._speech = SpeechRunner(model.tts, self.tts_store, replace(limits, rows=speech_rows))
        self._vision = SliceEncoder(model.vpm, model.resampler, most_rows=asked.conversations)
        self._audio = AudioEmbedder(
            model.apm, model.audio_projection_layer, pool_step=model.config.audio_pool_step
        )
        self._handlers: Handlers = {
            LlmForward: self._text.feed,
            ChooseToken: _complete(self._text.choose),
            EncodeClips: _complete(self._encode_clips),
            EncodeStream: _complete(self._audio.embed_streams),
            EncodeImages: _complete(self._encode_images),
            DrawCodes: _complete(self._speech.draw),
            Vocode: self._vocode,
            OpenVoice: _complete(self._open_voices),
        }
        self.memory_at_start = self._capture() if self._has_graphs else None

    @cached_property
    def submit(self) -> Callable[[Sequence[Request]], Collect]:
        """Enqueue requests of one kind; each request type documents its answer.

        At most one per conversation, besides pictures encoded ahead.
        """
        return partial(_submit, self._handlers)

    @property
    def device(self) -> torch.device:
        return self.model.llm.model.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.llm.model.norm.weight.dtype

    @property
    def free_share(self) -> float:
        """Free share of the memory for conversations, 0 to 1; queries the device.

        Covers the caches, voices and speech streams.
        """
        shares = [self.llm_store.free_share, self.tts_store.free_share]
        if self.memory_at_start is not None:
            shares.append(self.memory_at_start.share_left(CardMemory.of(self.device)))
        return min(shares)

    def open_session(self, session_id: str, *, seed: int | None = None) -> Session:
        generator = torch.Generator(device=self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        shape = self.model.config.audio_config
        return Session(
            session_id,
            self.llm_store.open(),
            AudioInputState(new_audio_cache(shape, device=self.device, dtype=self.dtype)),
            SpeechState(self.tts_store.open()),
            SamplerState(generator),
        )

    @property
    def _has_graphs(self) -> bool:
        return self.device.type == "cuda" and HAS_TRITON

    def _use_device(self) -> int:
        """Make the device current for this thread; return the bytes free besides the graphs'."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.set_device(self.device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(free - KERNEL_BYTES - GRAPH_BYTES_EACH * self.options.conversations, 0)

    @torch.inference_mode()
    def _find_plans(self) -> None:
        llm, tts = self.model.llm, self.model.tts
        heads = (llm.model, matrix_of(llm.lm_head)), (tts.model, tts.folded_head())
        products = [each for decoder, head in heads for each in _products(decoder, head)]
        find_plans(products, self.dtype, show_progress=self.options.show_progress)

    def _store(
        self,
        shape: DecoderConfig,
        asked_bytes: int | None,
        most_bytes: int,
        tokens_each: int,
        has_codes: bool = False,
    ) -> KvStore:
        token_bytes = cached_bytes(shape, torch.int8 if has_codes else self.dtype)
        if asked_bytes is None:
            slots = max(self.options.slots, self.options.least_conversations)
            most = most_tokens(shape, slots, tokens_each)
            asked_bytes = min(most_bytes, most * token_bytes)
        return KvStore(
            shape,
            device=self.device,
            dtype=self.dtype,
            pages=max(FEWEST_PAGES, asked_bytes // (PAGE_TOKENS * token_bytes)),
            has_codes=has_codes,
            can_grow=not self._has_graphs,
        )

    def _capture(self) -> CardMemory:
        start = time.perf_counter()
        rows = self._text.decodes.buckets
        families = (  # largest memory first, for the others to reuse
            [*self._vision.pieces(), *self._audio.pieces(rows)],
            self._text.prefills.captured,
            self._text.decode_pieces,
            self._speech.pieces,
            [] if self.vocoder is None else self.vocoder.pieces(rows),
        )
        for part in (self.llm_store, self.tts_store, self._vision):
            part.warm_up()  # before there are threads that compile kernels concurrently
        capture_all(families, show_progress=self.options.show_progress)
        logger.info("captured the graphs in %.1f s", time.perf_counter() - start)
        torch.cuda.empty_cache()
        return CardMemory.of(self.device)

    def prepare_slices(self, slices: Sequence[Slice]) -> tuple[Slice, ...]:
        """Prepare slices on the CPU before they are encoded; any thread may call this."""
        return self._vision.prepare(slices)

    def _encode_clips(self, requests: Sequence[EncodeClips]) -> list[list[Tensor]]:
        embed = {True: self._audio.embed_voice, False: self._audio.embed_clips}
        return [embed[each.is_voice](each.mels, each.block_frames) for each in requests]

    def _encode_images(self, requests: Sequence[EncodeImages]) -> list[list[Tensor]]:
        slices = [each for request in requests for each in request.slices]
        encoded = iter(self._vision.encode(slices))
        return [[next(encoded) for _ in request.slices] for request in requests]

    def _vocode(self, requests: Sequence[Vocode]) -> Collect:
        """Answer with samples on the host, in one copy, since each copy waits for the device."""
        if self.vocoder is None:
            raise MissingVoiceError(NO_VOICE)
        waves = self.vocoder.stream_many(requests)
        samples, lengths = HostCopy(torch.cat(waves)), [len(wave) for wave in waves]
        return lambda: list(samples.wait().split(lengths))

    def _open_voices(self, requests: Sequence[OpenVoice]) -> list[SpeechStream]:
        voices = self.voices
        if voices is None:
            raise MissingVoiceError(NO_VOICE)
        return [voices.open(each.audio, each.generator) for each in requests]


@torch.inference_mode()
def _submit(handlers: Handlers, requests: Sequence[Request]) -> Collect:
    if not requests:
        return list
    [kind] = {type(request) for request in requests}
    return handlers[kind](requests)


def _complete(handler: Callable[[Sequence[Any]], list[Any]]) -> Handler:
    """Return a handler whose answers the host need not wait for after its call."""

    def submit(requests: Sequence[Any]) -> Collect:
        answers = handler(requests)
        return lambda: answers

    return submit


def _products(decoder: Decoder, head: Weight) -> list[Product]:
    """Return the products of one layer, whose sizes are those of all, and of the output head."""
    layer = decoder.layers[0]
    assert isinstance(layer, DecoderLayer)
    attention, mlp = layer.self_attn, layer.mlp
    return [
        Product(attention.qkv(), layer.input_layernorm.weight),
        Product(matrix_of(attention.o_proj), adds=True),
        Product(mlp.gate_up(), layer.post_attention_layernorm.weight, is_gated=True),
        Product(matrix_of(mlp.down_proj), adds=True),
        Product(head),
    ]


def most_tokens(shape: DecoderConfig, conversations: int, tokens_each: int) -> int:
    """Return the tokens to allocate caches for, leaving memory for other workers on the card.

    A single conversation may use every position; beyond that each counts `tokens_each`.
    """
    positions = shape.max_position_embeddings
    return max(conversations * min(tokens_each, positions), positions)
