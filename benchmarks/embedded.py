"""What the cascade reaches: `python -m benchmarks.embedded DATA_DIR/cascade --report OUT.json`.

Runs the real parts behind the worker's views, without sockets. Questions are spoken by eSpeak NG
and by the cascade's own voice; words are judged by Whisper tiny.en, answers by patterns. A figure
that could not be measured is absent, and counts as not reached.
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
from statistics import median, quantiles
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from core.audio import FloatArray, read_audio, resample
from core.cascade.chat import CascadeChatView
from core.cascade.duplex import CascadeDuplexView
from core.cascade.files import CascadeFiles, find
from core.cascade.language import LlamaProcess, LocalLanguage
from core.cascade.parts import Parts
from core.cascade.turns import words_of
from core.cascade.voice import HibariVoice
from core.schemas.chat import ChatRequest
from core.schemas.common import GenerationConfig, Message, Role
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.serving.transcribers import LoopThreads, WhisperTranscriber
from core.vad import SileroVad
from core.whisper_process import WhisperProcess

NOISE_DB: Final = 10.0
ROOM_LEVEL: Final = 0.0005  # of a quiet room, of full scale
LATE_S: Final = 1.5
UNIT_LIMIT_S: Final = 60.0  # a unit may take what its reply takes: that is what is measured
REPLY_UNITS: Final = 4  # most that are waited for

# Question and the pattern of a right answer.
CLOSED: Final = (
    ("What is the capital of Australia?", r"canberra"),
    ("What is the capital of France?", r"paris"),
    ("What is the capital of Japan?", r"tokyo"),
    ("What is the capital of Italy?", r"rome"),
    ("What is the capital of Canada?", r"ottawa"),
    ("Who wrote Romeo and Juliet?", r"shakespeare"),
    ("Who painted the Mona Lisa?", r"vinci|leonardo"),
    ("What is seventeen times six?", r"\b102\b|hundred (and )?two"),
    ("What is eight plus five?", r"\b13\b|thirteen"),
    ("What is twenty minus seven?", r"\b13\b|thirteen"),
    ("How many days are there in a leap year?", r"\b366\b"),
    ("How many minutes are there in an hour?", r"\b60\b|sixty"),
    ("How many legs does a spider have?", r"\b8\b|eight"),
    ("What is the opposite of hot?", r"cold"),
    ("What is the opposite of early?", r"late"),
    ("What color do you get from blue and yellow?", r"green"),
    ("Which planet is called the red planet?", r"mars"),
    ("What is the largest ocean?", r"pacific"),
    ("How do you say good morning in French?", r"bonjour"),
    ("Which animal says meow?", r"cat"),
)
OPEN: Final = (
    "How can I fall asleep more easily?",
    "What could I cook for dinner with eggs and spinach?",
    "I have a job interview tomorrow, any tips?",
    "What do you think about cats?",
    "Why is the sky blue?",
    "Can you tell me a short story about a dragon?",
    "How do I make a good cup of tea?",
    "What should I pack for a weekend at the sea?",
    "Why do people dream?",
    "I feel a bit lonely today.",
    "How does a bicycle stay upright?",
    "What is a good name for a small brown dog?",
    "Explain to a child what rain is.",
    "How can I learn to play the guitar?",
    "What is the difference between a fruit and a vegetable?",
    "Tell me a joke.",
    "What would you do with a million dollars?",
    "How do I say sorry to a friend?",
    "Why should I drink water?",
    "What makes a good book?",
)
NAMES: Final = ("Anna", "Peter", "Maria", "David")
SPELLINGS: Final = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty".split()
    )
} | {"x": "times", "plus": "+", "minus": "-", "colour": "color"}
FILLERS: Final = ("What could I do this weekend?", "Do you like music?", "What is two plus three?")


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


def word_errors(wanted: str, heard: str) -> tuple[int, int]:
    """Return how many words differ, and how many were wanted."""
    a, b = counted_words(wanted), counted_words(heard)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1], len(a)


def by_espeak(text: str) -> FloatArray:
    """Speak with eSpeak NG; [T] float32 at 16 kHz."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["espeak-ng", "-s", "150", "-v", "en-us", "-w", file.name, text], check=True)
        return read_audio(Path(file.name))


def by_voice(parts: Parts, text: str) -> FloatArray:
    """Speak with the cascade's own voice; [T] float32 at 16 kHz."""
    return resample(parts.voice.speak(text), OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ)


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


async def measure_ears(parts: Parts, report: Report) -> None:
    """Word errors of what is heard."""
    texts = [question for question, _ in CLOSED]
    kinds: Sequence[tuple[str, float, Callable[[str], FloatArray]]] = (
        ("ears: natural voice", 0.03, partial(by_voice, parts)),
        ("ears: 10 dB noise", 0.12, lambda text: with_noise(by_voice(parts, text))),
        ("ears: eSpeak NG", 0.12, by_espeak),
    )
    for name, limit, speak in kinds:
        report.add(name, await _error_rate(parts, texts, speak), limit, is_most=True)


async def measure_voice(parts: Parts, report: Report) -> None:
    """Word errors of spoken replies, and how long speaking takes."""
    texts = [text for _, text in report.answers]
    report.add(
        "word error of replies",
        await _error_rate(parts, texts, partial(by_voice, parts)),
        0.03,
        is_most=True,
    )
    began_s = time.perf_counter()
    sounds = [parts.voice.speak(text) for text in texts]
    length_s = sum(map(len, sounds)) / OUTPUT_SAMPLE_RATE_HZ
    report.add(
        "real-time factor of the voice",
        (time.perf_counter() - began_s) / length_s,
        0.7,
        is_most=True,
    )


