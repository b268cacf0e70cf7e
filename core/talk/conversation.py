"""A conversation with a recorded file: its input, a run in each mode, and the report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from PIL import Image
from rich.table import Table

from core.audio import FloatArray, check_audible, from_pcm, read_audio, resample, write_wav
from core.engine.engine import run_inline
from core.errors import PictureError
from core.images import read_picture
from core.processors.streaming import HalfDuplexView
from core.processors.unified import UnifiedProcessor
from core.processors.view import iterate_inline
from core.schemas.common import MS_PER_S, TTSMode
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.half_duplex import HalfDuplexConfig, TurnSpeechConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.vad import SpeechSegment, StreamingVAD
from core.video import read_video
from MiniCPMO45.processing.prompts import system_prompt


@dataclass(frozen=True)
class Row:
    """One unit, turn or reply."""

    index: int
    at_s: float  # position in the input
    action: str  # "listen" or "speak"
    text: str = ""
    n_tokens: int = 0
    n_speech_tokens: int = 0
    speech_s: float = 0.0
    starts_at_s: float | None = None  # when it starts to play; None for silence
    prefill_ms: float = 0.0
    llm_ms: float = 0.0  # decision and text
    tts_ms: float = 0.0  # speech codes
    token2wav_ms: float = 0.0  # codes to waveform
    answer_ms: float = 0.0  # the last three where they overlap and are not timed separately
    finalize_ms: float = 0.0
    total_ms: float = 0.0
    end_of_turn: bool = False
    kv_tokens: int = 0  # in the cache afterwards


WIDE = 110  # terminal columns for the times of all stages

_STAGES = {
    "prefill_ms": "read",
    "llm_ms": "write",
    "tts_ms": "codes",
    "token2wav_ms": "sound",
    "answer_ms": "answer",
    "finalize_ms": "close",
}


def make_table(rows: Sequence[Row], *, noun: str, width: int) -> Table:
    """Format rows for a terminal, without columns that are zero.

    `noun` names a row, such as "unit"; a terminal below `WIDE` columns shows only totals.
    """
    table = Table(caption="times in milliseconds", header_style="bold", pad_edge=False)
    all_values = [asdict(row) for row in rows]
    used = [name for name in _STAGES if any(values[name] for values in all_values)]
    shown = [*(used if width >= WIDE else ()), "total_ms"]
    for heading in (noun, "until", "did", "text", "tokens", "speech"):
        if heading == "text":
            table.add_column(heading, overflow="fold", min_width=20, ratio=1)
        else:
            table.add_column(heading, justify="left" if heading == "did" else "right", no_wrap=True)
    for name in shown:
        table.add_column(_STAGES.get(name, "total"), justify="right", no_wrap=True)
    for row, values in zip(rows, all_values, strict=True):
        is_spoken = row.action == "speak"
        table.add_row(
            str(row.index),
            f"{row.at_s:.1f} s",
            row.action,
            row.text.replace("\n", " ") + (" (end of turn)" if row.end_of_turn else ""),
            str(row.n_tokens) if is_spoken else "",
            f"{row.speech_s:.2f} s" if is_spoken else "",
            *(f"{values[name]:.0f}" for name in shown),
            style=None if is_spoken else "dim",
        )
    return table


def summarise(rows: Sequence[Row], duration_s: float) -> dict[str, Any]:
    spoken_ms = [row.total_ms for row in rows if row.action == "speak"]
    silent_ms = [row.total_ms for row in rows if row.action != "speak"]
    total_s = sum(row.total_ms for row in rows) / MS_PER_S
    return {
        "rows": len(rows),
        "spoken": len(spoken_ms),
        "median_speak_ms": median(spoken_ms) if spoken_ms else None,
        "median_listen_ms": median(silent_ms) if silent_ms else None,
        "speech_s": sum(row.speech_s for row in rows),
        "real_time_factor": total_s / duration_s if duration_s else None,
    }


class Timeline:
    def __init__(self, user: FloatArray) -> None:
        self._user = resample(user, INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ)
        self._spoken: list[tuple[int, FloatArray]] = []
        self._free_from = 0

    @property
    def duration_s(self) -> float:
        return max(len(self._user), self._free_from) / OUTPUT_SAMPLE_RATE_HZ

    def place(self, waveform: FloatArray, ready_at_s: float) -> float:
        """Add speech, float32 [T] at 24 kHz, that was ready at `ready_at_s`.

        Returns the time at which it starts: immediately, or after the speech before it.
        """
        start = max(self._free_from, round(ready_at_s * OUTPUT_SAMPLE_RATE_HZ))
        self._spoken.append((start, waveform))
        self._free_from = start + len(waveform)
        return start / OUTPUT_SAMPLE_RATE_HZ

    def cut(self, at_s: float) -> None:
        """Drop speech after `at_s`, when the model was interrupted."""
        end = round(at_s * OUTPUT_SAMPLE_RATE_HZ)
        self._spoken = [(start, wave[: end - start]) for start, wave in self._spoken if start < end]
        self._free_from = min(self._free_from, end)

    def mix(self) -> FloatArray:
        stereo = np.zeros((max(len(self._user), self._free_from), 2), np.float32)
        stereo[: len(self._user), 0] = self._user
        for start, wave in self._spoken:
            stereo[start : start + len(wave), 1] = wave
        return stereo

    def write(self, path: Path) -> None:
        write_wav(path, self.mix(), OUTPUT_SAMPLE_RATE_HZ)


MAX_VOICE_S: Final = 30.0
PICTURE_SUFFIXES: Final = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp"))
VAD_CHUNK_SAMPLES: Final = INPUT_SAMPLE_RATE_HZ // 2  # half a second, as clients send

Turn = tuple[FloatArray, tuple[Image.Image, ...], float]
"""Sound and pictures of the user's turn, and the second at which it ended."""


