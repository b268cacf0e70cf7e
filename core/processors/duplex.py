"""Full duplex: a conversation of one unit per second.

view = processor.set_duplex_mode()
await view.begin("Be kind.")
result = await view.unit(second_of_audio, pictures)   # the model listens or speaks
await view.finish_unit()                              # may run while the audio plays
view.set_break()                                      # make the next unit listen
await view.close()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from core.audio import FloatArray, read_audio, to_pcm
from core.engine.engine import run_inline
from core.errors import OmniError, PictureError
from core.images import FRAME_LIMITS, SHORT_PIXELS, decode_wire_picture
from core.modes import OnSound
from core.processors.content import override, read_voice
from core.processors.view import View, ViewContext, model_errors
from core.schemas.common import MS_PER_S
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.limits import UNIT_MS
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import OpenVoice, Steps
from MiniCPMO45.modes.duplex import (
    DuplexCapability,
    PrefillResult,
    UnitAudio,
    UnitResult,
    prepare_audio,
)
from MiniCPMO45.modes.prompt_input import (
    EncodedPicture,
    PreparedFrame,
    encode_picture,
    slice_pictures,
)
from MiniCPMO45.modes.speech import UnitSound
from MiniCPMO45.processing.prompts import DUPLEX_SYSTEM_PROMPT, duplex_prefix, duplex_suffix

T = TypeVar("T")

LISTEN_MARKS = 1  # tokens besides text: the decision to listen
SPEAK_MARKS = 2  # the decision to speak, and the end of the unit


class DuplexView(View, DuplexCapability):
    def __init__(self, context: ViewContext) -> None:
        View.__init__(self, context)
        model = context.model.duplex
        DuplexCapability.__init__(
            self, model.config, model.tokenizer, model.policy, model.defaults, model.prompts
        )

    async def begin(
        self,
        system_prompt: str | None = None,
        *,
        ref_audio: FloatArray | None = None,
        tts_audio: FloatArray | None = None,
        suffix_text: str | None = None,
        config: DuplexConfig | None = None,
        early_audio: bool = False,
    ) -> str:
        """Begin a fresh conversation, freeing the one before; return the system prompt's text.

        The voice samples are [T] float32 at 16 kHz: `ref_audio` is part of the prompt, None for the
        default, and `tts_audio` is the voice of replies, None for `ref_audio`. `suffix_text`
        follows the sample in the prompt. `early_audio` passes the beginning of a unit's audio to
        `on_sound` before its result. Raises `AudioError` if a recording cannot serve as a voice.
        """
        context = self.context
        self._check_voice(ref_audio if tts_audio is None else tts_audio)
        prompted = context.default_voice if ref_audio is None else ref_audio
        settings = replace(override(self.defaults, config), early_audio=early_audio)
        prefix = duplex_prefix(system_prompt or DUPLEX_SYSTEM_PROMPT)
        suffix = duplex_suffix(suffix_text or "")
        # On a thread, as a long prompt would delay other conversations.
        texts = (prefix, suffix)
        opening, closing = await context.threads.run(lambda: [self.encode(text) for text in texts])
        session = await self.reset()
        spoken = prompted if tts_audio is None else tts_audio

        def preparing() -> Steps[None]:
            vocoder = None
            if settings.generate_audio and spoken is not None and context.model.can_speak:
                vocoder = yield OpenVoice(spoken, session.sampler.generator)
            yield from self.feed_prompt(
                session,
                opening,
                closing,
                settings=settings,
                voice_sample=prompted,
                vocoder=vocoder,
            )

        try:
            await context.run(preparing())
        except OmniError:
            await self.close()
            raise
        return prefix + suffix

    async def unit(
        self,
        audio: FloatArray,
        frames: Sequence[Image.Image | EncodedPicture] = (),
        max_slice_nums: int | None = None,
        *,
        force_listen: bool = False,
        force_speak: bool = False,
        due_s: float | None = None,
        on_sound: OnSound | None = None,
    ) -> DuplexGenerateResult | None:
        """Feed one second of audio and let the model listen or speak; `finish_unit` must follow.

        Of the audio, [T] float32 at 16 kHz, one second is consumed and the rest is buffered; if
        there is too little for a unit, the result is None. `frames` are the RGB pictures of this
        second, oldest first, or what `encode_ahead` returned for them with the same slice limit,
        which is by default the conversation's. `force_listen` listens in any case, and ends a
        running turn first; `force_speak` speaks unless the model has to listen. `due_s` is the
        deadline of a live unit, `time.monotonic`. `on_sound` is awaited with the beginning of the
        audio if `begin` requested early audio; the result holds the rest.

        Raises:
            NotPreparedError: the conversation has not begun.
            OutOfOrderError: the previous unit was not finished.
            PictureError: a picture cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        session = self.session
        pictures = await self._sliced(frames, max_slice_nums)
        prepared = await self._prepared(session, audio)

        def steps() -> Steps[tuple[PrefillResult, UnitResult | None]]:
            fed = yield from self.streaming_prefill(session, prepared, pictures)
            if not fed.success:
                return fed, None
            return fed, (yield from self.streaming_generate(session, force_listen, force_speak))

        with model_errors():
            async with aclosing(self.context.begin(steps(), due_s=due_s)) as stream:
                async for early in stream:
                    if on_sound is not None:
                        await on_sound(await self._wave(early))
        fed, made = stream.result
        if made is None:
            return None
        if made.is_listen:
            return self._record(made, fed)
        return await self._run_short(lambda: self._record(made, fed))

    async def finish_unit(self) -> None:
        """Close the unit and keep the window; harmless when no unit is open."""
        await self.context.run(self.close_unit(self.session))

    async def encode_ahead(self, picture: Image.Image, max_slice_nums: int) -> EncodedPicture:
        """Encode an RGB picture for a later `unit`, concurrently with one under way."""
        [sliced] = await self._sliced([picture], max_slice_nums)
        assert isinstance(sliced, tuple), "it was not encoded before"
        return await self.context.run(encode_picture(sliced, max_slice_nums))

    def set_break(self) -> None:
        """Make the next unit listen; may be called from any thread."""
        self.session.turn.force_next_listen = True

    def clear_break(self) -> None:
        self.session.turn.force_next_listen = False

    @property
    def slice_limit(self) -> int:
        return self.session.settings.max_slice_nums

    # --- the documented synchronous form ---

    def prepare(
        self,
        system_prompt: str | None = None,
        ref_audio_path: str | Path | None = None,
        prompt_wav_path: str | Path | None = None,
        **options: Any,  # those of `begin`
    ) -> str:
        """Run `begin`; a voice sample may be a file, unless samples are given."""
        for name, path in (("ref_audio", ref_audio_path), ("tts_audio", prompt_wav_path)):
            if path is not None and options.get(name) is None:
                options[name] = read_voice(path)
        return run_inline(self.begin(system_prompt, **options))

    def prefill(
        self,
        audio_waveform: FloatArray | None = None,
        frame_list: Sequence[Image.Image | str] | None = None,
        max_slice_nums: int | Sequence[int] | None = None,
        *,
        audio_path: str | Path | None = None,
    ) -> PrefillResult:
        """Feed one unit's input; see `unit`.

        Pictures may be Base64, the slice limit may differ per picture, and the audio may be a file.
        """
        session, audio = self.session, audio_waveform
        if audio is None and audio_path is not None:
            audio = read_audio(audio_path)
        pictures = [
            decode_wire_picture(each, allowed=FRAME_LIMITS) if isinstance(each, str) else each
            for each in frame_list or ()
        ]
        frames = run_inline(self._sliced(pictures, max_slice_nums))
        steps = self.streaming_prefill(session, audio, frames)
        return run_inline(self.context.run(steps))

    def generate(self, force_listen: bool = False) -> DuplexGenerateResult:
        return self._record(self.generate_unit(force_listen))

    def generate_unit(self, force_listen: bool = False) -> UnitResult:
        """Run `generate`, but return costs in seconds and the audio as an array."""
        steps = self.streaming_generate(self.session, force_listen)
        return run_inline(self.context.run(steps))

    def finalize(self) -> None:
        run_inline(self.finish_unit())

    async def _run_short(self, work: Callable[[], T]) -> T:
        return await self.context.threads.run(work, is_short=True)

    async def _prepared(self, session: Session, audio: FloatArray) -> UnitAudio | None:
        """Compute the log-mel on a thread, where that delays no other conversation."""
        if not len(audio):
            return None
        with model_errors():
            return await self._run_short(lambda: prepare_audio(session.audio_input, audio))

    async def _wave(self, sound: UnitSound) -> FloatArray:
        return await self._run_short(lambda: sound.waveform)

    async def _sliced(
        self,
        frames: Sequence[Image.Image | EncodedPicture],
        max_slice_nums: int | Sequence[int] | None,
    ) -> list[PreparedFrame]:
        """Slice pictures on a thread, so that no other conversation is delayed."""
        if not frames:
            return []
        limit = self.slice_limit if max_slice_nums is None else max_slice_nums
        executor = self.context.model.executor

        def slice_all() -> list[PreparedFrame]:
            try:
                sliced = slice_pictures(frames, limit, self.config.slice_config)
            except ValueError as error:
                raise PictureError(f"The picture cannot be used: {error}.") from error
            return [
                executor.prepare_slices(each) if isinstance(each, tuple) else each
                for each in sliced
            ]

        sizes = [each.size for each in frames if isinstance(each, Image.Image)]
        is_short = all(width * height <= SHORT_PIXELS for width, height in sizes)
        with model_errors():
            return await self.context.threads.run(slice_all, is_short=is_short)

    def _record(self, unit: UnitResult, fed: PrefillResult | None = None) -> DuplexGenerateResult:
        """Convert a result to the wire's; `fed` adds the costs of its input."""
        has_voice = self.session.speech.vocoder is not None
        wave = unit.audio_waveform if has_voice and not unit.is_listen else None
        feed_s, all_s = (0.0, 0.0) if fed is None else (fed.cost_feed, fed.cost_all)
        return DuplexGenerateResult(
            is_listen=unit.is_listen,
            text=unit.text,
            audio_data=None if wave is None else to_pcm(wave),
            end_of_turn=unit.end_of_turn,
            current_time=unit.current_time * UNIT_MS,
            cost_llm_ms=(feed_s + unit.cost_llm) * MS_PER_S,
            cost_read_ms=feed_s * MS_PER_S,
            cost_tts_prep_ms=unit.cost_tts_prep * MS_PER_S,
            cost_tts_ms=unit.cost_tts * MS_PER_S,
            cost_token2wav_ms=unit.cost_token2wav * MS_PER_S,
            cost_all_ms=(all_s + unit.cost_all) * MS_PER_S,
            n_tokens=unit.n_tokens + (LISTEN_MARKS if unit.is_listen else SPEAK_MARKS),
            n_tts_tokens=unit.n_tts_tokens,
            prefill_ms=(all_s - feed_s) * MS_PER_S,
            kv_cache_length=self.kv_cache_length,
            vision_slices=unit.vision_slices,
            vision_tokens=unit.vision_tokens,
        )
