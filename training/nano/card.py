"""What the shipped checkpoint says of itself: its card, and the notice of what it contains."""

from __future__ import annotations

from pathlib import Path

from core.nano_assets import write_sums
from MiniCPMO45.tiny.tokenizer import write_json
from training.nano.domain.catalogue import intents

CARD_FILE = "model_card.json"
NOTICE_FILE = "NOTICE"
NAME = "MiniCPM-o nano (demonstration)"
FIRST_TRIES = (
    "Hello.",
    "What is seven plus five?",
    "Tell me a story.",
    "Stop.",
    "What do you see?",
    "What can you do?",
)
MOST_TRIES = 20
NOTICE = """MiniCPM-o nano
The weights in this folder were trained from a random start by the programs in training/nano of this
project and are under its licence, Apache-2.0.

Set-up adds model-00004-of-00004.safetensors: the encoder of OpenAI's Whisper tiny.en, unchanged
but for names and file format.
  Copyright (c) 2022 OpenAI. MIT licence:
  Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
  associated documentation files (the "Software"), to deal in the Software without restriction,
  including without limitation the rights to use, copy, modify, merge, publish, distribute,
  sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
  furnished to do so, subject to the following conditions:
  The above copyright notice and this permission notice shall be included in all copies or
  substantial portions of the Software.
  THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
  NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
  NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
  DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
  OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

The voice was learned from the output of hibari-tts 0.2.1 (Apache-2.0), whose model was distilled
from Kokoro-82M (Apache-2.0). docs/nano.md names everything else it was trained on.
"""


def write_card(folder: Path) -> None:
    """Write card, notice and sums beside a checkpoint's other files.

    Args:
        folder: the finished checkpoint, without the encoder.
    """
    examples = [text for intent in intents().values() for text in intent.examples]
    tries = list(dict.fromkeys((*FIRST_TRIES, *examples)))[:MOST_TRIES]
    write_json(folder / CARD_FILE, {"name": NAME, "kind": "nano", "try_saying": tries})
    (folder / NOTICE_FILE).write_text(NOTICE, encoding="utf8")
    write_sums(folder)
