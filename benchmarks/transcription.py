"""Word error rate and time of Whisper on the CPU: `python -m benchmarks.transcription`.

Transcribes held-out sentences in the natural voices of `benchmarks.nano`; the audio is cached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from faster_whisper import WhisperModel

from benchmarks.embedded_speech import with_noise
from benchmarks.nano.judges import WordErrors, word_errors
from benchmarks.nano.utterances import held_out_questions, natural
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.whisper_program import load, transcribed
from training.nano.bank import Samples

Case = tuple[str, Samples]
OPTIONS = {"language": None, "prompt": "", "temperature": 0.0}


def measure(name: str, model: WhisperModel, cases: Iterable[Case], *, shows: bool) -> str:
    """Return a line with word error rate, and processor time per second of speech."""
    errors, sound_s, began_s = WordErrors(0, 0), 0.0, time.process_time()
    for said, samples in cases:
        heard = transcribed(model, samples, OPTIONS)["text"]
        found = word_errors(said, heard)
        errors = WordErrors(errors.wrong + found.wrong, errors.words + found.words)
        sound_s += len(samples) / INPUT_SAMPLE_RATE_HZ
        if shows and found.wrong:
            typer.echo(f"  {said!r} → {heard!r}")
    spent_s = time.process_time() - began_s
    share = 100 * errors.wrong / errors.words
    return (
        f"{name}: {share:.1f} % of {errors.words} words, "
        f"{spent_s / sound_s:.2f} s of a core for each of {sound_s:.0f} s of speech"
    )


def main(
    checkpoint: Annotated[Path, typer.Option(help="Whisper in CTranslate2's layout.")] = Path(
        "data/nano/whisper"
    ),
    folder: Annotated[Path, typer.Option(help="Keeps what is fetched and made.")] = Path(
        "data/nano_gates"
    ),
    count: Annotated[int, typer.Option(min=1, help="How many sentences.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the sentences.")] = 20,
    shows: Annotated[bool, typer.Option("--show", help="Print what was misheard.")] = False,
) -> None:
    model = load(checkpoint)
    spoken = natural(held_out_questions(count, seed), seed, folder)
    cases = [(each.question.text, each.samples) for each in spoken]
    typer.echo(measure("natural voices", model, cases, shows=shows))
    noisy = [(text, with_noise(samples)) for text, samples in cases]
    typer.echo(measure("the same in noise, 10 dB", model, noisy, shows=shows))


if __name__ == "__main__":
    typer.run(main)
