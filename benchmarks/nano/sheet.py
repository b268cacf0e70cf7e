"""Audio sheet: a page with the model's speech and its transcripts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nano.runs import OUTPUT_RATE_HZ
from core.audio import encode_wav
from training.nano.bank import Samples

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>nano: spoken replies</title>
<style>body {{ font: 16px system-ui; margin: 2rem }} td {{ padding: .3rem 1rem .3rem 0 }}</style>
<h1>nano: spoken replies</h1>
<table><tr><th>question<th>reply<th>transcript of Whisper tiny.en<th></tr>
{rows}
</table></html>
"""
ROW = '<tr><td>{question}<td>{text}<td>{transcript}<td><audio controls src="{file}"></audio></tr>'


@dataclass(frozen=True, eq=False)
class Sample:
    """Question, text, transcript and audio (float32 at 24 kHz) of a reply."""

    question: str
    text: str
    transcript: str
    sound: Samples


def write_sheet(samples: Sequence[Sample], folder: Path) -> Path:
    """Write a WAV file per sample and the page; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, each in enumerate(samples, start=1):
        file = f"{number:03d}.wav"
        (folder / file).write_bytes(encode_wav(each.sound, OUTPUT_RATE_HZ))
        words = {
            name: html.escape(text) for name, text in vars(each).items() if isinstance(text, str)
        }
        rows.append(ROW.format(file=file, **words))
    page = folder / "index.html"
    page.write_text(PAGE.format(rows="\n".join(rows)), encoding="utf8")
    return page
