"""Questions, intents and the context of replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random


@dataclass(frozen=True)
class Question:
    text: str  # the spoken words, with punctuation for the voice
    intent: str  # name of its intent
    slots: tuple[str, ...] = ()  # its arguments, such as the two numbers of a sum


@dataclass(frozen=True)
class Scene:
    """Scene of a camera; the digit is a word, empty for a shape."""

    colour: str
    shape: str
    digit: str
    count: str


@dataclass
class Context:
    """State of a conversation on which replies depend; unknown values are empty."""

    name: str = ""  # of the user
    clock: str = ""
    day: str = ""
    date: str = ""
    scene: Scene | None = None
    last_reply: str = ""  # the latest reply
    unsaid: str = ""  # rest of an interrupted reply


Reply = Callable[[Question, Context, Random], str]


@dataclass(frozen=True)
class Intent:
    """One intent with all its questions; `weight` is its relative frequency."""

    name: str
    questions: Sequence[Question]
    reply: Reply
    weight: float = 1.0
    examples: tuple[str, ...] = ()


def entries(table: str) -> Iterator[tuple[str, float, list[str], list[str]]]:
    """Yield name, weight, texts and phrases of each intent of a table.

    Its first line is "name: text / text" or "name weight: text / text"; its phrases follow in
    indented lines.
    """
    for entry in re.split(r"\n(?! )", table.strip()):
        head, *phrases = entry.split("\n")
        names, _, texts = head.partition(":")
        name, _, weight = names.partition(" ")
        yield name, float(weight or 1), texts.strip().split(" / ") if texts else [], phrases


def fixed(table: str) -> list[Intent]:
    """Return intents, of whose fixed replies, the texts of the table, one is drawn."""
    return [
        Intent(name, _questions(name, phrases), partial(_draw_reply, replies), weight)
        for name, weight, replies, phrases in entries(table)
    ]


def contextual(table: str, **replies: Callable[[Context], str]) -> list[Intent]:
    """Return intents whose replies depend on the context only; the texts are examples."""
    return [
        Intent(
            name,
            _questions(name, phrases),
            partial(_reply_in_context, replies[name]),
            weight,
            tuple(examples),
        )
        for name, weight, examples, phrases in entries(table)
    ]


def _draw_reply(replies: Sequence[str], _q: Question, _c: Context, random: Random) -> str:
    return random.choice(replies)


def _reply_in_context(
    reply: Callable[[Context], str], _q: Question, context: Context, _r: Random
) -> str:
    return reply(context)


def slotted(
    name: str,
    phrases: Sequence[str],
    slots: Iterable[tuple[str, ...]],
    reply: Callable[..., str],
    weight: float = 1.0,
    *examples: str,
) -> Intent:
    """Return an intent with each of `slots` in the places `{0}`, `{1}` … of the phrases.

    `reply` computes the reply from the slots of a question.
    """
    questions = [question for each in slots for question in _questions(name, phrases, *each)]

    def answer(question: Question, _context: Context, _random: Random) -> str:
        return capitalised(reply(*question.slots))

    return Intent(name, questions, answer, weight, examples)


def _questions(name: str, phrases: Sequence[str], *slots: str) -> list[Question]:
    texts = [text.format(*slots) for phrase in phrases for text in expand(phrase)]
    return [Question(text, name, slots) for text in dict.fromkeys(texts)]


def expand(phrase: str) -> list[str]:
    """Expand the alternatives `(a|b|)` of a phrase; they cannot be nested."""
    before, bracket, rest = phrase.partition("(")
    if not bracket:
        return [tidy(phrase)]
    choices, _, after = rest.partition(")")
    return [
        reading for choice in choices.split("|") for reading in expand(f"{before}{choice}{after}")
    ]


def tidy(text: str) -> str:
    """Normalise spaces, with none before punctuation."""
    return re.sub(r"\s+([.,?!])", r"\1", " ".join(text.split()))


def capitalised(text: str) -> str:
    """Return a text with its first letter in upper case and the others unchanged."""
    return text[:1].upper() + text[1:]
