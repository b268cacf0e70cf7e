"""What the cascade reaches: `python -m benchmarks.embedded DATA_DIR/cascade --report OUT.json`.

Runs the real parts behind the worker's views, without sockets. Questions are synthesized by Flite
and by the cascade's own voice; Whisper tiny.en judges words, DNSMOS quality, patterns the answers.
A figure that could not be measured is absent, and counts as not reached.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.embedded_questions import CLOSED, FILLERS, NAMES, OPEN
from benchmarks.nano.judges import Dnsmos
from core.audio import FloatArray, read_audio, resample
from core.cascade.chat import CascadeChatView
from core.cascade.duplex import CascadeDuplexView
from core.cascade.files import CascadeFiles, find
from core.cascade.language import LlamaProcess, LocalLanguage
from core.cascade.parts import Parts
from core.cascade.synthesis import HibariSynthesizer
from core.cascade.turns import words_of
from core.schemas.chat import ChatRequest
from core.schemas.common import GenerationConfig, Message, Role
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.serving.transcribers import LoopThreads, WhisperTranscriber
from core.vad import SileroVad
from core.whisper_process import WhisperProcess

NOISE_DB: Final = 10.0
ROOM_LEVEL: Final = 0.0005  # of a quiet room, of full scale
ROOM_AROUND_S: Final = 0.4
SILENCE_LEVEL: Final = 0.005  # of full scale
ECHO_GAIN: Final = 0.3
LATE_S: Final = 1.5
UNIT_LIMIT_S: Final = 60.0  # a unit may take what its reply takes: that is what is measured
REPLY_UNITS: Final = 4  # most that are waited for
STORIES: Final = 10  # replies that are interrupted, and as many that echo

SPELLINGS: Final = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty".split()
    )
} | {"x": "times", "plus": "+", "minus": "-", "colour": "color"}


@dataclass
class Report:
    """Figures, and what was said.

    Attributes:
        figures: by name; shares from 0 to 1, times in seconds.
        limits: by the same names: the limit, and whether a figure has to stay below it.
        answers: questions with what came.
    """

    figures: dict[str, float] = field(default_factory=dict)
    limits: dict[str, tuple[float, bool]] = field(default_factory=dict)
    answers: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, figure: float, limit: float, *, is_most: bool) -> None:
        """Note a figure with its gate."""
        self.figures[name] = round(figure, 4)
        self.limits[name] = limit, is_most

    def is_reached(self, name: str) -> bool:
        """Return whether a figure keeps its limit."""
        limit, is_most = self.limits[name]
        return self.figures[name] <= limit if is_most else self.figures[name] >= limit


def counted_words(text: str) -> list[str]:
    """Return words in one spelling: Whisper writes numbers in digits."""
    return [SPELLINGS.get(word, word) for word in words_of(text)]


def word_errors(wanted: str, transcript: str) -> tuple[int, int]:
    """Return how many words differ, and how many were wanted."""
    a, b = counted_words(wanted), counted_words(transcript)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1], len(a)


def by_flite(text: str, voice: str = "slt") -> FloatArray:
    """Synthesize with a recorded voice of Flite; [T] float32 at 16 kHz."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", file.name], check=True)
        return voiced(read_audio(Path(file.name)))


def by_cascade(parts: Parts, text: str) -> FloatArray:
    """Synthesize with the cascade's own voice; [T] float32 at 16 kHz."""
    made = parts.synthesizer.speak(text)
    return voiced(resample(made, OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ))


def voiced(samples: FloatArray) -> FloatArray:
    """Cut the silence off both ends, so that the end of a recording is the end of its speech."""
    loud = np.flatnonzero(np.abs(samples) > SILENCE_LEVEL)
    return samples[int(loud[0]) : int(loud[-1]) + 1]


def in_room(samples: FloatArray) -> FloatArray:
    """Put a quiet room around a recording, as a turn has it."""
    return np.concatenate([room(ROOM_AROUND_S), samples, room(ROOM_AROUND_S)])


def room(length_s: float, seed: int = 0) -> FloatArray:
    """Return the noise of a quiet room."""
    noise = np.random.default_rng(seed).normal(0, ROOM_LEVEL, int(length_s * INPUT_SAMPLE_RATE_HZ))
    return noise.astype(np.float32)


def with_noise(sound: FloatArray) -> FloatArray:
    """Return sound with white noise at `NOISE_DB`."""
    power = float(np.mean(sound**2)) / 10 ** (NOISE_DB / 10)
    noise = np.random.default_rng(len(sound)).normal(0, power**0.5, len(sound))
    return (sound + noise).astype(np.float32)


async def answer(parts: Parts, history: list[Message], question: str) -> str:
    """Ask in text, greedily; the history grows."""
    history.append(Message(role=Role.USER, content=question))
    greedy = GenerationConfig(do_sample=False, max_new_tokens=80)
    view = CascadeChatView(parts, LoopThreads())
    reply = await view.respond(ChatRequest(messages=history, generation=greedy))
    history.append(Message(role=Role.ASSISTANT, content=reply.text))
    return reply.text


