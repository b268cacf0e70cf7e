"""Gates of the cascade: `python -m benchmarks.embedded DATA_DIR/cascade --report OUT.json`."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import httpx
import typer
from rich.console import Console

from benchmarks.embedded_calls import measure_interruption, measure_turns
from benchmarks.embedded_questions import (
    CLOSED,
    FACTS,
    FILLERS,
    GOOD,
    OPEN,
    SPOKEN,
    SPOKEN_CLOSED,
    WRITTEN,
    Report,
)
from benchmarks.embedded_speech import by_cascade, in_room, recorded, spoken, with_noise
from benchmarks.launched import ASK_S, LaunchedSystem, Plan, wait_until
from benchmarks.nano.judges import Dnsmos, word_errors
from benchmarks.processes import family, resident_mb
from core.audio import FloatArray, encode_wire_audio
from core.cascade.language import LocalLanguageModel
from core.cascade.parts import Parts
from core.cascade.synthesis import HibariSynthesizer
from core.cascade.turn_based import CascadeChatView
from core.schemas.chat import ChatRequest
from core.schemas.common import (
    AudioContent,
    GenerationConfig,
    Message,
    Role,
    TextContent,
    TTSConfig,
)
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.worker import ModelKind
from core.serving.transcribers import LoopThreads, WhisperTranscriber
from core.vad import SileroVad
from settings.embedded import CascadeFiles, FetchProgress, find_cascade, read_progress

VOICES: Final = Path("data/nano_gates")  # shared with `benchmarks.nano`
DOWNLOADS: Final = "downloads"  # of that folder
PEOPLE: Final = 100  # recordings
QUESTIONS: Final = 3  # after them no process grows any more
ANSWER_LIMIT_S: Final = 120.0
QUESTION: Final = TextContent(text="What is your name?")
LINE_BYTES_PER_S: Final = 50e6 / 8  # of the limits: 50 Mbit/s
NANO_BYTES: Final = 70_000_000
FETCH_LIMIT_S: Final = 1_800.0


async def answer(parts: Parts, history: list[Message], question: str) -> str:
    """Ask in text, with greedy sampling; both lines are appended to the history."""
    history.append(Message(role=Role.USER, content=question))
    greedy = GenerationConfig(do_sample=False, max_new_tokens=80)
    view = CascadeChatView(parts, LoopThreads())
    reply = await view.respond(ChatRequest(messages=history, generation=greedy))
    history.append(Message(role=Role.ASSISTANT, content=reply.text))
    return reply.text


async def measure_answers(parts: Parts, report: Report, folder: Path) -> None:
    """Closed questions by pattern, open ones by points, names and cities four turns later."""
    right = 0
    for question, pattern in CLOSED:
        text = await answer(parts, [], question)
        report.answers.append((question, text))
        right += re.search(pattern, text.lower()) is not None
    report.add("closed questions right", right / len(CLOSED), 0.75, len(CLOSED), is_most=False)
    for open_question in (*SPOKEN, *WRITTEN):
        text = await answer(parts, [], open_question.text)
        report.answers.append((open_question.text, text))
        report.points[open_question.text] = open_question.points(text)
    count = len(report.points)
    share = sum(report.points.values()) / (GOOD * count)
    report.add("points of open questions", share, 0.65, count, is_most=False)
    known = 0
    for told, question, word in FACTS:
        history: list[Message] = []
        for text in (told, *FILLERS):
            await answer(parts, history, text)
        known += word in await answer(parts, history, question)
    share = known / len(FACTS)
    report.add("name or city known four turns later", share, 0.8, len(FACTS), is_most=False)


async def measure_recognition(parts: Parts, report: Report, folder: Path) -> None:
    texts = [*SPOKEN_CLOSED, *OPEN]
    texts += [*texts[1:], texts[0]]  # once more, each in the next voice
    sounds = [in_room(samples) for samples in spoken(texts, folder)]
    for name, limit, heard in (
        ("word error of recognition, natural voices", 0.03, sounds),
        ("word error of recognition, 10 dB noise", 0.12, [with_noise(each) for each in sounds]),
    ):
        rate = await _error_rate(parts, texts, heard)
        report.add(name, rate, limit, len(texts), is_most=True)


async def measure_people(parts: Parts, report: Report, folder: Path) -> None:
    asked = recorded(PEOPLE, 0, folder)
    texts, sounds = [text for text, _ in asked], [in_room(sound) for _, sound in asked]
    rate = await _error_rate(parts, texts, sounds)
    report.add("word error of recognition, a person", rate, 0.06, PEOPLE, is_most=True)


async def measure_synthesis(parts: Parts, report: Report, folder: Path) -> None:
    if not report.answers:
        await measure_answers(parts, report, folder)
    texts = [text for _, text in report.answers]
    count = len(texts)
    began_s = time.perf_counter()
    sounds = [by_cascade(parts.synthesizer, text) for text in texts]
    spent_s = time.perf_counter() - began_s
    rate = await _error_rate(parts, texts, [in_room(sound) for sound in sounds])
    report.add("word error of replies", rate, 0.03, count, is_most=True)
    judge = Dnsmos(folder / DOWNLOADS)
    quality = fmean(judge.overall(sound) for sound in sounds)
    report.add("DNSMOS of replies", quality, 3.1, count, is_most=False)
    length_s = sum(map(len, sounds)) / INPUT_SAMPLE_RATE_HZ
    report.add("real-time factor of synthesis", spent_s / length_s, 0.7, count, is_most=True)


async def _error_rate(parts: Parts, texts: Sequence[str], sounds: Sequence[FloatArray]) -> float:
    wrong = count = 0
    for text, sound in zip(texts, sounds, strict=True):
        found = await parts.transcriber.transcribe(sound)
        errors = word_errors(text, found.text)
        wrong, count = wrong + errors.wrong, count + errors.words
    return wrong / count


Stage = Callable[[Parts, Report, Path], Awaitable[None]]
"""Measures some gates; the folder contains the natural voices."""

STAGES: Final[dict[str, Stage]] = {
    "answers": measure_answers,
    "recognition": measure_recognition,
    "people": measure_people,
    "synthesis": measure_synthesis,
    "turns": measure_turns,
    "interruption": measure_interruption,
}
MEMORY: Final = "memory"
START: Final = "start"  # only where it is named: it downloads everything once more


async def measure(files: CascadeFiles, voices: Path, stages: Sequence[str], report: Report) -> None:
    transcriber = WhisperTranscriber(files.whisper, niceness=0)
    language = LocalLanguageModel(files.language_model, "Qwen2.5-Coder 0.5B")
    parts = Parts(transcriber, language, HibariSynthesizer(files.voice), SileroVad())
    try:
        for name in stages:
            await STAGES[name](parts, report, voices)
            Console(stderr=True).print(report.figures)
    finally:
        language.close()
        transcriber.close()


def measure_memory(questions: list[FloatArray], folder: Path, report: Report) -> None:
    """Ask a real worker spoken questions, then add up its memory; `folder` has the cascade."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        data.mkdir()
        for name in ("cascade", "nano"):  # what is missing is downloaded
            if (found := folder.resolve().with_name(name)).is_dir():
                (data / name).symlink_to(found)
        plan = Plan(backend="real", config={"model": {"embedded": "cascade"}})
        with LaunchedSystem(Path(place), plan) as system:
            for question in questions[:QUESTIONS]:
                audio = AudioContent(data=encode_wire_audio(in_room(question)))
                ask(f"{system.url}/api/chat", audio)
            used = resident_mb(family(system.pid("worker_0")))
    report.add("memory of the worker, MB", used, 1_500, QUESTIONS, is_most=True)


