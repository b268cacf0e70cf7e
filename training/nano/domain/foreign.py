"""Everyday sentences outside the domain, to be declined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from random import Random

from training.nano.domain import unknown
from training.nano.domain.catalogue import intents, reply_texts, words_of
from training.nano.domain.kinds import Question

FEWEST_WORDS = 4
RUN = 3  # consecutive words in common with a question that make a sentence too similar


def foreign(texts: Iterable[str]) -> list[str]:
    """Return the sentences that are neither replies nor similar to a question of the domain."""
    ours = _own_runs()
    replies = set(reply_texts())
    return [
        text
        for text in texts
        if text not in replies
        and len(words_of(text)) >= FEWEST_WORDS
        and ours.isdisjoint(_runs(text))
    ]


def endless_foreign(texts: Iterable[str], random: Random) -> Iterator[Question]:
    """Yield random foreign sentences; raises `ValueError` if none of the texts is foreign."""
    chosen = foreign(texts)
    if not chosen:
        raise ValueError("none of the sentences is foreign to the domain")
    while True:
        yield Question(random.choice(chosen), unknown.INTENT)


@cache
def _own_runs() -> frozenset[tuple[str, ...]]:
    return frozenset(
        run
        for intent in intents().values()
        if intent.name != unknown.INTENT
        for question in intent.questions
        for run in _runs(question.text)
    )


def _runs(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}
