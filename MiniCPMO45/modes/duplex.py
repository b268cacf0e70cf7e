"""Full duplex: the one-second unit loop of prepare, prefill, generate and finalize.

Every method is a generator of requests over one `Session`; the capability keeps nothing of a
conversation. Source: docs/specification/model.md#6.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig, SliceConfig, SpeechTiming
from MiniCPMO45.engine.policies import CodeRule, UnitPolicy
from MiniCPMO45.engine.session import (
    HearingState,
    PendingUnit,
    Session,
    maintain_units,
    units_to_drop,
    window_now,
)
from MiniCPMO45.engine.steps import (
    Embeddings,
    EncodeClips,
    EncodeImages,
    EncodeStream,
    LlmForward,
    Steps,
    TokenIds,
)
from MiniCPMO45.modes.prompt_input import PromptCache, prompt_key
from MiniCPMO45.modes.unit_output import (
    PrefillResult,
    Stopwatch,
    UnitDecoder,
    UnitDraft,
    UnitOrderError,
    UnitResult,
    UnitSpeech,
    UnitText,
    speak_unit,
)
from MiniCPMO45.processing.mel import (
    CONTEXT_FRAMES,
    FIRST_PAD_SAMPLES,
    FIRST_UNIT_SAMPLES,
    UNIT_SAMPLES,
    clip_mels,
    push,
)
from MiniCPMO45.processing.pictures import Slice, slice_image
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from MiniCPMO45.settings import GREEDY, DuplexSettings
from MiniCPMO45.token2wav.vocoder_state import SpeechStream

Pieces = list[TokenIds | Embeddings]


@dataclass(frozen=True, eq=False)
class SlicedPicture:
    """A picture cut into slices beforehand, where no other conversation waits for it."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, eq=False)
class SeenPicture:
    """A picture encoded ahead of its unit.

    Attributes:
        rows: [num_queries, hidden] of each slice: the whole picture first, then its parts.
        max_slices: limit that it was sliced by.
    """

    rows: tuple[Tensor, ...]
    max_slices: int


PreparedFrame = SlicedPicture | SeenPicture
"""A picture of which at least the slices are made."""

Frame = Image.Image | PreparedFrame
"""An RGB picture, prepared or not."""


def slice_pictures(
    frames: Sequence[Frame], max_slice_nums: int | Sequence[int], config: SliceConfig
) -> list[PreparedFrame]:
    """Cut pictures into slices; those that are prepared already stay as they are.

    Raises:
        ValueError: a list of limits whose length differs from the frames'.
    """
    limits = [max_slice_nums] * len(frames) if isinstance(max_slice_nums, int) else max_slice_nums
    if len(limits) != len(frames):
        raise ValueError(f"max_slice_nums has {len(limits)} entries for {len(frames)} frames")
    return [
        _sliced(frame, limit, config) if isinstance(frame, Image.Image) else frame
        for frame, limit in zip(frames, limits, strict=True)
    ]


def _sliced(frame: Image.Image, limit: int, config: SliceConfig) -> SlicedPicture:
    return SlicedPicture(slice_image(frame, limit, config).slices)


def split_unit_audio(hearing: HearingState, audio: np.ndarray) -> tuple[Tensor | None, Tensor]:
    """Join waiting and new samples and cut off one unit's worth; `hearing` is left alone.

    The first unit is led by zeros up to 16 560 samples, of which 16 480 are consumed; later
    units consume 16 000.

    Returns:
        One unit's samples float32 [16480 or 16000], None while too little has arrived; and the
        samples that wait for the next call.
    """
    held = torch.cat((hearing.pending, torch.from_numpy(np.array(audio, np.float32))))
    need = UNIT_SAMPLES
    if hearing.audio_units == 0:
        need = FIRST_UNIT_SAMPLES
        lead = max(0, FIRST_PAD_SAMPLES - len(held))
        held = torch.cat((torch.zeros(lead), held))
    if len(held) < need:
        return None, held
    return held[:need], held[need:].clone()


def get_audio_embedding(hearing: HearingState, samples: Tensor) -> Steps[Tensor]:
    """Encode one unit's samples against the stream so far: [10, hidden]."""
    prefix = 0 if hearing.audio_units == 0 else CONTEXT_FRAMES
    mel = push(hearing.mel, samples)
    hearing.audio_units += 1
    return (yield EncodeStream(mel, hearing.cache, prefix, CONTEXT_FRAMES))


def see_picture(picture: SlicedPicture, max_slices: int) -> Steps[SeenPicture]:
    """Encode a picture ahead of its unit; touches no conversation."""
    rows = yield EncodeImages(picture.slices)
    return SeenPicture(tuple(rows), max_slices)