async def _error_rate(
    parts: Parts, texts: Sequence[str], speak: Callable[[str], FloatArray]
) -> float:
    wrong = count = 0
    for text in texts:
        found = await parts.ears.transcribe(speak(text))
        errors, words = word_errors(text, found.text)
        wrong, count = wrong + errors, count + words
    return wrong / count


class Call:
    """A call at the pace of the units, not of the clock: what waits is computing alone."""

    def __init__(self, parts: Parts) -> None:
        self.view = CascadeDuplexView(parts, LoopThreads())
        self.view.patience_s = UNIT_LIMIT_S

    async def begin(self) -> None:
        """Begin the conversation."""
        await self.view.begin(config=DuplexConfig(force_listen_count=0))

    async def units(self, sound: FloatArray) -> list[tuple[bool, float]]:
        """Hear whole seconds; return for each whether it spoke, and what it took in seconds."""
        made = []
        for at in range(0, len(sound) - INPUT_SAMPLE_RATE_HZ + 1, INPUT_SAMPLE_RATE_HZ):
            began_s = time.perf_counter()
            unit = await self.view.unit(
                sound[at : at + INPUT_SAMPLE_RATE_HZ],
                (),
                force_listen=False,
                force_speak=False,
                due_s=None,
                on_sound=_drop,
            )
            assert unit is not None
            made.append((not unit.is_listen, time.perf_counter() - began_s))
        return made

    async def end(self) -> None:
        """End what is being said."""
        self.view.set_break()
        await self.units(room(1))


async def measure_turns(parts: Parts, report: Report) -> None:
    """When the cascade begins to speak after spoken questions, and in none."""
    early = late = 0
    waits: list[float] = []
    for number, (question, _) in enumerate(CLOSED):
        call = Call(parts)
        await call.begin()
        lead_s = 1 + 0.13 * (number % 7)  # so that questions end anywhere in a second
        sound = np.concatenate([room(lead_s), by_espeak(question)])
        ended_s = len(sound) / INPUT_SAMPLE_RATE_HZ
        units = await call.units(np.concatenate([sound, room(REPLY_UNITS)]))
        first = next((index for index, (speaks, _) in enumerate(units) if speaks), None)
        early += first is not None and first + 1 < ended_s
        if first is None:
            late += 1
            continue
        wait_s = first + 1 - ended_s + units[first][1]
        late += first + 1 - ended_s > LATE_S
        waits.append(wait_s)
        await call.end()
    report.add("turns taken early", early / len(CLOSED), 0.03, is_most=True)
    report.add("turns taken late", late / len(CLOSED), 0.05, is_most=True)
    report.add("first sound, median s", median(waits), 1.0, is_most=True)
    report.add("first sound, 90 % s", quantiles(waits, n=10)[-1], 1.6, is_most=True)
    call = Call(parts)
    await call.begin()
    noises = await call.units(np.concatenate([room(20), with_noise(room(20) * 10)]))
    begun = sum(speaks for speaks, _ in noises)
    report.add("units begun in noise", begun / len(noises), 0.005, is_most=True)


async def measure_yielding(parts: Parts, report: Report) -> None:
    """Whether "stop" ends a reply, and its own echo none."""
    stopped = ignored = begun = 0
    for _ in range(5):
        for is_stop in (True, False):
            call = Call(parts)
            await call.begin()
            asked = np.concatenate([room(1), by_espeak("Tell me a story about a dragon."), room(2)])
            units = await call.units(asked)
            if not units[-1][0]:
                continue
            begun += is_stop
            said = " ".join(call.view.recently_said[-6:])
            spoken = by_espeak("Stop.") if is_stop else by_voice(parts, said) * 0.3
            length = -(-len(spoken) // INPUT_SAMPLE_RATE_HZ) * INPUT_SAMPLE_RATE_HZ
            padded = np.pad(spoken, (0, length - len(spoken)))
            answered = await call.units(np.concatenate([padded, room(1)]))
            stopped += is_stop and not answered[-1][0]
            ignored += not is_stop and answered[len(padded) // INPUT_SAMPLE_RATE_HZ - 1][0]
            await call.end()
    if begun:
        report.add("stop obeyed", stopped / begun, 0.95, is_most=False)
        report.add("own echo ignored", ignored / begun, 0.99, is_most=False)


STAGES: Final = (
    measure_answers,
    measure_ears,
    measure_voice,
    measure_turns,
    measure_yielding,
)


async def measure(files: CascadeFiles) -> Report:
    """Measure everything that these files allow on this machine."""
    report, process = Report(), LlamaProcess(files.language_model)
    ears = WhisperTranscriber(WhisperProcess(files.whisper, niceness=0))
    language = LocalLanguage(process, "Qwen2.5-Coder 0.5B")
    parts = Parts(ears, language, HibariVoice(files.voice), SileroVad())
    try:
        for stage in (
            measure_answers,
            measure_ears,
            measure_voice,
            measure_turns,
            measure_yielding,
        ):
            await stage(parts, report)
            Console(stderr=True).print(report.figures)
    finally:
        language.close()
        ears.close()
    used = [
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    report.add("memory of the largest two processes, MB", sum(used), 1_500, is_most=True)
    return report


async def _drop(sound: FloatArray) -> None:
    """Nobody listens."""


def main(
    folder: Annotated[Path, typer.Argument(help="Where the cascade's files are.")],
    report: Annotated[Path | None, typer.Option(help="Where the figures go, as JSON.")] = None,
) -> None:
    """Measure the cascade and print its gates."""
    files = find(folder)
    if files is None:
        typer.echo(f"{folder} is not complete: python -m core.cascade.assets {folder}", err=True)
        raise typer.Exit(1)
    made = asyncio.run(measure(files))
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
