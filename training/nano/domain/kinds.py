"""The words of the domain: a question, the facts around it, and what an intent is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Question:
    """Something a person says.

    Attributes:
        text: the words as they are spoken, with the punctuation that shapes the voice.
        intent: name of the intent that answers it.
        slots: what the intent needs of it, such as the two numbers of a sum.
    """

    text: str
    intent: str
    slots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scene:
    """What a camera sees; the digit is a word, empty for a shape."""

    colour: str
    shape: str
    digit: str
    count: str


@dataclass
class Context:
    """What a reply may depend on besides the question.

    Attributes:
        name: of the user, from the system prompt or told earlier; empty when unknown.
        last_reply: the newest reply that says something; empty before it.
        unsaid: what an interrupted reply still had to say; empty if nothing.
    """

    name: str = ""
    clock: str = ""
    day: str = ""
    date: str = ""
    scene: Scene | None = None
    last_reply: str = ""
    unsaid: str = ""


Reply = Callable[[Question, Context, Random], str]


@dataclass(frozen=True)
class Intent:
    """One thing the nano understands, with every way to ask and some `examples` to show.

    `weight` is how often it is asked, relative to others.
    """

    name: str
    questions: Sequence[Question]
    reply: Reply
    weight: float = 1.0
    examples: tuple[str, ...] = field(default=())


def fixed(name: str, asked: Sequence[str], *replies: str, weight: float = 1.0) -> Intent:
    """Return an intent whose reply is one of a few sentences, drawn at random."""
    return Intent(name, slotted(name, asked), lambda _q, _c, random: random.choice(replies), weight)


def slotted(name: str, phrases: Sequence[str], *slots: str) -> list[Question]:
    """Return the questions of phrases in which `{0}`, `{1}` … stand for slots."""
    texts = [text.format(*slots) for phrase in phrases for text in expand(phrase)]
    return [Question(text, name, slots) for text in dict.fromkeys(texts)]


def expand(phrase: str) -> list[str]:
    """Return every reading of a phrase in which `(a|b|)` stands for a, b or nothing; not nested."""
    before, bracket, rest = phrase.partition("(")
    if not bracket:
        return [tidy(phrase)]
    choices, _, after = rest.partition(")")
    return [
        reading for choice in choices.split("|") for reading in expand(f"{before}{choice}{after}")
    ]


def tidy(text: str) -> str:
    """Return a text with single spaces, and none before a mark."""
    return re.sub(r"\s+([.,?!])", r"\1", " ".join(text.split()))
