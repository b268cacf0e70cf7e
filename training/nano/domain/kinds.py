"""Questions, intents and the context of replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random


@dataclass(frozen=True)
class Question:
    """A question or statement of a user."""

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


def fixed(table: str) -> list[Intent]:
    """Return intents with fixed replies, one of which is drawn.

    The first line of each is "name: reply / reply" or "name weight: reply / reply"; its phrases
    follow in indented lines.
    """
    made = []
    for entry in re.split(r"\n(?! )", table.strip()):
        head, *phrases = entry.split("\n")
        names, _, replies = head.partition(": ")
        name, _, weight = names.partition(" ")
        reply = partial(_draw_reply, replies.split(" / "))
        made.append(Intent(name, _questions(name, phrases), reply, float(weight or 1)))
    return made


def _draw_reply(replies: Sequence[str], _q: Question, _c: Context, random: Random) -> str:
    return random.choice(replies)


def contextual(
    name: str,
    phrases: Sequence[str],
    reply: Callable[[Context], str],
    weight: float = 1.0,
    *examples: str,
) -> Intent:
    """Return an intent whose reply depends on the context only."""
    questions = _questions(name, phrases)
    return Intent(name, questions, lambda _q, context, _r: reply(context), weight, examples)


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
