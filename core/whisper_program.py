"""Whisper over CTranslate2, started by `core.serving.transcribers`.

It answers requests from standard input, one after the other, until the input ends.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from faster_whisper import WhisperModel

from core.media_process import pack, unpack
from core.process_memory import trim_heap

ROUNDED_DIGITS: Final = 3
FRAMES_PER_S: Final = 100  # of the spectrogram
# Ours: Whisper's window is 30 s. Encoding only the audio of a short turn takes a sixth of the time;
# with less silence after it, transcripts repeat themselves too often.
SHORT_S: Final = 15.0
SILENCE_BEHIND_S: Final = 4.0
TOKENS_PER_S: Final = 8  # ours: twice the rate of a fast speaker
FEWEST_TOKENS: Final = 16
PHRASE_WORDS: Final = 4  # a phrase of this length that occurs twice may be a loop


class ShortWhisper(WhisperModel):  # type: ignore[misc]  # the library has no types
    """Encodes short recordings without padding them to 30 s."""

    is_short = False

    def encode(self, features: np.ndarray) -> Any:  # Any: CTranslate2's array
        """Encode a spectrogram [80, 3000] whose padding is zero."""
        if self.is_short:
            filled = np.flatnonzero(features.any(axis=0))
            last = int(filled[-1]) + 1 if len(filled) else 0
            frames = last + int(SILENCE_BEHIND_S * FRAMES_PER_S)
            features = np.ascontiguousarray(features[:, : frames + frames % 2])
        return super().encode(features)


def serve(model: WhisperModel, requests: IO[bytes], answers: IO[bytes]) -> None:
    while requests.peek(1):  # type: ignore[attr-defined]  # buffered, as standard input is
        options, [sound] = unpack(requests)
        pack(answers, transcribed(model, np.frombuffer(sound, "<f4"), options), [])
        trim_heap()


# Any: the request and the answer as plain JSON.
def transcribed(
    model: ShortWhisper, samples: np.ndarray, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Transcribe [T] float32 samples at 16 kHz.

    A short recording is encoded without padding, and again with padding if its transcript loops.
    """
    length_s = len(samples) / model.feature_extractor.sampling_rate
    model.is_short = length_s <= SHORT_S
    most_tokens = FEWEST_TOKENS + int(TOKENS_PER_S * length_s) if model.is_short else None
    found = _attempt(model, samples, options, most_tokens)
    if model.is_short and repeats(found["text"]):
        model.is_short = False
        found = _attempt(model, samples, options, None)
    return found


def repeats(text: str) -> bool:
    """Return whether a phrase occurs twice, or fewer words three times in a row."""
    words = re.findall(r"\w+", text.lower())
    phrases = [tuple(words[at : at + PHRASE_WORDS]) for at in range(len(words) - PHRASE_WORDS + 1)]
    return len(set(phrases)) < len(phrases) or any(
        words[at : at + 3 * length] == words[at : at + length] * 3
        for length in range(1, PHRASE_WORDS)
        for at in range(len(words) - 3 * length + 1)
    )


def _attempt(
    model: WhisperModel, samples: np.ndarray, options: Mapping[str, Any], most_tokens: int | None
) -> dict[str, Any]:
    language = (options["language"] or "").lower().partition("-")[0]  # of en-US, en
    found, about = model.transcribe(
        samples,
        # The library raises an error for a language that it does not know.
        language=language if language in model.supported_languages else None,
        beam_size=1,
        temperature=options["temperature"],
        initial_prompt=options["prompt"] or None,
        condition_on_previous_text=False,  # a loop stays in its window
        max_new_tokens=most_tokens,
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


def load(folder: Path) -> ShortWhisper:
    return ShortWhisper(
        str(folder), device="cpu", compute_type="int8", cpu_threads=1, num_workers=1
    )


def main() -> None:
    os.nice(int(sys.argv[2]))
    model = load(Path(sys.argv[1]))
    trim_heap()
    serve(model, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
