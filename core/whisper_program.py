"""The program that `core.whisper_process` starts: Whisper over CTranslate2, request by request.

It reads requests from standard input until that ends, and writes one answer to each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from faster_whisper import WhisperModel

from core.media_process import pack, unpack

ENGLISH: Final = "en"
ROUNDED_DIGITS: Final = 3


def serve(model: WhisperModel, requests: IO[bytes], answers: IO[bytes]) -> None:
    while requests.peek(1):  # type: ignore[attr-defined]  # buffered, as standard input is
        options, [sound] = unpack(requests)
        pack(answers, transcribed(model, np.frombuffer(sound, "<f4"), options), [])


# Any: the request and the answer as plain JSON.
def transcribed(
    model: WhisperModel, samples: np.ndarray, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Transcribe [T] float32 samples at 16 kHz."""
    language = options["language"] if model.model.is_multilingual else ENGLISH
    found, about = model.transcribe(
        samples,
        language=language,
        beam_size=1,
        temperature=options["temperature"],
        initial_prompt=options["prompt"] or None,
        condition_on_previous_text=False,  # a loop in one window does not spread to the next
    )
    passages = [
        {
            "start_s": round(passage.start, ROUNDED_DIGITS),
            "end_s": round(passage.end, ROUNDED_DIGITS),
            "text": passage.text.strip(),
        }
        for passage in found
    ]
    text = " ".join(passage["text"] for passage in passages)
    return {"text": text, "language": about.language, "passages": passages}


def load(folder: Path) -> WhisperModel:
    return WhisperModel(
        str(folder), device="cpu", compute_type="int8", cpu_threads=1, num_workers=1
    )


def main() -> None:
    os.nice(int(sys.argv[2]))
    model = load(Path(sys.argv[1]))
    serve(model, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