def picture_pieces(
    frames: Sequence[Frame],
    max_slice_nums: int | Sequence[int],
    config: SliceConfig,
    tokens: SpecialTokens,
) -> Steps[tuple[Pieces, int]]:
    """Encode pictures, unless that was done ahead, and lay them out between their marks.

    Returns:
        The prompt pieces, and the number of slices.
    """
    pictures = slice_pictures(frames, max_slice_nums, config)
    unseen = [each for each in pictures if isinstance(each, SlicedPicture)]
    slices = tuple(each for picture in unseen for each in picture.slices)
    encoded = iter((yield EncodeImages(slices)) if slices else ())
    pieces: Pieces = []
    count = 0
    for picture in pictures:
        if isinstance(picture, SeenPicture):
            rows = picture.rows
        else:
            rows = tuple(islice(encoded, len(picture.slices)))
        pieces += _between_marks(rows, tokens)
        count += len(rows)
    return pieces, count


def _between_marks(rows: Sequence[Tensor], tokens: SpecialTokens) -> Pieces:
    """Lay out one picture's slices, the whole picture first."""
    pieces: Pieces = []
    for index, each in enumerate(rows):
        is_source = index == 0
        opening = tokens.image_start if is_source else tokens.slice_start
        closing = tokens.image_end if is_source else tokens.slice_end
        pieces += [TokenIds((opening,)), Embeddings(each), TokenIds((closing,))]
    return pieces


EXPLICIT = "explicit"  # the one `ls_mode` in which terminators are written into the cache