def ask(url: str, question: TextContent | AudioContent) -> None:
    message = Message(role=Role.USER, content=[question])
    body = ChatRequest(messages=[message], tts=TTSConfig(enabled=True)).model_dump(mode="json")
    answer = httpx.post(url, json=body, trust_env=False, timeout=ANSWER_LIMIT_S)
    answer.raise_for_status()
    assert answer.json()["audio_data"], "it speaks"


def measure_start(report: Report) -> None:
    """Start with an empty data folder, and ask nano and then the cascade.

    Packages are installed already; the files come from where an ordinary start fetches them. What
    50 Mbit/s would take beyond this network is added to the times measured; of nano's files, whose
    transfer is not seen here, all of it.
    """
    with tempfile.TemporaryDirectory() as place:
        plan = Plan(backend="real", config={"model": {"embedded": "auto"}})
        system = LaunchedSystem(Path(place), plan)
        began_s = time.monotonic()
        with system:
            ask(f"{system.url}/api/chat", QUESTION)
            nano_s = time.monotonic() - began_s
            slower_s = _wait_for_cascade(system)
            ask(f"{system.url}/api/chat", QUESTION)
            cascade_s = time.monotonic() - began_s
    line_s = NANO_BYTES / LINE_BYTES_PER_S
    nano_s, cascade_s = nano_s + line_s, cascade_s + line_s + slower_s
    report.add("first word of nano, s", nano_s, 60, 1, is_most=True)
    report.add("first word of the cascade, s", cascade_s, 180, 1, is_most=True)


def _wait_for_cascade(system: LaunchedSystem) -> float:
    """Wait for the cascade; return how much longer its files take at 50 Mbit/s, in seconds."""
    began_s = time.monotonic()
    progress: FetchProgress | None = None

    def is_complete() -> bool:
        nonlocal progress
        progress = read_progress(system.data)
        return progress is not None and progress.state != "fetching"

    wait_until("the files are there", is_complete, FETCH_LIMIT_S, ASK_S)
    assert progress is not None
    if progress.problem:
        raise RuntimeError(progress.problem)
    fetched_s = time.monotonic() - began_s
    wait_until(
        "the cascade is loaded",
        lambda: system.worker_health(0)["model"]["kind"] == ModelKind.CASCADE,
        FETCH_LIMIT_S,
        ASK_S,
    )
    return max(0.0, progress.total_bytes / LINE_BYTES_PER_S - fetched_s)


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the cascade's files.")],
    report: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(help=f"Of {', '.join([*STAGES, MEMORY, START])}; repeatable."),
    ] = None,
    voices: Annotated[Path, typer.Option(help="Folder of the natural voices.")] = VOICES,
) -> None:
    """Measure the cascade and print its gates."""
    files = find_cascade(folder)
    if files is None:
        typer.echo(f"{folder} is not complete: python -m core.cascade.assets {folder}", err=True)
        raise typer.Exit(1)
    wanted = gate or [*STAGES, MEMORY]
    if unknown := set(wanted).difference([*STAGES, MEMORY, START]):
        raise typer.BadParameter(f"there is no gate {', '.join(sorted(unknown))}")
    made = Report()
    stages = [name for name in wanted if name in STAGES]
    if stages:
        asyncio.run(measure(files, voices, stages, made))
    if MEMORY in wanted:
        measure_memory(spoken(OPEN, voices), folder, made)
    if START in wanted:
        measure_start(made)
    Console().print(made.table())
    if report is not None:
        made.write(report)


if __name__ == "__main__":
    typer.run(main)