@dataclass(frozen=True)
class TalkInput:
    sound: FloatArray  # [T] at 16 kHz
    frames: tuple[Image.Image, ...]  # one RGB picture per second; may be shorter than the sound
    voice: FloatArray | None  # [T] at 16 kHz, to speak with; None takes the checkpoint's own

    @property
    def duration_s(self) -> float:
        return len(self.sound) / INPUT_SAMPLE_RATE_HZ

    def second(self, index: int) -> tuple[FloatArray, list[Image.Image]]:
        """Return second `index` of the audio, padded with silence, and its picture."""
        start = index * INPUT_SAMPLE_RATE_HZ
        piece = self.sound[start : start + INPUT_SAMPLE_RATE_HZ]
        padded = np.pad(piece, (0, INPUT_SAMPLE_RATE_HZ - len(piece)))
        return padded, list(self.frames[index : index + 1])

    def segments(self) -> Iterator[Turn]:
        """Split the audio into segments of speech, each with the picture shown at its end."""
        detector = StreamingVAD()
        padded = np.pad(self.sound, (0, INPUT_SAMPLE_RATE_HZ))  # silence ends the last segment
        for start in range(0, len(padded), VAD_CHUNK_SAMPLES):
            ended_at_s = (start + VAD_CHUNK_SAMPLES) / INPUT_SAMPLE_RATE_HZ
            shown = min(int(ended_at_s), len(self.frames))
            frames = self.frames[max(shown - 1, 0) : shown]
            for event in detector.process(padded[start : start + VAD_CHUNK_SAMPLES]):
                if isinstance(event, SpeechSegment):
                    yield event.samples, frames, ended_at_s


def read_inputs(
    audio: Path | None,
    video: Path | None,
    frames: Path | None,
    voice: Path | None,
    *,
    max_duration_s: float,
) -> TalkInput:
    """Read and check the input of a conversation.

    Without `audio`, the video's audio is used; the pictures in `frames` follow each other every
    second in the order of their names. Raises `OmniError`.
    """
    pictures: tuple[Image.Image, ...] = ()
    sound: FloatArray | None = None
    if video is not None:
        max_frames = int(max_duration_s)
        clip = read_video(video, max_frames=max_frames, max_duration_s=max_duration_s)
        pictures, sound = clip.frames, clip.audio
    if frames is not None:
        pictures = _read_folder(frames, most=int(max_duration_s))
    if audio is not None:
        sound = read_audio(audio, max_duration_s=max_duration_s)
    if sound is None:
        raise PictureError("Give an audio file with --audio or a video with --video.")
    check_audible(sound)
    spoken = None if voice is None else read_audio(voice, max_duration_s=MAX_VOICE_S)
    return TalkInput(sound, pictures, spoken)


