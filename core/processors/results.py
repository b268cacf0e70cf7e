"""What the model gives out, as the records of the schema; arrays are encoded here and only here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.audio import FloatArray, encode_wire_audio, write_wav
from core.errors import BadConfigError
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingChunk
from MiniCPMO45.unit_results import UnitResult

MS_PER_S: Final = 1_000


@dataclass(frozen=True, eq=False)
class SpokenPiece:
    """A piece of a streamed reply.

    Attributes:
        index: number of the piece, from 0.
        text: text since the last piece.
        waveform: [T] float32 at 24 kHz; None when the piece is text only.
        duration_ms: time it took to make.
    """

    index: int
    text: str
    waveform: FloatArray | None
    duration_ms: float

    def to_chunk(self) -> StreamingChunk:
        """Return it as the wire has it."""
        has_sound = self.waveform is not None and self.waveform.size > 0
        return StreamingChunk(
            chunk_index=self.index,
            text_delta=self.text or None,
            audio_data=encode_wire_audio(self.waveform)
            if has_sound and self.waveform is not None
            else None,
            duration_ms=self.duration_ms,
        )


LISTEN_MARKS: Final = 1  # the decision to listen
SPEAK_MARKS: Final = 2  # the decision to speak, and what ends the unit


def duplex_record(unit: UnitResult, *, unit_ms: int, has_voice: bool) -> DuplexGenerateResult:
    """Return what the model did in one unit as the wire has it.

    Args:
        unit: the model's result, costs in seconds.
        unit_ms: length of one unit.
        has_voice: the session speaks; without a voice a unit has no sound.
    """
    sound = unit.audio_waveform if has_voice and not unit.is_listen else None
    return DuplexGenerateResult(
        is_listen=unit.is_listen,
        text=unit.text,
        audio_data=None if sound is None else encode_wire_audio(sound),
        end_of_turn=unit.end_of_turn,
        current_time=unit.current_time * unit_ms,
        cost_llm_ms=unit.cost_llm * MS_PER_S,
        cost_tts_prep_ms=unit.cost_tts_prep * MS_PER_S,
        cost_tts_ms=unit.cost_tts * MS_PER_S,
        cost_token2wav_ms=unit.cost_token2wav * MS_PER_S,
        cost_all_ms=unit.cost_all * MS_PER_S,
        n_tokens=unit.n_tokens + (LISTEN_MARKS if unit.is_listen else SPEAK_MARKS),
        n_tts_tokens=unit.n_tts_tokens,
    )


def save_reply(path: str | Path | None, waveform: FloatArray | None) -> str | None:
    """Write a spoken reply as a WAV file if there are both; return its path.

    Raises:
        BadConfigError: the file cannot be written.
    """
    if not path or waveform is None:
        return None
    try:
        write_wav(Path(path), waveform, OUTPUT_SAMPLE_RATE_HZ)
    except OSError as error:
        raise BadConfigError(f"The reply cannot be written: {error.strerror}.") from error
    return str(path)
