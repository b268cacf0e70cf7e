"""Holds a conversation with decoded input through the view of one mode, row by row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from core.audio import FloatArray, decode_wire_audio
from core.engine.engine import run_inline
from core.processors.half_duplex import HalfDuplexView
from core.processors.unified import UnifiedProcessor
from core.processors.view import iterate_inline
from core.schemas.common import TTSMode
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.half_duplex import HalfDuplexConfig, TurnSpeechConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.talk.inputs import TalkInput
from core.talk.rows import Row
from core.talk.timeline import Timeline
from core.vad import STREAMING_OPTIONS, StreamingVAD
from MiniCPMO45.processing.prompts import system_prompt

DEFAULT_PROMPT_MODE: Final = TTSMode.AUDIO_ASSISTANT
VAD_CHUNK_SAMPLES: Final = INPUT_SAMPLE_RATE_HZ // 2  # half a second, as clients send it
SESSION: Final = "talk"
MS_PER_S: Final = 1_000
REPLY_MAX_S: Final = 600.0  # of one piece; far above what the model says at once


@dataclass(frozen=True)
class TalkOptions:
    """How the conversation is held.

    Attributes:
        system: what the model is told about its part; None takes the mode's own prompt.
        rest_s: silent seconds a duplex conversation goes on while the model is still speaking.
        force_listen_count: first duplex units in which it has to listen.
        speaks: replies have sound.
    """

    system: str | None = None
    rest_s: int = 15
    force_listen_count: int = 0
    speaks: bool = True


class Conversation:
    """One conversation with one processor."""

    def __init__(self, processor: UnifiedProcessor, given: TalkInput, options: TalkOptions) -> None:
        """Get ready.

        Args:
            processor: the loaded model.
            given: decoded input.
            options: how it is held.
        """
        self.processor = processor
        self.given = given
        self.options = options
        self.timeline = Timeline(given.sound)

    def hold(self, mode: str) -> Iterator[Row]:
        """Hold the conversation in one of the modes of `MODES`.

        Raises:
            OmniError: the model or the input refuses.
        """
        return {
            "duplex": self._duplex,
            "half_duplex": self._half_duplex,
            "streaming": self._streaming,
        }[mode]()

    def _duplex(self) -> Iterator[Row]:
        view, options = self.processor.set_duplex_mode(), self.options
        config = DuplexConfig(
            force_listen_count=options.force_listen_count, generate_audio=options.speaks
        )
        view.prepare(options.system, ref_audio=self.given.voice, config=config, session_id=SESSION)
        heard = -(-len(self.given.sound) // INPUT_SAMPLE_RATE_HZ)
        for index in range(heard + options.rest_s):
            if index >= heard and view.session.turn.has_ended:
                break
            yield self._unit(index)
        view.cleanup()

    def _unit(self, index: int) -> Row:
        view = self.processor.duplex
        sound, frames = self.given.second(index)
        start_s = time.perf_counter()
        read = view.prefill(sound, frame_list=frames)
        unit = view.generate_unit()
        closing_s = time.perf_counter()
        view.finalize()
        end_s = time.perf_counter()
        wave, starts_at_s = unit.audio_waveform, None
        if unit.barge_in:
            self.timeline.cut(index + 1)
        is_heard = not unit.is_listen and self.options.speaks and wave is not None
        if is_heard and wave is not None:
            starts_at_s = self.timeline.place(wave, index + 1)
        return Row(
            index=index,
            at_s=index + 1,
            action="listen" if unit.is_listen else "speak",
            text=unit.text,
            n_tokens=unit.n_tokens,
            n_speech_tokens=unit.n_tts_tokens,
            speech_s=len(wave) / OUTPUT_SAMPLE_RATE_HZ if is_heard and wave is not None else 0.0,
            starts_at_s=starts_at_s,
            prefill_ms=read.cost_all * MS_PER_S,
            llm_ms=unit.cost_llm * MS_PER_S,
            tts_ms=(unit.cost_tts_prep + unit.cost_tts) * MS_PER_S,
            token2wav_ms=unit.cost_token2wav * MS_PER_S,
            finalize_ms=(end_s - closing_s) * MS_PER_S,
            total_ms=(end_s - start_s) * MS_PER_S,
            end_of_turn=unit.end_of_turn,
            kv_tokens=view.kv_cache_length,
        )

    def _half_duplex(self) -> Iterator[Row]:
        view = self._prepared_half_duplex()
        for index, (segment, ended_at_s) in enumerate(self._segments()):
            yield self._turn(view, index, segment, self._frame_at(ended_at_s), ended_at_s)
        view.cleanup()

    def _streaming(self) -> Iterator[Row]:
        view, given = self._prepared_half_duplex(), self.given
        yield self._turn(view, 0, given.sound, given.frames, given.duration_s)
        view.cleanup()

    def _prepared_half_duplex(self) -> HalfDuplexView:
        """Begin a turn-based conversation with the system prompt around the voice."""
        view = self.processor.set_half_duplex_mode()
        voice = self.given.voice
        sample = view.context.default_voice if voice is None else voice
        prompt = system_prompt(DEFAULT_PROMPT_MODE.value, has_voice=sample is not None)
        content = prompt.parts(sample) if self.options.system is None else self.options.system
        config = HalfDuplexConfig(tts=TurnSpeechConfig(enabled=self.options.speaks))
        run_inline(view.begin(content, voice=voice, config=config, session_id=SESSION))
        return view

    def _turn(
        self,
        view: HalfDuplexView,
        index: int,
        sound: FloatArray,
        frames: Sequence[Image.Image],
        ended_at_s: float,
    ) -> Row:
        start_s = time.perf_counter()
        run_inline(view.hear(sound, frames))
        read_s = time.perf_counter() - start_s
        text, samples, starts_at_s = "", 0, None
        for piece in iterate_inline(view.answer()):
            text += piece.text_delta or ""
            if piece.audio_data:
                sound = decode_wire_audio(
                    piece.audio_data,
                    max_duration_s=REPLY_MAX_S,
                    sample_rate_hz=OUTPUT_SAMPLE_RATE_HZ,
                )
                placed_s = self.timeline.place(sound, ended_at_s)
                starts_at_s = placed_s if starts_at_s is None else starts_at_s
                samples += sound.size
        total_s = time.perf_counter() - start_s
        return Row(
            index=index,
            at_s=ended_at_s,
            action="speak",
            text=text,
            n_tokens=view.generated_tokens,
            speech_s=samples / OUTPUT_SAMPLE_RATE_HZ,
            starts_at_s=starts_at_s,
            prefill_ms=read_s * MS_PER_S,
            answer_ms=(total_s - read_s) * MS_PER_S,
            total_ms=total_s * MS_PER_S,
            end_of_turn=True,
            kv_tokens=view.kv_cache_length,
        )

    def _segments(self) -> Iterator[tuple[FloatArray, float]]:
        """Cut the sound at its pauses: segments of speech, and the second each one ended at."""
        detector = StreamingVAD(STREAMING_OPTIONS)
        sound = self.given.sound
        tail = np.zeros(INPUT_SAMPLE_RATE_HZ, np.float32)  # lets a last segment end
        padded = np.concatenate((sound, tail))
        for start in range(0, len(padded), VAD_CHUNK_SAMPLES):
            segment = detector.feed(padded[start : start + VAD_CHUNK_SAMPLES])
            if segment is not None:
                yield segment.samples, (start + VAD_CHUNK_SAMPLES) / INPUT_SAMPLE_RATE_HZ

    def _frame_at(self, ended_at_s: float) -> tuple[Image.Image, ...]:
        """The picture on show when a segment ended."""
        shown = min(int(ended_at_s), len(self.given.frames))
        return self.given.frames[max(shown - 1, 0) : shown]
