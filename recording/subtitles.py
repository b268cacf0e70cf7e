"""What is said in a replay, as subtitles a player draws: beside the film, and as a track in it.

A player has fonts for the script of the person who looks on; this program need not have any.
"""

from __future__ import annotations

import html
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from av import Packet
from av.container import OutputContainer
from av.stream import Stream

from recording.replay_plan import SAMPLES_PER_MS, CaptionTurn, ReplayPlan

DASH: Final = "\u2013 "  # before the words of the other speaker
CUE_MAX_CHARS: Final = 120  # three lines on a film; further words begin anew
MS: Final = Fraction(1, 1_000)
MS_PER_S: Final = 1_000
S_PER_MINUTE: Final = 60
LENGTH_BYTES: Final = 2  # source: 3GPP TS 26.245, section 5.17
# The least an encoder of MP4 subtitles takes: the format is given as a subtitle file of the
# ASS kind. Source: FFmpeg, libavcodec/movtextenc.c.
STYLE_HEADER: Final = b"""[Script Info]
ScriptType: v4.00+
[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Sans,16
[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


@dataclass(frozen=True)
class Cue:
    start_ms: int
    end_ms: int
    text: str


def cues_of(plan: ReplayPlan) -> list[Cue]:
    """Return the subtitles of a replay: words accumulate over a turn, then all disappear.

    What the user said stands above what the model says, behind a dash.
    """
    model = _cues_of_turns(plan.captions, plan.samples)
    user = _cues_of_turns(plan.user_captions, plan.samples)
    return _side_by_side([replace(cue, text=DASH + cue.text) for cue in user], model)


def _cues_of_turns(turns: list[CaptionTurn], samples: int) -> list[Cue]:
    cues: list[Cue] = []
    for turn, following in itertools.zip_longest(turns, turns[1:]):
        cues += _cues_of_turn(turn, min(turn.end, following.words[0][0] if following else samples))
    return cues


def _side_by_side(above: list[Cue], below: list[Cue]) -> list[Cue]:
    """Return one cue at a time, as a track of an MP4 file needs it."""
    if not above:
        return below
    times = sorted({time for cue in (*above, *below) for time in (cue.start_ms, cue.end_ms)})
    waiting = [deque(above), deque(below)]
    cues: list[Cue] = []
    for start_ms, end_ms in itertools.pairwise(times):
        for row in waiting:
            while row and row[0].end_ms <= start_ms:
                row.popleft()
        shown = [row[0].text for row in waiting if row and row[0].start_ms <= start_ms]
        if shown:
            cues.append(Cue(start_ms, end_ms, "\n".join(shown)))
    return cues


def webvtt(cues: list[Cue]) -> str:
    """Return the text of a WebVTT file. Source: W3C, WebVTT, section 4."""
    blocks = [
        f"{_clock(cue.start_ms)} --> {_clock(cue.end_ms)}\n{html.escape(cue.text, quote=False)}\n"
        for cue in cues
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def add_track(file: OutputContainer, cues: list[Cue]) -> Iterator[Packet[Stream]]:
    """Add a subtitle track to an MP4 file before anything is written to it; return its packets."""
    stream = file.add_stream("mov_text")
    stream.codec_context.subtitle_header = STYLE_HEADER
    stream.time_base = MS
    return (_packet(stream, cue) for cue in cues)


def _packet(stream: Stream, cue: Cue) -> Packet[Stream]:
    text = cue.text.encode()
    packet: Packet[Stream] = Packet(len(text).to_bytes(LENGTH_BYTES, "big") + text)
    packet.stream, packet.time_base = stream, MS
    packet.pts = packet.dts = cue.start_ms
    packet.duration = cue.end_ms - cue.start_ms
    return packet


def _cues_of_turn(turn: CaptionTurn, last: int) -> Iterator[Cue]:
    shown = ""
    for (start, said), (end, _) in itertools.pairwise([*turn.words, (last, "")]):
        words = "".join(char if char.isprintable() else " " for char in said)
        shown = shown + words if len(shown) + len(words) <= CUE_MAX_CHARS else words
        text = shown.strip()[:CUE_MAX_CHARS]
        start_ms, end_ms = start // SAMPLES_PER_MS, min(end, last) // SAMPLES_PER_MS
        if text and start_ms < end_ms:
            yield Cue(start_ms, end_ms, text)


def _clock(at_ms: int) -> str:
    seconds, ms = divmod(at_ms, MS_PER_S)
    minutes, seconds = divmod(seconds, S_PER_MINUTE)
    hours, minutes = divmod(minutes, S_PER_MINUTE)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}.{ms:03d}"
