"""What happened in a conversation: a table, the same as JSON, and both voices as sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from rich.table import Table

from core.audio import FloatArray, resample, write_wav
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Row:
    """One unit, turn or reply; times in milliseconds unless the name says otherwise.

    Attributes:
        at_s: second of the input at which it was answered.
        action: "listen" or "speak".
        speech_s: length of what was said.
        starts_at_s: when it is heard; None for silence.
        prefill_ms: reading the input.
        llm_ms: deciding and writing.
        tts_ms: drawing speech codes.
        token2wav_ms: codes to sound.
        answer_ms: the three together, where they overlap and are not timed one by one.
        finalize_ms: closing the unit.
        kv_tokens: tokens in the cache afterwards.
    """

    index: int
    at_s: float
    action: str
    text: str = ""
    n_tokens: int = 0
    n_speech_tokens: int = 0
    speech_s: float = 0.0
    starts_at_s: float | None = None
    prefill_ms: float = 0.0
    llm_ms: float = 0.0
    tts_ms: float = 0.0
    token2wav_ms: float = 0.0
    answer_ms: float = 0.0
    finalize_ms: float = 0.0
    total_ms: float = 0.0
    end_of_turn: bool = False
    kv_tokens: int = 0


WIDE = 110  # terminal columns that hold the time of every stage

_COLUMNS = {
    "read": "prefill_ms",
    "write": "llm_ms",
    "codes": "tts_ms",
    "sound": "token2wav_ms",
    "answer": "answer_ms",
    "close": "finalize_ms",
    "total": "total_ms",
}
"""Headings and what stands below them, in milliseconds."""


def make_table(rows: Sequence[Row], *, noun: str, width: int) -> Table:
    """Lay rows out for a terminal; columns in which nothing happened are left out.

    `noun` is what one row is, such as "unit"; a terminal of small `width` gets totals only.
    """
    table = Table(caption="times in milliseconds", header_style="bold", pad_edge=False)
    table.add_column(noun, justify="right", no_wrap=True)
    table.add_column("until", justify="right", no_wrap=True)
    table.add_column("did", no_wrap=True)
    table.add_column("text", overflow="fold", min_width=20, ratio=1)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("speech", justify="right", no_wrap=True)
    shown = {
        heading: name
        for heading, name in _COLUMNS.items()
        if heading == "total" or (width >= WIDE and any(asdict(row)[name] for row in rows))
    }
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, shown), style=None if row.action == "speak" else "dim")
    return table


def _cells(row: Row, shown: Mapping[str, str]) -> list[str]:
    values = asdict(row)
    is_spoken = row.action == "speak"
    return [
        str(row.index),
        f"{row.at_s:.1f} s",
        row.action,
        row.text.replace("\n", " ") + (" (end of turn)" if row.end_of_turn else ""),
        str(row.n_tokens) if is_spoken else "",
        f"{row.speech_s:.2f} s" if is_spoken else "",
        *(f"{values[name]:.0f}" for name in shown.values()),
    ]


def summarise(rows: Sequence[Row], duration_s: float) -> dict[str, Any]:
    spoken = [row for row in rows if row.action == "speak"]
    silent = [row for row in rows if row.action != "speak"]
    total_s = sum(row.total_ms for row in rows) / 1000
    return {
        "rows": len(rows),
        "spoken": len(spoken),
        "median_speak_ms": median(row.total_ms for row in spoken) if spoken else None,
        "median_listen_ms": median(row.total_ms for row in silent) if silent else None,
        "speech_s": sum(row.speech_s for row in rows),
        "real_time_factor": total_s / duration_s if duration_s else None,
    }


CHANNELS: Final = 2


class Timeline:
    """Where everything said is placed; times are seconds of the input."""

    def __init__(self, user: FloatArray) -> None:
        self._user = resample(user, INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ)
        self._spoken: list[tuple[int, FloatArray]] = []
        self._free_from = 0

    @property
    def duration_s(self) -> float:
        """Length of the whole, until the last of both has finished."""
        return max(len(self._user), self._free_from) / OUTPUT_SAMPLE_RATE_HZ

    def place(self, waveform: FloatArray, ready_at_s: float) -> float:
        """Add speech, float32 [T] at 24 kHz, that was ready at `ready_at_s`.

        Returns when it starts to be heard, in seconds: then, or when the speech before has ended.
        """
        start = max(self._free_from, round(ready_at_s * OUTPUT_SAMPLE_RATE_HZ))
        self._spoken.append((start, waveform))
        self._free_from = start + len(waveform)
        return start / OUTPUT_SAMPLE_RATE_HZ

    def cut(self, at_s: float) -> None:
        """Silence what would be heard after `at_s`: the model was interrupted."""
        end = round(at_s * OUTPUT_SAMPLE_RATE_HZ)
        self._spoken = [(start, wave[: end - start]) for start, wave in self._spoken if start < end]
        self._free_from = min(self._free_from, end)

    def mix(self) -> FloatArray:
        stereo = np.zeros((max(len(self._user), self._free_from), CHANNELS), np.float32)
        stereo[: len(self._user), 0] = self._user
        for start, wave in self._spoken:
            stereo[start : start + len(wave), 1] = wave
        return stereo

    def write(self, path: Path) -> None:
        write_wav(path, self.mix(), OUTPUT_SAMPLE_RATE_HZ)
