"""Full duplex: prompt, then a loop over one-second units of prefill, generate and close.

Methods are generators of requests over one `Session`. Source: docs/specification/model.md#6.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import TIMING, MiniCPMOConfig
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.policies import MAX_UNIT_CHARACTERS, UnitPolicy
from MiniCPMO45.engine.session import (
    AudioInputState,
    Session,
    UnitDraft,
    maintain_units,
    units_to_drop,
    window_now,
)
from MiniCPMO45.engine.steps import ChooseToken, LlmForward, Steps, TextDecision
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.modes.prompt_input import (
    Frame,
    Pieces,
    PromptCache,
    embed_clips,
    picture_pieces,
    prompt_key,
)
from MiniCPMO45.modes.speech import Stopwatch, UnitSound, speak_unit
from MiniCPMO45.processing.mel import (
    FIRST_PAD_SAMPLES,
    FIRST_UNIT_SAMPLES,
    UNIT_SAMPLES,
    MelState,
    checked_sound,
    clip_mels,
    push,
)
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import DuplexSettings
from MiniCPMO45.token2wav.vocoder_state import SpeechStream


@dataclass(frozen=True, eq=False)
class UnitAudio:
    """Input audio of a unit, prepared on the CPU."""

    mel: Tensor | None  # float32 [80, frames]; None if there is too little audio for a unit
    mel_state: MelState  # of the stream after this unit
    rest: Tensor  # samples for the next unit


@torch.inference_mode()
def prepare_audio(audio_input: AudioInputState, audio: np.ndarray) -> UnitAudio:
    """Compute the next unit's log-mel without changing `audio_input`; any thread may call this.

    The unit is split off the pending and new samples, float32 [n] at 16 kHz. The first one is
    left-padded to 16 560 samples, of which 16 480 are consumed; later units consume 16 000.
    Raises `ProcessingError` if the samples cannot be used.
    """
    fresh = checked_sound(np.asarray(audio)).copy()  # the array may be read-only or reversed
    samples = torch.cat((audio_input.pending, torch.from_numpy(fresh)))
    need, mel_state = UNIT_SAMPLES, replace(audio_input.mel)
    if audio_input.audio_units == 0:
        need = FIRST_UNIT_SAMPLES
        samples = F.pad(samples, (max(0, FIRST_PAD_SAMPLES - len(samples)), 0))
    if len(samples) < need:
        return UnitAudio(None, mel_state, samples)
    return UnitAudio(push(mel_state, samples[:need]), mel_state, samples[need:].clone())


def get_audio_embedding(audio_input: AudioInputState, audio: UnitAudio) -> Steps[Tensor]:
    """Encode one unit's audio as continuation of the stream: [10, hidden]."""
    assert audio.mel is not None, "there is enough audio"
    is_first = audio_input.audio_units == 0
    audio_input.mel, audio_input.pending = audio.mel_state, audio.rest
    audio_input.audio_units += 1
    return (yield EncodeStream(audio.mel, audio_input.cache, is_first))


class UnitOrderError(RuntimeError):
    """prefill, generate and finalize were called out of order."""


@dataclass(frozen=True)
class PrefillResult:
    """Result of prefilling one unit; without `success` nothing was fed. Costs are in seconds."""

    success: bool
    reason: str = ""
    vision_slices: int = 0
    cost_feed: float = 0.0  # of the language model
    cost_all: float = 0.0


@dataclass(frozen=True, eq=False)
class UnitResult:
    """Result of one unit; costs are in seconds."""

    is_listen: bool
    text: str = ""
    sound: UnitSound | None = None  # without early audio; None is a second of silence
    end_of_turn: bool = False
    current_time: int = 0  # number of units so far
    cost_llm: float = 0.0
    cost_tts_prep: float = 0.0  # of the speech decoder's condition
    cost_tts: float = 0.0
    cost_token2wav: float = 0.0
    cost_all: float = 0.0
    n_tokens: int = 0
    n_tts_tokens: int = 0
    vision_slices: int = 0
    vision_tokens: int = 0
    barge_in: bool = False  # this unit interrupted a running turn

    @property
    def audio_waveform(self) -> np.ndarray:
        """float32 [samples] at 24 kHz."""
        if self.sound is None:
            return np.zeros(TIMING.sample_rate_hz, np.float32)
        return self.sound.waveform


FEWEST_STEPS: Final = 3  # listen or speak, one text token, the unit's terminator


