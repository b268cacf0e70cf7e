"""What happened in a conversation, row by row: for a person as a table, for a program as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One unit, turn or reply; times in milliseconds unless the name says otherwise.

    Attributes:
        index: running number.
        at_s: second of the input at which it was answered.
        action: "listen" or "speak".
        text: what the model said.
        n_tokens: text tokens.
        n_speech_tokens: speech codes.
        speech_s: length of what was said.
        starts_at_s: when it is heard; None for silence.
        prefill_ms: reading the input.
        llm_ms: deciding and writing.
        tts_ms: drawing speech codes.
        token2wav_ms: codes to sound.
        answer_ms: the three together, where they overlap and are not timed one by one.
        finalize_ms: closing the unit.
        total_ms: everything.
        end_of_turn: the model's turn ended.
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

    Args:
        rows: what happened.
        noun: what one row is, such as "unit".
        width: columns of the terminal; a narrow one gets totals only.
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
    """Return counts, medians and the real-time factor of a conversation.

    Args:
        rows: what happened.
        duration_s: length of the input that was answered.
    """
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