async def measure_answers(parts: Parts, report: Report) -> None:
    """Closed questions by pattern, open ones to be read, and names four turns later."""
    right = 0
    for question, pattern in CLOSED:
        text = await answer(parts, [], question)
        report.answers.append((question, text))
        right += re.search(pattern, text.lower()) is not None
    report.add("closed questions right", right / len(CLOSED), 0.75, is_most=False)
    for question in OPEN:
        report.answers.append((question, await answer(parts, [], question)))
    known = 0
    for name in NAMES:
        history: list[Message] = []
        for text in (f"Hello, my name is {name}.", *FILLERS):
            await answer(parts, history, text)
        known += name in await answer(parts, history, "What is my name?")
    report.add("name known four turns later", known / len(NAMES), 0.8, is_most=False)


async def measure_recognition(parts: Parts, report: Report) -> None:
    """Word errors of the transcriber."""
    texts = [*(question for question, _ in CLOSED), *OPEN]
    voices: Sequence[Callable[[str], FloatArray]] = (
        partial(by_cascade, parts),
        by_flite,
        partial(by_flite, voice="rms"),
    )
    natural = [(text, in_room(voice(text))) for text in texts for voice in voices]
    noisy = [(text, with_noise(sound)) for text, sound in natural]
    for name, limit, spoken in (
        ("word error of recognition, natural voices", 0.03, natural),
        ("word error of recognition, 10 dB noise", 0.12, noisy),
    ):
        report.add(name, await _error_rate(parts, spoken), limit, is_most=True)


async def measure_synthesis(parts: Parts, report: Report) -> None:
    """Word errors and quality of spoken replies, and how long synthesis takes."""
    texts = [text for _, text in report.answers]
    began_s = time.perf_counter()
    sounds = [by_cascade(parts, text) for text in texts]
    spent_s = time.perf_counter() - began_s
    spoken = [(text, in_room(sound)) for text, sound in zip(texts, sounds, strict=True)]
    report.add("word error of replies", await _error_rate(parts, spoken), 0.03, is_most=True)
    with tempfile.TemporaryDirectory() as folder:
        judge = Dnsmos(Path(folder))
        quality = fmean(judge.overall(sound) for sound in sounds)
    report.add("DNSMOS of replies", quality, 3.1, is_most=False)
    length_s = sum(map(len, sounds)) / INPUT_SAMPLE_RATE_HZ
    report.add("real-time factor of synthesis", spent_s / length_s, 0.7, is_most=True)


async def _error_rate(parts: Parts, spoken: Sequence[tuple[str, FloatArray]]) -> float:
    wrong = count = 0
    for text, sound in spoken:
        found = await parts.transcriber.transcribe(sound)
        errors, words = word_errors(text, found.text)
        wrong, count = wrong + errors, count + words
    return wrong / count


@dataclass(frozen=True)
class Unit:
    """What became of a second of a call; times in seconds.

    Attributes:
        first_sound_s: from its arrival to the first of its sound, or to its end without any.
        spent_s: until its end.
    """

    speaks: bool
    first_sound_s: float
    spent_s: float


class Call:
    """A call at the pace of the units, not of the clock: what waits is computing alone."""

    def __init__(self, parts: Parts) -> None:
        self.view = CascadeDuplexView(parts, LoopThreads())
        self.view.patience_s = UNIT_LIMIT_S

    async def begin(self) -> None:
        await self.view.begin(config=DuplexConfig(force_listen_count=0), early_audio=True)

    async def units(self, sound: FloatArray) -> list[Unit]:
        """Send whole seconds; where one took less than a second, the rest of it passes first.

        So what the cascade does between two seconds has the time that it has in a call.
        """
        made = []
        for at in range(0, len(sound) - INPUT_SAMPLE_RATE_HZ + 1, INPUT_SAMPLE_RATE_HZ):
            began_s = time.perf_counter()
            early_s: list[float] = []

            async def note(
                sound: FloatArray, began_s: float = began_s, early_s: list[float] = early_s
            ) -> None:
                early_s.append(time.perf_counter() - began_s)

            unit = await self.view.unit(
                sound[at : at + INPUT_SAMPLE_RATE_HZ],
                (),
                force_listen=False,
                force_speak=False,
                due_s=None,
                on_sound=note,
            )
            assert unit is not None
            spent_s = time.perf_counter() - began_s
            made.append(Unit(not unit.is_listen, early_s[0] if early_s else spent_s, spent_s))
            await asyncio.sleep(1 - spent_s)
        return made

    async def end(self) -> None:
        """End what is being said."""
        self.view.set_break()
        await self.units(room(1))


