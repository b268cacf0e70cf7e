"""Full duplex: prepare a conversation, then prefill, generate and finalize unit after unit."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from core.audio import FloatArray, read_audio
from core.capabilities import ProcessorMode
from core.errors import OmniError
from core.processors.base import View
from core.processors.content import decode_frames, read_voice
from core.processors.failures import model_errors
from core.processors.results import duplex_record
from core.processors.wire_settings import duplex_settings
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from MiniCPMO45.prompts import DUPLEX_SYSTEM_PROMPT, duplex_suffix
from MiniCPMO45.settings import DuplexSettings
from MiniCPMO45.steps import Steps
from MiniCPMO45.unit_input import (
    PreparedFrame,
    SeenPicture,
    SlicedPicture,
    see_picture,
    slice_pictures,
)
from MiniCPMO45.unit_results import PrefillResult, UnitResult

DUPLEX_SESSION = "duplex"


class DuplexView(View):
    """The documented methods of full duplex."""

    mode = ProcessorMode.DUPLEX

    def prepare(
        self,
        system_prompt: str | None = None,
        ref_audio_path: str | Path | None = None,
        prompt_wav_path: str | Path | None = None,
        *,
        ref_audio: FloatArray | None = None,
        tts_audio: FloatArray | None = None,
        suffix_text: str | None = None,
        config: DuplexConfig | None = None,
        early_audio: bool = False,
        session_id: str = DUPLEX_SESSION,
    ) -> str:
        """Begin a fresh conversation; the one before is freed.

        Args:
            system_prompt: what the model is told about its part; None or empty for the
                prompt it was trained with.
            ref_audio_path: voice sample the model hears, as a file.
            prompt_wav_path: voice sample it speaks with, as a file; without one, the former.
            ref_audio: the former as samples [T] float32 at 16 kHz; wins over the file. Without
                either it is the default voice.
            tts_audio: the latter as samples; wins over the file.
            suffix_text: told after the voice sample.
            config: settings of this conversation; None for the processor's.
            early_audio: hand out the beginning of a unit's sound ahead; see `stream_unit`.
            session_id: its name.

        Returns:
            The system prompt's text.

        Raises:
            AudioError: a recording cannot be read or cannot serve as a voice.
        """
        context = self.context
        heard = _first_given(ref_audio, ref_audio_path, context.default_voice)
        spoken = _first_given(tts_audio, prompt_wav_path, heard)
        defaults = context.model.duplex.defaults
        chosen = defaults if config is None else duplex_settings(config, defaults)
        settings = replace(chosen, early_audio=early_audio)
        session = self._start(session_id)
        steps = context.model.duplex_prepare(
            session,
            system_prompt=system_prompt or DUPLEX_SYSTEM_PROMPT,
            ref_audio=heard,
            tts_audio=spoken,
            suffix=duplex_suffix(suffix_text or ""),
            settings=settings,
        )
        try:
            return context.run(steps)
        except OmniError:
            self.cleanup()
            raise

    def prefill(
        self,
        audio_waveform: FloatArray | None = None,
        frame_list: Sequence[Image.Image | str] | None = None,
        max_slice_nums: int | Sequence[int] | None = None,
        *,
        audio_path: str | Path | None = None,
    ) -> PrefillResult:
        """Feed one unit's input.

        Args:
            audio_waveform: [T] float32 at 16 kHz; one second is consumed, the rest waits.
            frame_list: pictures of this unit, oldest first, RGB or Base64.
            max_slice_nums: most slices per picture, for all or one per picture; None takes the
                conversation's setting.
            audio_path: the sound as a file, if there is no waveform.

        Returns:
            Whether the unit can be generated, and what it cost in seconds.

        Raises:
            NotPreparedError: `prepare` was not called.
            OutOfOrderError: the previous unit was not generated or not finalized.
            AudioError: the file cannot be read.
            PictureError: a picture cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        session, audio = self.session, audio_waveform
        if audio is None and audio_path is not None:
            audio = read_audio(audio_path)
        frames = self._sliced(decode_frames(frame_list or ()), max_slice_nums)
        return self.context.run(self.context.model.duplex_prefill(session, audio, frames))

    def look(self, picture: Image.Image, max_slice_nums: int) -> SeenPicture:
        """Encode a picture ahead of its unit.

        Changes nothing of the conversation; a unit may be under way meanwhile.

        Args:
            picture: RGB.
            max_slice_nums: most slices it is cut into.

        Returns:
            What `stream_unit` takes instead of the picture.
        """
        [cut] = self._sliced([picture], max_slice_nums)
        assert isinstance(cut, SlicedPicture), "it was not seen before"
        return self.context.run_aside(see_picture(cut, max_slice_nums))

    def generate(self, force_listen: bool = False) -> DuplexGenerateResult:
        """Let the model decide and speak in the prefilled unit.

        Args:
            force_listen: listen whatever the model wants; a running turn is ended first.

        Returns:
            What it did; costs in milliseconds, sound as wire audio.

        Raises:
            NotPreparedError: `prepare` was not called.
        """
        return self.to_record(self.generate_unit(force_listen))

    def generate_unit(self, force_listen: bool = False) -> UnitResult:
        """Do the same as `generate`; costs in seconds, sound as an array."""
        return self.context.run(self.context.model.duplex_generate(self.session, force_listen))

    def stream_unit(
        self,
        audio: FloatArray,
        frames: Sequence[Image.Image | SeenPicture] = (),
        max_slice_nums: int | None = None,
        force_listen: bool = False,
    ) -> Generator[FloatArray, None, tuple[PrefillResult, UnitResult | None]]:
        """Do the same as `prefill` and `generate` in one go, yielding sound that comes early.

        Args:
            audio: see `prefill`, as the next two.
            frames: see there; or what `look` returned, if the limit is the one it was cut by.
            max_slice_nums: see there.
            force_listen: see `generate`.

        Yields:
            [T] float32 at 24 kHz, only if `prepare` asked for it; the result holds the rest.

        Returns:
            Whether the unit could be generated, and what the model did if so.

        Raises:
            OmniError: as `prefill` and `generate`.
        """
        pictures = self._sliced(frames, max_slice_nums)
        steps = self._unit_steps(audio, pictures, force_listen)
        sounds = self.context.stream(steps)
        while True:
            try:
                early = next(sounds)
            except StopIteration as end:
                done: tuple[PrefillResult, UnitResult | None] = end.value
                return done
            yield early.waveform

    def to_record(self, unit: UnitResult) -> DuplexGenerateResult:
        """Return a unit as the wire has it."""
        return duplex_record(
            unit,
            unit_ms=self.session.settings.chunk_ms,
            has_voice=self.session.speech.vocoder is not None,
        )

    def finalize(self) -> None:
        """Close the generated unit; harmless when none is open.

        Raises:
            NotPreparedError: `prepare` was not called.
            ContextFullError: the conversation is too long for the model.
        """
        self.context.run(self.context.model.duplex_finalize(self.session))

    def set_break(self) -> None:
        """Make the next unit listen; may be called from any thread."""
        self.session.turn.force_next_listen = True

    def clear_break(self) -> None:
        """Take `set_break` back."""
        self.session.turn.force_next_listen = False

    @property
    def settings(self) -> DuplexSettings:
        """Settings of the conversation."""
        return self.session.settings

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the system prompt, voice sample included."""
        return self.session.window.preserved

    def _unit_steps(
        self, audio: FloatArray, pictures: Sequence[PreparedFrame], force_listen: bool
    ) -> Steps[tuple[PrefillResult, UnitResult | None]]:
        model, session = self.context.model, self.session
        fed = yield from model.duplex_prefill(session, audio, pictures)
        if not fed.success:
            return fed, None
        return fed, (yield from model.duplex_generate(session, force_listen))

    def _sliced(
        self,
        frames: Sequence[Image.Image | SeenPicture],
        max_slice_nums: int | Sequence[int] | None,
    ) -> list[PreparedFrame]:
        """Cut pictures here, on the session's own thread, where it holds up nobody else."""
        limit = self.settings.max_slice_nums if max_slice_nums is None else max_slice_nums
        model = self.context.model
        with model_errors():
            pictures = slice_pictures(frames, limit, model.duplex.config.slice_config)
            return [
                SlicedPicture(model.executor.prepare_slices(each.slices))
                if isinstance(each, SlicedPicture)
                else each
                for each in pictures
            ]


def _first_given(
    samples: FloatArray | None, path: str | Path | None, otherwise: FloatArray | None
) -> FloatArray | None:
    if samples is not None:
        return samples
    return otherwise if path is None else read_voice(path)
