"""Measures every gate, and gives the reason for those that cannot be measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from benchmarks.nano import gates
from benchmarks.nano.gates import Area, Figure, Gate
from benchmarks.nano.hearing import Asked, ask, false_starts, hears, takes_turns
from benchmarks.nano.judges import Dnsmos, WhisperJudge
from benchmarks.nano.report import Sample
from benchmarks.nano.runs import Stage
from benchmarks.nano.seeing import sees
from benchmarks.nano.socket_conversation import converse, judged, script
from benchmarks.nano.speaking import is_quick, questions_with_held_out_replies, say, sounds, speaks
from benchmarks.nano.utterances import Utterance, held_out_questions, natural, people, synthetic
from benchmarks.nano.yielding import long_questions, stop_questions, yields
from core.packages import AssetsError
from core.processors.unified import UnifiedProcessor
from training.nano.domain.kinds import Question

PACKAGES = "downloads"  # as in `training.nano.inputs`


@dataclass(frozen=True)
class Sizes:
    questions: int = 200  # in synthetic voices, and as recordings of a person
    natural: int = 200  # questions in natural voices
    noises: int = 30  # conversations of 20 s without a question
    replies: int = 200
    interruptions: int = 60
    pictures: int = 150
    timed: int = 12  # questions for the measurement of time

    def scaled(self, share: float) -> Sizes:
        """Scale the numbers, to at least six."""
        return Sizes(*(max(6, round(share * n)) for n in vars(self).values()))


@dataclass
class Measurement:
    """One run over the gates; `folder` is a cache, `samples` are for the audio sheet."""

    checkpoint: Path
    folder: Path
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 20
    samples: list[Sample] = field(default_factory=list)

    @cached_property
    def processor(self) -> UnifiedProcessor:
        return UnifiedProcessor(self.checkpoint, device="cpu", seed=self.seed, show_progress=False)

    @cached_property
    def stage(self) -> Stage:
        return Stage(self.processor)

    @cached_property
    def judge(self) -> WhisperJudge:
        return WhisperJudge(self.folder / PACKAGES)

    def figures(self, areas: Sequence[Area]) -> Iterator[Figure]:
        """Yield the figures of some areas, some of which take minutes."""
        if {Area.HEARS, Area.TAKES_TURNS}.intersection(areas):
            yield from self._hearing()
        measured: tuple[tuple[tuple[Gate, ...], Callable[[], Iterator[Figure]]], ...] = (
            ((gates.YIELDS_TO_STOP, gates.KEEPS_ON), self._yielding),
            ((gates.SEES,), self._seeing),
            ((gates.SPEAKS, gates.SOUNDS), self._speaking),
            ((gates.SPEAKING_SHARE, gates.FIRST_AUDIO), self._timing),
            ((gates.CONVERSATION,), self._end_to_end),
        )
        for concerned, measure in measured:
            if any(gate.area in areas for gate in concerned):
                try:
                    yield from measure()
                except AssetsError as error:
                    for gate in concerned:
                        yield Figure(gate, None, note=f"NOT MEASURED: {error}")

    def quick_voices(self, asked: Sequence[Question], seed: int) -> list[Utterance]:
        """Speak with synthetic voices or, if these are unavailable, with natural ones."""
        try:
            return synthetic(asked, seed)
        except AssetsError:
            return natural(asked, seed, self.folder)

    def _hearing(self) -> Iterator[Figure]:
        size, seed = self.sizes.questions, self.seed
        asked = held_out_questions(size, seed)
        outcomes: list[Asked] = []
        kinds: tuple[tuple[Gate, Callable[[], list[Utterance]]], ...] = (
            (gates.HEARS_SYNTHETIC, lambda: synthetic(asked, seed)),
            (gates.HEARS_NATURAL, lambda: natural(asked[: self.sizes.natural], seed, self.folder)),
            (gates.HEARS_PEOPLE, lambda: people(size, seed, self.folder)),
        )
        for gate, utterances in kinds:
            try:
                spoken = utterances()
            except AssetsError as error:
                yield Figure(gate, None, note=f"NOT MEASURED: {error}")
                continue
            found = ask(self.stage, spoken, seed)
            outcomes += found
            yield hears(gate, found)
        yield from takes_turns(outcomes)
        yield false_starts(self.stage, self.sizes.noises, seed)

    def _yielding(self) -> Iterator[Figure]:
        size, seed = self.sizes.interruptions, self.seed
        asked = self.quick_voices(long_questions(size, seed), seed)
        stops = self.quick_voices(stop_questions(size, seed), seed + 1)
        yield from yields(self.stage, asked, stops, seed)

    def _seeing(self) -> Iterator[Figure]:
        yield sees(self.stage, self.sizes.pictures, self.seed, self.folder)

    def _speaking(self) -> Iterator[Figure]:
        asked = questions_with_held_out_replies(self.sizes.replies, self.seed)
        replies = say(self.stage, self.judge, asked)
        self.samples += replies
        yield replace(speaks(replies), judge=WhisperJudge.NAME)
        yield replace(sounds(replies, Dnsmos(self.folder / PACKAGES)), judge=Dnsmos.NAME)

    def _timing(self) -> Iterator[Figure]:
        asked = self.quick_voices(held_out_questions(self.sizes.timed, self.seed), self.seed)
        yield from is_quick(self.stage, asked, self.seed)

    def _end_to_end(self) -> Iterator[Figure]:
        asked = script()
        try:
            spoken = natural(asked, self.seed, self.folder)
        except AssetsError:
            spoken = synthetic(asked, self.seed)
        said = converse(self.checkpoint, spoken)
        figure = replace(judged(asked, said, self.judge), judge=WhisperJudge.NAME)
        self.samples += [
            Sample(question.text, each.text, "", each.sound)
            for question, each in zip(asked, said, strict=True)
        ]
        yield figure