class DuplexCapability:
    """The unit loop over any session."""

    def __init__(
        self,
        config: MiniCPMOConfig,
        tokenizer: MiniCPMOTokenizerFast,
        policy: UnitPolicy,
        *,
        defaults: DuplexSettings | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.tokens = tokenizer.special
        self.decoder = UnitDecoder(tokenizer, policy)
        self.defaults = defaults or DuplexSettings()
        self.prompts = PromptCache()
        self.speech_timing = SpeechTiming()

    def prepare(
        self,
        session: Session,
        prefix: str,
        suffix: str,
        *,
        settings: DuplexSettings | None = None,
        voice_sample: np.ndarray | None = None,
        vocoder: SpeechStream | None = None,
    ) -> Steps[None]:
        """Feed the system prompt around the voice sample and make the session ready.

        A prompt that was fed before is copied from the prompts kept.

        `prefix` and `suffix` stand around the voice sample, float32 [n] at 16 kHz; units follow
        immediately. `vocoder` is a fresh stream in the voice to speak with; None gives text only.
        """
        session.settings = settings or self.defaults
        session.speech.vocoder = vocoder if session.settings.generate_audio else None
        session.reset_speech()
        opening, closing = (tuple(self.tokenizer.encode(text)) for text in (prefix, suffix))
        key = prompt_key(opening, closing, voice_sample)
        if not self.prompts.recall(key, session.kv):
            pieces: list[TokenIds | Embeddings] = [TokenIds(opening)]
            if voice_sample is not None:
                mels = tuple(clip_mels(voice_sample))
                rows = yield EncodeClips(mels, self.config.audio_block_frames)
                pieces.append(Embeddings(torch.cat(rows)))
            yield LlmForward(session.kv, (*pieces, TokenIds(closing)), wants_logits=False)
            self.prompts.keep(key, session.kv)
        window, marker = session.window, session.settings.window.context_marker
        window.preserved = session.kv.length
        window.prefix = session.kv.length - len(closing)
        window.suffix_ids = closing
        window.marker_ids = tuple(self.tokenizer.encode(marker))

    def streaming_prefill(
        self,
        session: Session,
        audio_waveform: np.ndarray | None = None,
        frame_list: Sequence[Frame] = (),
        max_slice_nums: int | Sequence[int] | None = None,
    ) -> Steps[PrefillResult]:
        """Feed one unit's input in one forward pass.

        `audio_waveform` is float32 [n] at 16 kHz: one second is consumed, the rest waits.
        `frame_list` holds the pictures of this second, oldest first, and `max_slice_nums` one limit
        or one per frame.

        Raises:
            UnitOrderError: the previous unit was not generated or not finalized.
        """
        self._check_unit_closed(session)
        began_s, hearing = time.perf_counter(), session.hearing
        has_audio = audio_waveform is not None and len(audio_waveform) > 0
        if session.stop.is_set() or not (has_audio or frame_list):
            return PrefillResult(False, "stopped" if session.stop.is_set() else "no input")
        samples, waiting = None, hearing.pending
        if audio_waveform is not None and has_audio:
            samples, waiting = split_unit_audio(hearing, audio_waveform)
        if has_audio and samples is None:
            hearing.pending = waiting
            return PrefillResult(False, "not enough audio")
        unit_start, slices = session.cached_tokens, 0
        opening = TokenIds((*session.turn.closing, self.tokens.unit_start))
        pieces: list[TokenIds | Embeddings] = [opening]
        if frame_list:
            limit = session.settings.max_slice_nums if max_slice_nums is None else max_slice_nums
            pictures, slices = yield from picture_pieces(
                frame_list, limit, self.config.slice_config, self.tokens
            )
            pieces += pictures
        hearing.pending = waiting
        if samples is not None:
            rows = yield from get_audio_embedding(hearing, samples)
            pieces.append(Embeddings(rows))
        feeding_s = time.perf_counter()
        output = yield LlmForward(session.kv, tuple(pieces))
        fed_s = time.perf_counter()
        session.turn.closing = ()
        session.turn.logits = output.logits
        session.turn.unit_start = unit_start
        session.turn.vision_slices = slices
        hearing.units += 1
        return PrefillResult(
            True, vision_slices=slices, cost_feed=fed_s - feeding_s, cost_all=fed_s - began_s
        )

    def streaming_generate(
        self, session: Session, force_listen: bool = False, force_speak: bool = False
    ) -> Steps[UnitResult]:
        """Decide what the model does in this unit and synthesise what it says.

        `force_listen` ends a running turn first; `force_speak` speaks unless the model has to
        listen.

        Returns:
            The unit's result; its terminators reach the cache in `finalize`.
        """
        watch, turn = Stopwatch(time.perf_counter), session.turn
        logits, turn.logits = turn.logits, None
        if logits is None or session.stop.is_set():
            return self._listen(session, watch, end_of_turn=session.stop.is_set())
        draft = yield from self.decoder.decode(session, logits, force_listen, force_speak)
        watch.lap("llm")
        text = self.tokenizer.decode(draft.ids, skip_special_tokens=True)
        turn.pending = PendingUnit(draft.terminator, tuple(draft.ids), draft.is_listen, text)
        if draft.is_listen:
            return self._listen(session, watch, barge_in=draft.barge_in)
        speech = yield from self._speak(session, draft, text, watch)
        if draft.end_of_turn:
            session.sampler.history.clear()
        return UnitResult(
            is_listen=False,
            text=text,
            audio_waveform=self._silence() if speech.waveform is None else speech.waveform,
            end_of_turn=draft.end_of_turn,
            n_tokens=len(draft.ids),
            n_tts_tokens=speech.n_codes,
            barge_in=draft.barge_in,
            early_samples=speech.early_samples,
            **self._shared_fields(session, watch),
        )

    def finalize(self, session: Session) -> Steps[None]:
        """Close the unit and keep the window; harmless when no unit is open.

        What ends the unit in the cache is fed together with the next unit's input, unless the
        window has to drop something now.
        """
        pending, turn = session.turn.pending, session.turn
        if pending is None or turn.unit_start is None:
            return
        is_written = session.settings.ls_mode == EXPLICIT and pending.terminator is not None
        terminator = (pending.terminator,) if is_written else ()
        turn.closing = (*terminator, self.tokens.unit_end)
        said = () if pending.is_listen else pending.ids
        text_ids = [token for token in said if token not in self.tokens.non_text_ids]
        window = session.window
        window.add_unit(session.cached_tokens - turn.unit_start, text_ids)
        turn.pending, turn.unit_start, turn.vision_slices = None, None, 0
        settings = window_now(session.kv, session.settings.window)
        if units_to_drop(window, settings):
            yield from self._write_closing(session)
            yield from maintain_units(session.kv, window, settings)

    def _write_closing(self, session: Session) -> Steps[None]:
        closing = TokenIds(session.turn.closing)
        yield LlmForward(session.kv, (closing,), wants_logits=False)
        session.turn.closing = ()

    def _check_unit_closed(self, session: Session) -> None:
        if session.turn.pending is not None:
            raise UnitOrderError("finalize the previous unit before the next prefill")
        if session.turn.logits is not None:
            raise UnitOrderError("generate the prefilled unit before the next prefill")

    def _speak(
        self, session: Session, draft: UnitDraft, text: str, watch: Stopwatch
    ) -> Steps[UnitSpeech]:
        if session.speech.vocoder is None or session.stop.is_set():
            return UnitSpeech()
        hidden = torch.stack(draft.hidden) if draft.hidden else None
        said = UnitText(tuple(draft.ids), hidden, text, draft.end_of_turn)
        settings = session.settings
        rule = CodeRule(
            temperature=settings.tts_temperature,
            repetition_penalty=settings.tts_repetition_penalty,
            top_p=settings.tts_top_p,
            top_k=settings.tts_top_k,
            is_greedy=settings.decode_mode == GREEDY,
        )
        return (yield from speak_unit(session, said, self.config.tts_config, rule, watch))

    def _listen(
        self,
        session: Session,
        watch: Stopwatch,
        *,
        end_of_turn: bool = False,
        barge_in: bool = False,
    ) -> UnitResult:
        return UnitResult(
            is_listen=True,
            audio_waveform=self._silence(),
            end_of_turn=end_of_turn,
            barge_in=barge_in,
            **self._shared_fields(session, watch),
        )

    def _silence(self) -> np.ndarray:
        return np.zeros(self.speech_timing.sample_rate_hz, np.float32)

    def _shared_fields(self, session: Session, watch: Stopwatch) -> dict[str, Any]:
        slices = session.turn.vision_slices
        return {
            "current_time": session.hearing.units,
            "cost_llm": watch.seconds("llm"),
            "cost_tts_prep": watch.seconds("tts_prep"),
            "cost_tts": watch.seconds("tts"),
            "cost_token2wav": watch.seconds("token2wav"),
            "cost_all": watch.total(),
            "vision_slices": slices,
            "vision_tokens": slices * self.config.query_num,
        }
