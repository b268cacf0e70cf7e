"""Answers requests with weights and caches; the only caller of any module's `forward`.

Requests of one kind are answered in one pass, whichever conversations they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from MiniCPMO45.audio_cache import new_audio_cache
from MiniCPMO45.audio_encoder import StreamItem, encode_clips, encode_streams
from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.kv_cache import KvStore
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.picture_slices import Slice
from MiniCPMO45.rope import Rope
from MiniCPMO45.session import HearingState, SamplerState, Session, SpeechState, TurnState
from MiniCPMO45.steps import (
    ChooseToken,
    DrawCodes,
    DrawnCodes,
    EncodeClips,
    EncodeImages,
    EncodeStream,
    LlmForward,
    LlmOutput,
    OpenVoice,
    Request,
    SpeechCodes,
    SpeechPiece,
    SpokenText,
    TextDecision,
    TextMarkers,
    TokenIds,
    Vocode,
)
from MiniCPMO45.streaming_mel import MelState
from MiniCPMO45.token2wav.vocoder import StreamCall, Token2Wav
from MiniCPMO45.token2wav.vocoder_state import SpeechStream, VocoderState, VoiceBase
from MiniCPMO45.transformer import PackedBatch
from MiniCPMO45.vision_encoder import SliceEncoder
from MiniCPMO45.voices import VoiceLibrary
from MiniCPMO45.windows import WindowState

# What a decision may raise over logits or settings that are wrong.
UNDECIDED: Final = (RuntimeError, ValueError, TypeError, LookupError)


class MissingVoiceError(RuntimeError):
    """Speech was asked for and the checkpoint has no vocoder."""


class Executor:
    """Weights, the stores their caches live in, and one method: `answer`.

    Attributes:
        model: the checkpoint's modules.
        vocoder: flow and HiFT; None when the checkpoint has no Token2wav assets.
        voices: makes and keeps voices; None without the assets.
        llm_store: makes language-model caches.
        tts_store: makes speech-decoder caches.
    """

    def __init__(
        self,
        model: MiniCPMOForConditionalGeneration,
        vocoder: Token2Wav | None = None,
        voices: VoiceLibrary | None = None,
    ) -> None:
        self.model = model
        self.vocoder = vocoder
        self.voices = voices
        weight = model.llm.lm_head.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.llm_store = self._store(model.config.decoder)
        self.tts_store = self._store(model.config.tts_config.decoder)
        with torch.inference_mode():
            self.speech_head = model.tts.folded_head()  # [codes, width]
        self._vision = SliceEncoder(model.vpm, model.resampler)
        self._handlers: dict[type, Callable[[Sequence[Any]], list[Any]]] = {
            LlmForward: self._run_llm,
            ChooseToken: self._choose_tokens,
            EncodeClips: self._encode_clips,
            EncodeStream: self._encode_streams,
            EncodeImages: self._encode_images,
            DrawCodes: self._draw_codes,
            Vocode: self._vocode,
            OpenVoice: self._open_voices,
        }

    @property
    def free_share(self) -> float:
        """How much of the memory for conversations is free, 0 to 1; asks the device."""
        return min(self.llm_store.free_share, self.tts_store.free_share)

    @torch.inference_mode()
    def answer(self, requests: Sequence[Request]) -> list[Any]:
        """Answer requests of any kinds, one forward pass per kind.

        Args:
            requests: at most one per conversation, beside pictures that are looked at ahead.

        Returns:
            The answers in the order of the requests; each request type documents its own.
        """
        answers: list[Any] = [None] * len(requests)
        by_kind: dict[type, list[int]] = {}
        for index, request in enumerate(requests):
            by_kind.setdefault(type(request), []).append(index)
        for kind, indices in by_kind.items():
            found = self._handlers[kind]([requests[index] for index in indices])
            for index, value in zip(indices, found, strict=True):
                answers[index] = value
        return answers

    def open_session(self, session_id: str, *, seed: int | None = None) -> Session:
        """Return a fresh conversation whose caches live beside the weights.

        Args:
            session_id: its name in logs.
            seed: fixes every draw of the conversation; None takes a fresh seed.
        """
        generator = torch.Generator(device=self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        cache = new_audio_cache(
            self.model.config.audio_config, device=self.device, dtype=self.dtype
        )
        return Session(
            id=session_id,
            kv=self.llm_store.open(),
            hearing=HearingState(MelState(), cache),
            speech=SpeechState(self.tts_store.open()),
            window=WindowState(),
            turn=TurnState(),
            sampler=SamplerState(generator),
        )

    @torch.inference_mode()
    def open_stream(
        self, voice: VoiceBase, generator: torch.Generator | None = None
    ) -> SpeechStream:
        """Return a stream of speech at the start of a turn.

        Args:
            voice: what it speaks with.
            generator: draws the excitation noise; None leaves it out.

        Raises:
            MissingVoiceError: the checkpoint has no vocoder.
        """
        if self.vocoder is None:
            raise MissingVoiceError("this checkpoint was loaded without its Token2wav assets")
        return self.vocoder.new_state(voice, generator)

    def _store(self, shape: DecoderConfig) -> KvStore:
        rope = Rope.build(shape.head_dim, shape.rope_theta, device=self.device)
        return KvStore(shape, rope, device=self.device, dtype=self.dtype)

    def _run_llm(self, requests: Sequence[LlmForward]) -> list[LlmOutput | Exception]:
        llm = self.model.llm
        parts = [self._embed(request) for request in requests]
        counts = [part.shape[0] for part in parts]
        batch = PackedBatch.build(
            [(request.kv, count) for request, count in zip(requests, counts, strict=True)],
            self.llm_store.rope,
            self.dtype,
        )
        hidden = llm.model(torch.cat(parts), batch)  # [N, hidden]
        by_request = hidden.split(counts)
        heading = [i for i, each in enumerate(requests) if each.wants_logits or each.decision]
        logits: dict[int, Tensor] = {}
        if heading:
            last = torch.stack([by_request[index][-1] for index in heading])
            logits = dict(zip(heading, llm.lm_head(last), strict=True))  # [V] each
        return [
            self._output(request, logits.get(index), rows)
            for index, (request, rows) in enumerate(zip(requests, by_request, strict=True))
        ]

    def _output(
        self, request: LlmForward, logits: Tensor | None, hidden: Tensor
    ) -> LlmOutput | Exception:
        answered = logits if request.wants_logits else None
        if request.decision is None or logits is None:
            return LlmOutput(answered, hidden)
        token = _decide(logits, request.decision)
        return LlmOutput(answered, hidden, token) if isinstance(token, int) else token

    def _choose_tokens(self, requests: Sequence[ChooseToken]) -> list[int | Exception]:
        return [_decide(request.logits, request.decision) for request in requests]

    def _embed(self, request: LlmForward) -> Tensor:
        table = self.model.llm.model.embed_tokens
        rows = [
            table(self._ids(piece.ids)) if isinstance(piece, TokenIds) else piece.rows
            for piece in request.pieces
        ]
        return torch.cat(rows).to(self.dtype)  # [n, hidden]

    def _draw_codes(self, requests: Sequence[DrawCodes]) -> list[DrawnCodes | RuntimeError]:
        for request in requests:  # before any cache has grown, so that a full one harms nobody
            request.kv.reserve(request.kv.length + request.n_rows + request.count - 1)
        runs = [_Run(request) for request in requests]
        drawing = runs
        while drawing:
            for run, logits in zip(drawing, self._run_tts(drawing), strict=True):
                run.draw(logits)
            drawing = [run for run in drawing if run.goes_on]
        return [run.answer for run in runs]

    def _run_tts(self, runs: Sequence[_Run]) -> Tensor:
        parts = [torch.cat([self._speech_rows(piece) for piece in run.pieces]) for run in runs]
        counts = [part.shape[0] for part in parts]
        batch = PackedBatch.build(
            [(run.request.kv, count) for run, count in zip(runs, counts, strict=True)],
            self.tts_store.rope,
            self.dtype,
        )
        hidden = self.model.tts.model(torch.cat(parts), batch)
        last = torch.stack([rows[-1] for rows in hidden.split(counts)])
        return (last @ self.speech_head.T).float()  # [B, codes]

    def _speech_rows(self, piece: SpeechPiece) -> Tensor:
        tts, ids = self.model.tts, self._ids(piece.ids)
        match piece:
            case SpokenText():
                return tts.embed_spoken(ids, piece.hidden)
            case TextMarkers():
                return tts.emb_text(ids)
            case SpeechCodes():
                return tts.emb_code[0](ids)

    def _encode_clips(self, requests: Sequence[EncodeClips]) -> list[list[Tensor]]:
        model = self.model
        return [
            encode_clips(
                model.apm,
                model.audio_projection_layer,
                [mel.to(self.device) for mel in request.mels],
                block_frames=request.block_frames,
                pool_step=model.config.audio_pool_step,
            )
            for request in requests
        ]

    def _encode_streams(self, requests: Sequence[EncodeStream]) -> list[Tensor]:
        items = [
            StreamItem(r.mel.to(self.device), r.cache, r.prefix_frames, r.suffix_frames)
            for r in requests
        ]
        model = self.model
        return encode_streams(
            model.apm, model.audio_projection_layer, items, pool_step=model.config.audio_pool_step
        )

    def prepare_slices(self, slices: Sequence[Slice]) -> tuple[Slice, ...]:
        """Do what is done on the CPU before slices are encoded; any thread may call this."""
        return self._vision.prepare(slices)

    def _encode_images(self, requests: Sequence[EncodeImages]) -> list[list[Tensor]]:
        slices = [each for request in requests for each in request.slices]
        encoded = iter(self._vision.encode(slices))
        return [[next(encoded) for _ in request.slices] for request in requests]

    def _vocode(self, requests: Sequence[Vocode]) -> list[Tensor]:
        if self.vocoder is None:
            raise MissingVoiceError("this checkpoint was loaded without its Token2wav assets")
        calls = []
        for each in requests:
            assert isinstance(each.state, VocoderState), "a stream of another executor"
            calls.append(StreamCall(each.state, each.codes, each.is_last))
        return self.vocoder.stream_many(calls)

    def _open_voices(self, requests: Sequence[OpenVoice]) -> list[SpeechStream]:
        if self.voices is None:
            raise MissingVoiceError("this checkpoint was loaded without its Token2wav assets")
        return [
            self.open_stream(self.voices.base_of(each.audio), each.generator) for each in requests
        ]

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)


class _Run:
    """One conversation's speech codes while they are drawn."""

    def __init__(self, request: DrawCodes) -> None:
        self.request = request
        self.pieces = request.pieces
        self.codes: list[int] = []
        self.has_ended = False
        self.error: RuntimeError | None = None

    @property
    def goes_on(self) -> bool:
        """Another code is due."""
        is_over = self.has_ended or self.error is not None
        return not is_over and len(self.codes) < self.request.count

    @property
    def answer(self) -> DrawnCodes | RuntimeError:
        """What came of it."""
        return self.error or DrawnCodes(tuple(self.codes), self.has_ended)

    def draw(self, logits: Tensor) -> None:
        """Draw the next code from logits [codes]."""
        asked, step = self.request, len(self.codes)
        heard = [*asked.heard, *self.codes]
        try:
            code = asked.rule.choose(
                logits, heard, asked.eos, asked.generator, may_end=step >= asked.least
            )
        except RuntimeError as error:
            self.error = error
            return
        self.has_ended = code == asked.eos
        if not self.has_ended:
            self.codes.append(code)
            self.pieces = (SpeechCodes((code,)),)


def _decide(logits: Tensor, decision: TextDecision) -> int | Exception:
    """Decide a token; what fails is the answer, so that it fails for one conversation alone."""
    try:
        return decision.policy.decide(
            logits, decision.history, decision.settings, decision.generator
        )
    except UNDECIDED as error:
        return error