async def measure_turns(parts: Parts, report: Report) -> None:
    """When the cascade begins to speak after spoken questions, and in none."""
    early = late = 0
    waits: list[float] = []
    questions = [*(question for question, _ in CLOSED), *OPEN]
    for number, question in enumerate(questions):
        call = Call(parts)
        await call.begin()
        lead_s = 1 + number / len(questions)  # so that questions end anywhere in a second
        sound = np.concatenate([room(lead_s), by_flite(question)])
        ended_s = len(sound) / INPUT_SAMPLE_RATE_HZ
        units = await call.units(np.concatenate([sound, room(REPLY_UNITS)]))
        first = next((index for index, unit in enumerate(units) if unit.speaks), None)
        await call.end()
        if first is None:
            late += 1
            continue
        early += first + 1 < ended_s
        late += first + 1 - ended_s > LATE_S
        waits.append(first + 1 - ended_s + units[first].first_sound_s)
    report.add("turns taken early", early / len(questions), 0.03, is_most=True)
    report.add("turns taken late", late / len(questions), 0.05, is_most=True)
    report.add("first sound, median s", median(waits), 1.0, is_most=True)
    report.add("first sound, 90 % s", quantiles(waits, n=10)[-1], 1.6, is_most=True)
    call = Call(parts)
    await call.begin()
    noises = await call.units(np.concatenate([room(20), with_noise(room(20) * 10)]))
    begun = sum(unit.speaks for unit in noises)
    report.add("units begun in noise", begun / len(noises), 0.005, is_most=True)


async def measure_interruption(parts: Parts, report: Report) -> None:
    """Whether "stop" ends a reply, and its own echo none; how long speaking units take."""
    stopped = ignored = 0
    begun = {True: 0, False: 0}
    spent_s: list[float] = []
    for number in range(2 * STORIES):
        is_stop = number % 2 == 0
        call = Call(parts)
        await call.begin()
        asked = np.concatenate([room(1), by_flite(OPEN[number]), room(2)])
        units = await call.units(asked)
        if not units[-1].speaks:
            continue
        begun[is_stop] += 1
        spent_s += [unit.spent_s for unit in units if unit.speaks][1:]
        said = " ".join(call.view.recently_said[-6:])
        spoken = by_flite("Stop.") if is_stop else by_cascade(parts, said) * ECHO_GAIN
        length = -(-len(spoken) // INPUT_SAMPLE_RATE_HZ) * INPUT_SAMPLE_RATE_HZ
        padded = np.pad(spoken, (0, length - len(spoken)))
        answered = await call.units(np.concatenate([padded, room(1)]))
        if is_stop:
            stopped += not answered[-1].speaks
        else:
            ignored += answered[len(padded) // INPUT_SAMPLE_RATE_HZ - 1].speaks
        await call.end()
    for name, count, right, limit in (
        ("stop obeyed", begun[True], stopped, 0.95),
        ("own echo ignored", begun[False], ignored, 0.99),
    ):
        if count:
            report.add(name, right / count, limit, is_most=False)
    if spent_s:
        report.add("real-time factor while speaking", fmean(spent_s), 0.7, is_most=True)


STAGES: Final = {
    "answers": measure_answers,
    "recognition": measure_recognition,
    "synthesis": measure_synthesis,
    "turns": measure_turns,
    "interruption": measure_interruption,
}


async def measure(files: CascadeFiles, stages: Sequence[str]) -> Report:
    """Measure everything that these files allow on this machine."""
    report, process = Report(), LlamaProcess(files.language_model)
    transcriber = WhisperTranscriber(WhisperProcess(files.whisper, niceness=0))
    language = LocalLanguage(process, "Qwen2.5-Coder 0.5B")
    parts = Parts(transcriber, language, HibariSynthesizer(files.voice), SileroVad())
    try:
        for name in stages:
            await STAGES[name](parts, report)
            Console(stderr=True).print(report.figures)
    finally:
        language.close()
        transcriber.close()
    used = [
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    report.add("memory of the largest two processes, MB", sum(used), 1_500, is_most=True)
    return report


def main(
    folder: Annotated[Path, typer.Argument(help="Where the cascade's files are.")],
    report: Annotated[Path | None, typer.Option(help="Where the figures go, as JSON.")] = None,
    gate: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(STAGES)}.")] = None,
) -> None:
    """Measure the cascade and print its gates."""
    files = find(folder)
    if files is None:
        typer.echo(f"{folder} is not complete: python -m core.cascade.assets {folder}", err=True)
        raise typer.Exit(1)
    made = asyncio.run(measure(files, gate or list(STAGES)))
    table = Table("gate", "limit", "measured", "")
    for name, figure in made.figures.items():
        limit, is_most = made.limits[name]
        sign = "≤" if is_most else "≥"
        table.add_row(
            name, f"{sign} {limit:g}", f"{figure:g}", "reached" if made.is_reached(name) else ""
        )
    Console().print(table)
    if report is not None:
        written = {"figures": made.figures, "limits": made.limits, "answers": made.answers}
        report.write_text(json.dumps(written, indent=1, ensure_ascii=False), encoding="utf8")


if __name__ == "__main__":
    typer.run(main)
