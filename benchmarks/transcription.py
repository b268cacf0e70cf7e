"""Word error rate and time of Whisper on the CPU: `python -m benchmarks.transcription`.

Transcribes held-out sentences in the natural voices of `benchmarks.nano`; the audio is cached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from faster_whisper import WhisperModel

from benchmarks.nano.judges import WordErrors, word_errors
from benchmarks.nano.utterances import held_out_questions, natural
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.whisper_program import load, transcribed
from training.nano.bank import Samples

Case = tuple[str, Samples]
OPTIONS = {"language": None, "prompt": "", "temperature": 0.0}
DB_PER_DECADE = 20


def natural_cases(count: int, seed: int, folder: Path) -> list[Case]:
    kept = folder / f"natural-{seed}-{count}.npz"
    if not kept.is_file():
        spoken = natural(held_out_questions(count, seed), seed, folder)
        # Any: numpy types the options of this function, which share its keywords, as flags.
        sounds: dict[str, Any] = {
            f"{n:04d} {case.question.text}": case.samples for n, case in enumerate(spoken)
        }
        np.savez_compressed(kept, **sounds)
    with np.load(kept) as stored:
        return [(name.partition(" ")[2], stored[name]) for name in stored.files]


def noisy(cases: Iterable[Case], signal_to_noise_db: float, seed: int) -> list[Case]:
    """Return the cases with white noise."""
    generator = np.random.default_rng(seed)

    def with_noise(samples: Samples) -> Samples:
        level = np.sqrt(np.mean(samples**2)) * 10 ** (-signal_to_noise_db / DB_PER_DECADE)
        return (samples + level * generator.standard_normal(len(samples))).astype(np.float32)

    return [(text, with_noise(samples)) for text, samples in cases]


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
    model, cases = load(checkpoint), natural_cases(count, seed, folder)
    typer.echo(measure("natural voices", model, cases, shows=shows))
    typer.echo(measure("the same in noise, 10 dB", model, noisy(cases, 10.0, seed), shows=shows))


if __name__ == "__main__":
    typer.run(main)