@dataclass(eq=False)
class DuplexCapability:
    config: MiniCPMOConfig
    tokenizer: MiniCPMOTokenizerFast
    policy: UnitPolicy
    defaults: DuplexSettings = DuplexSettings()
    prompts: PromptCache = field(default_factory=PromptCache)

    def __post_init__(self) -> None:
        self.tokens = self.tokenizer.special
        self._speech_eos = self.config.tts_config.speech_eos_id  # once, not in every unit

    def encode(self, text: str | Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a text, or tokens as they are; any thread may call this."""
        return tuple(self.tokenizer.encode(text) if isinstance(text, str) else text)

    def feed_prompt(
        self,
        session: Session,
        prefix: str | Sequence[int],
        suffix: str | Sequence[int],
        *,
        settings: DuplexSettings | None = None,
        voice_sample: np.ndarray | None = None,
        vocoder: SpeechStream | None = None,
    ) -> Steps[None]:
        """Prefill the system prompt, from the prompt cache if possible, and prepare the session.

        `prefix` and `suffix`, texts or what `encode` made of them, surround the voice sample,
        float32 [n] at 16 kHz. `vocoder` is a fresh stream with the output voice; None for text
        output only.
        """
        session.settings = settings or self.defaults
        session.speech.vocoder = vocoder if session.settings.generate_audio else None
        session.reset_speech()
        opening, closing = self.encode(prefix), self.encode(suffix)
        key = prompt_key(opening, closing, voice_sample)
        if not self.prompts.load(key, session.kv):
            voice: list[Tensor] = []
            if voice_sample is not None:
                blocks = self.config.audio_block_frames
                voice = yield from embed_clips([clip_mels(voice_sample)], blocks, is_voice=True)
            rows = Rows.of(opening, *voice, closing)
            yield LlmForward(session.kv, rows, wants_logits=False)
            self.prompts.store(key, session.kv)
        window, marker = session.window, session.settings.window.context_marker
        window.preserved = session.kv.length
        window.prefix = session.kv.length - len(closing)
        window.suffix_ids = closing
        window.marker_ids = tuple(self.tokenizer.encode(marker))

    def streaming_prefill(
        self,
        session: Session,
        audio_waveform: np.ndarray | UnitAudio | None = None,
        frame_list: Sequence[Frame] = (),
        max_slice_nums: int | Sequence[int] | None = None,
    ) -> Steps[PrefillResult]:
        """Prefill one unit in one forward pass.

        `audio_waveform` is float32 [n] at 16 kHz, of which one second is consumed and the rest
        buffered, or what `prepare_audio` made of it.
        `frame_list` holds the pictures of this second, oldest first, and `max_slice_nums` one limit
        or one per frame. Raises `UnitOrderError` if the previous unit was not generated or not
        finalized.
        """
        if session.turn.pending is not None:
            raise UnitOrderError("finalize the previous unit before the next prefill")
        if session.turn.logits is not None:
            raise UnitOrderError("generate the prefilled unit before the next prefill")
        began_s, audio_input = time.perf_counter(), session.audio_input
        audio = None
        if isinstance(audio_waveform, UnitAudio):
            audio = audio_waveform
        elif audio_waveform is not None and len(audio_waveform) > 0:
            audio = prepare_audio(audio_input, audio_waveform)
        if session.stop.is_set() or not (audio or frame_list):
            return PrefillResult(False, "stopped" if session.stop.is_set() else "no input")
        if audio is not None and audio.mel is None:
            audio_input.pending = audio.rest
            return PrefillResult(False, "not enough audio")
        unit_start, slices = session.cached_tokens, 0
        pieces: Pieces = [(*session.turn.closing, self.tokens.unit_start)]
        if frame_list:
            limit = session.settings.max_slice_nums if max_slice_nums is None else max_slice_nums
            config = self.config.slice_config
            pictures, slices = yield from picture_pieces(frame_list, limit, config, self.tokens)
            pieces += pictures
        if audio is not None:
            pieces.append((yield from get_audio_embedding(audio_input, audio)))
        feeding_s = time.perf_counter()
        output = yield LlmForward(session.kv, Rows.of(*pieces))
        fed_s = time.perf_counter()
        session.turn.closing = ()
        session.turn.logits = output.logits
        session.turn.unit_start = unit_start
        session.turn.vision_slices = slices
        audio_input.units += 1
        return PrefillResult(
            True, vision_slices=slices, cost_feed=fed_s - feeding_s, cost_all=fed_s - began_s
        )

    def streaming_generate(
        self, session: Session, force_listen: bool = False, force_speak: bool = False
    ) -> Steps[UnitResult]:
        """Generate the text and speech of the prefilled unit.

        `force_listen` listens and ends a running turn; `force_speak` speaks unless the model has to
        listen. `close_unit` must follow.
        """
        watch, turn, text = Stopwatch(), session.turn, ""
        sound, n_codes = None, 0
        logits, turn.logits = turn.logits, None
        if logits is None or session.stop.is_set():
            draft = UnitDraft(is_listen=True, end_of_turn=session.stop.is_set())
        else:
            draft = yield from self.decode(session, logits, force_listen, force_speak)
            watch.lap("llm")
            turn.pending = draft
        if not draft.is_listen:
            text = self.tokenizer.decode(draft.ids, skip_special_tokens=True)
            config, eos = self.config.tts_config, self._speech_eos
            sound, n_codes = yield from speak_unit(session, draft, config, watch, eos=eos)
            if draft.end_of_turn:
                session.sampler.history.clear()
        return UnitResult(
            is_listen=draft.is_listen,
            text=text,
            sound=sound,
            end_of_turn=draft.end_of_turn,
            n_tokens=0 if draft.is_listen else len(draft.ids),
            barge_in=draft.barge_in,
            n_tts_tokens=n_codes,
            current_time=session.audio_input.units,
            cost_llm=watch.seconds["llm"],
            cost_tts_prep=watch.seconds["tts_prep"],
            cost_tts=watch.seconds["tts"],
            cost_token2wav=watch.seconds["token2wav"],
            cost_all=watch.total(),
            vision_slices=turn.vision_slices,
            vision_tokens=turn.vision_slices * self.config.query_num,
        )

    def close_unit(self, session: Session) -> Steps[None]:
        """End the unit and apply the sliding window; without an open unit, do nothing.

        The unit's terminators are fed with the next unit's input, or now if the window drops units.
        """
        pending, turn, window = session.turn.pending, session.turn, session.window
        if pending is None or turn.unit_start is None:
            return
        terminator = () if pending.terminator is None else (pending.terminator,)
        turn.closing = (*terminator, self.tokens.unit_end)
        spoken = () if pending.is_listen else pending.ids
        text_ids = [token for token in spoken if token not in self.tokens.non_text_ids]
        window.add_unit(session.cached_tokens - turn.unit_start, text_ids)
        turn.pending, turn.unit_start, turn.vision_slices = None, None, 0
        settings = window_now(session.kv, session.settings.window)
        if units_to_drop(window, settings):
            yield from self._write_closing(session)
            yield from maintain_units(session.kv, window, settings)

    def _write_closing(self, session: Session) -> Steps[None]:
        yield LlmForward(session.kv, Rows(session.turn.closing), wants_logits=False)
        session.turn.closing = ()

    def decode(
        self, session: Session, logits: Tensor, force_listen: bool, force_speak: bool = False
    ) -> Steps[UnitDraft]:
        """Generate the tokens of a unit from the logits [vocabulary] after its input.

        `force_listen` and `force_speak` as for `streaming_generate`; the terminator is not fed.
        Source: docs/specification/model.md#6.4.
        """
        turn, settings, draft = session.turn, session.settings, UnitDraft()
        override = turn.force_next_listen or force_listen
        turn.force_next_listen = False
        is_early = turn.decisions < settings.force_listen_count and not force_speak
        turn.decisions += 1
        if override and not turn.has_ended:
            yield from self._interrupt(session)
            draft.barge_in = True
        sampler, decision = session.sampler, None
        if not (override or is_early):
            decision = TextDecision(self.policy, sampler.history, settings, sampler.generator)
        last = max(settings.max_new_speak_tokens_per_chunk, FEWEST_STEPS) - 1
        token: int | None = None
        for step in range(last):
            if session.stop.is_set():
                return draft
            if step == 0 and decision is not None:
                if force_speak:
                    token = self.policy.settle(self.tokens.speak, decision.history)
                else:
                    token = yield ChooseToken(logits, decision)
            token = self.tokens.listen if token is None else token
            if self._ends_unit(session, draft, token):
                return draft
            if token == self.tokens.listen:
                token = self.tokens.tts_bos  # a turn has to end before the model listens
            turn.has_ended = False
            text_ids = [*draft.ids, token] if step > 0 else []
            text = self.tokenizer.decode(text_ids, skip_special_tokens=True)
            if len(text) >= MAX_UNIT_CHARACTERS:
                break
            then = decision if step + 1 < last else None
            output = yield LlmForward(session.kv, Rows((token,)), wants_logits=False, decision=then)
            draft.end_of_turn = turn.has_ended = token == self.tokens.turn_eos
            if step > 0:
                draft.ids.append(token)
                draft.hidden.append(output.hidden)
            token = output.token
        draft.terminator = self.tokens.chunk_eos
        return draft

    def _ends_unit(self, session: Session, draft: UnitDraft, token: int) -> bool:
        """Return whether `token` ends the unit; if so, record the outcome in the draft."""
        tokens = self.tokens
        is_end = token in tokens.chunk_terminators
        if draft.end_of_turn:
            draft.terminator = token if is_end else tokens.chunk_eos
            return True
        if token == tokens.listen and not session.turn.has_ended:
            return False
        draft.is_listen = token == tokens.listen
        draft.terminator = token if is_end else None
        return is_end

    def _interrupt(self, session: Session) -> Steps[None]:
        yield LlmForward(session.kv, Rows((self.tokens.turn_eos,)), wants_logits=False)
        session.turn.has_ended = True
        session.reset_speech()
        session.sampler.history.clear()
