"""`events.jsonl`: one line for each thing that happened, added as it happened, never changed.

Everything `recording.json` says follows from these lines and from which media files are whole, so
a recording can be read whatever byte its process died at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from core.schemas.queue import RequestType
from recording.records import (
    SCHEMA_VERSION,
    Chunk,
    DuplexRecording,
    EndReason,
    Milliseconds,
    Record,
    Recording,
    Seconds,
    Settings,
    TimelineEvent,
    TurnInput,
    TurnTiming,
)

LONGEST_LINE_BYTES: Final = 4 * 1024 * 1024  # far above any text; longer is damage


class SessionLine(Record):
    """The first line: what is recorded."""

    line: Literal["session"] = "session"
    schema_version: int = SCHEMA_VERSION
    session_id: str
    app_type: RequestType
    worker_id: str = ""
    start_ts: AwareDatetime
    config: Settings = Field(default_factory=dict)


class ConfigLine(Record):
    """Settings learned later; they replace those of the same name."""

    line: Literal["config"] = "config"
    extra: Settings


class ChunkLine(Record):
    """A duplex chunk and its result."""

    line: Literal["chunk"] = "chunk"
    chunk: Chunk


class EventLine(Record):
    """Something between chunks."""

    line: Literal["event"] = "event"
    event: TimelineEvent


class TurnStartLine(Record):
    """What the user said in a turn."""

    line: Literal["turn_start"] = "turn_start"
    turn_index: int = Field(ge=0)
    request_ts_ms: Milliseconds
    input: TurnInput


class TextLine(Record):
    """More text of the reply."""

    line: Literal["text"] = "text"
    turn_index: int = Field(ge=0)
    text: str


class TurnEndLine(Record):
    """The reply is complete."""

    line: Literal["turn_end"] = "turn_end"
    turn_index: int = Field(ge=0)
    timing: TurnTiming
    interrupted: Literal[True] | None = None
    text: str | None = None  # the whole reply, where it did not come in pieces


class EndLine(Record):
    """How the session ended; the last line, unless another turn followed."""

    line: Literal["end"] = "end"
    end_reason: EndReason
    ended_at: AwareDatetime
    duration_s: Seconds
    problem: str | None = None
    files_left_out: int | None = None


Line = (
    SessionLine
    | ConfigLine
    | ChunkLine
    | EventLine
    | TurnStartLine
    | TextLine
    | TurnEndLine
    | EndLine
)
_LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="line")])


@dataclass
class Timeline:
    """All readable lines of one session, sorted by kind."""

    session: SessionLine | None = None
    config: Settings = field(default_factory=dict)
    chunks: dict[int, Chunk] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)
    starts: dict[int, TurnStartLine] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    ends: dict[int, TurnEndLine] = field(default_factory=dict)
    end: EndLine | None = None

    def add(self, line: Line) -> None:
        """Add the next line; of two about the same thing the later counts."""
        match line:
            case SessionLine():
                self.session = line
                self.config |= line.config
            case ConfigLine():
                self.config |= line.extra
            case ChunkLine():
                self.chunks[line.chunk.index] = line.chunk
            case EventLine():
                self.events.append(line.event)
            case TurnStartLine():
                self.starts[line.turn_index] = line
                self.end = None  # the session went on after all
            case TextLine():
                self.texts.setdefault(line.turn_index, []).append(line.text)
            case TurnEndLine():
                self.ends[line.turn_index] = line
            case EndLine():
                self.end = line

    def complete_from(self, recording: Recording) -> None:
        """Fill in from an earlier `recording.json` what lines no longer say."""
        self.events = self.events or list(recording.events)
        if isinstance(recording, DuplexRecording):
            self.chunks = {chunk.index: chunk for chunk in recording.chunks} | self.chunks
            return
        for turn in recording.turns:
            index = turn.turn_index
            if index not in self.starts and turn.input and turn.request_ts_ms is not None:
                self.starts[index] = TurnStartLine(
                    turn_index=index, request_ts_ms=turn.request_ts_ms, input=turn.input
                )
            if index not in self.ends and len(turn.output.text) >= len(self.reply(index)):
                self.ends[index] = TurnEndLine(
                    turn_index=index,
                    timing=turn.timing,
                    interrupted=turn.interrupted,
                    text=turn.output.text,
                )

    def reply(self, turn_index: int) -> str:
        """Return the model's reply in a turn, as far as it is known."""
        end = self.ends.get(turn_index)
        if end is not None and end.text is not None:
            return end.text
        return "".join(self.texts.get(turn_index, ()))


def encode_line(line: Line) -> bytes:
    return line.to_json().encode() + b"\n"


def read_timeline(path: Path) -> Timeline:
    """Read all readable lines; a torn or damaged one is skipped."""
    timeline = Timeline()
    for raw in _raw_lines(path):
        try:
            timeline.add(_LINE.validate_json(raw))
        except ValidationError:
            continue
    return timeline


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while raw := file.readline(LONGEST_LINE_BYTES):
                yield raw
    except FileNotFoundError:
        return