def _read_folder(folder: Path, *, most: int) -> tuple[Image.Image, ...]:
    if not folder.is_dir():
        raise PictureError(f"There is no folder {folder}.")
    names = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES)
    if not names:
        raise PictureError(f"The folder {folder} holds no pictures.")
    return tuple(read_picture(path) for path in names[:most])


REST_S: Final = 15  # seconds of silence that are fed at the end while the model still speaks


@dataclass
class Conversation:
    """One conversation with one processor; raises `OmniError` if the model or the input refuses."""

    processor: UnifiedProcessor
    given: TalkInput
    system: str | None  # system prompt; None takes the mode's own prompt
    speaks: bool  # replies have sound

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.given.sound)

    def hold(self, mode: str) -> Iterator[Row]:
        if mode == "duplex":
            return self._duplex()
        given = self.given
        whole = (given.sound, given.frames, given.duration_s)
        return self._by_turns(given.segments() if mode == "half_duplex" else [whole])

    def _duplex(self) -> Iterator[Row]:
        view = self.processor.set_duplex_mode()
        config = DuplexConfig(force_listen_count=0, generate_audio=self.speaks)
        view.prepare(self.system, ref_audio=self.given.voice, config=config)
        heard = -(-len(self.given.sound) // INPUT_SAMPLE_RATE_HZ)
        for index in range(heard + REST_S):
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
        wave = unit.audio_waveform if self.speaks and not unit.is_listen else None
        if unit.barge_in:
            self.timeline.cut(index + 1)
        starts_at_s = None if wave is None else self.timeline.place(wave, index + 1)
        return Row(
            index=index,
            at_s=index + 1,
            action="listen" if unit.is_listen else "speak",
            text=unit.text,
            n_tokens=unit.n_tokens,
            n_speech_tokens=unit.n_tts_tokens,
            speech_s=0.0 if wave is None else len(wave) / OUTPUT_SAMPLE_RATE_HZ,
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

    def _by_turns(self, turns: Iterable[Turn]) -> Iterator[Row]:
        view = self.processor.set_half_duplex_mode()
        voice = self.given.voice
        sample = view.context.default_voice if voice is None else voice
        prompt = system_prompt(TTSMode.AUDIO_ASSISTANT.value, has_voice=sample is not None)
        content = prompt.parts(sample) if self.system is None else self.system
        config = HalfDuplexConfig(tts=TurnSpeechConfig(enabled=self.speaks))
        run_inline(view.begin(content, voice=voice, config=config))
        for index, turn in enumerate(turns):
            yield self._turn(view, index, turn)
        view.cleanup()

    def _turn(self, view: HalfDuplexView, index: int, turn: Turn) -> Row:
        (sound, frames, ended_at_s), start_s = turn, time.perf_counter()
        run_inline(view.feed_segment(sound, frames))
        read_s = time.perf_counter() - start_s
        text, samples, starts_at_s = "", 0, None
        for piece in iterate_inline(view.answer()):
            text += piece.text_delta or ""
            if piece.audio_data:
                spoken = from_pcm(piece.audio_data)
                placed_s = self.timeline.place(spoken, ended_at_s)
                starts_at_s = placed_s if starts_at_s is None else starts_at_s
                samples += spoken.size
        total_s = time.perf_counter() - start_s
        return Row(
            index=index,
            at_s=ended_at_s,
            action="speak",
            text=text,
            n_tokens=view.reply_end.generated_tokens if view.reply_end else 0,
            speech_s=samples / OUTPUT_SAMPLE_RATE_HZ,
            starts_at_s=starts_at_s,
            prefill_ms=read_s * MS_PER_S,
            answer_ms=(total_s - read_s) * MS_PER_S,
            total_ms=total_s * MS_PER_S,
            end_of_turn=True,
            kv_tokens=view.kv_cache_length,
        )
