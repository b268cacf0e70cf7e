"""The audio sheet: what the model said, to listen to, with what a judge heard."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nano.runs import OUTPUT_RATE_HZ
from core.audio import encode_wav
from training.nano.bank import Samples

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>nano: what it says</title>
<style>body {{ font: 16px system-ui; margin: 2rem }} td {{ padding: .3rem 1rem .3rem 0 }}</style>
<h1>nano: what it says</h1>
<table><tr><th>asked<th>said<th>heard by Whisper tiny.en<th></tr>
{rows}
</table></html>
"""
ROW = '<tr><td>{asked}<td>{said}<td>{heard}<td><audio controls src="{file}"></audio></tr>'


@dataclass(frozen=True, eq=False)
class Sample:
    """One line of the sheet.

    Attributes:
        asked: the question.
        said: the reply's text.
        heard: the judge's transcript.
        sound: float32 at 24 kHz.
    """

    asked: str
    said: str
    heard: str
    sound: Samples


def write_sheet(samples: Sequence[Sample], folder: Path) -> Path:
    """Write one WAV per line and a page over them; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, each in enumerate(samples, start=1):
        file = f"{number:03d}.wav"
        (folder / file).write_bytes(encode_wav(each.sound, OUTPUT_RATE_HZ))
        words = (html.escape(text) for text in (each.asked, each.said, each.heard))
        asked, said, heard = words
        rows.append(ROW.format(asked=asked, said=said, heard=heard, file=file))
    page = folder / "index.html"
    page.write_text(PAGE.format(rows="\n".join(rows)), encoding="utf8")
    return page
