"""The whole domain: intents, questions, replies, and the held-out questions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from random import Random

from training.nano.domain import camera, control, facts, knowledge, social, telling, unknown
from training.nano.domain.kinds import Context, Intent, Question

HELD_OUT_IN = 20
"""One of so many questions is held out."""


@cache
def intents() -> dict[str, Intent]:
    """Return every intent by name, last that of unknown questions."""
    known = (
        *social.INTENTS,
        *facts.INTENTS,
        *knowledge.INTENTS,
        *telling.INTENTS,
        *control.INTENTS,
        *camera.INTENTS,
    )
    random = Random(0)
    declined = [unknown.draw_unknown(random) for _ in range(6000)]
    other = Intent(
        unknown.INTENT,
        list({question.text: question for question in declined}.values()),
        lambda _q, _c, _r: unknown.SORRY,
        14.0,
    )
    return {intent.name: intent for intent in (*known, other)}


def answer(question: Question, context: Context, random: Random) -> str:
    """Return the reply to a question; a stated name is stored in the context."""
    if question.intent == "my_name":
        context.name = question.slots[0]
    return intents()[question.intent].reply(question, context, random)


def is_held_out(text: str) -> bool:
    """Return whether a question is held out, a function of its words."""
    digest = hashlib.sha256(" ".join(words_of(text)).encode()).digest()
    return digest[0] % HELD_OUT_IN == 0


def words_of(text: str) -> list[str]:
    """Return the lower-case words of a text without punctuation."""
    letters = "".join(c if c.isalnum() or c in "' " else " " for c in text.lower())
    return letters.split()


def questions(*, held_out: bool) -> list[Question]:
    return [
        question
        for intent in intents().values()
        for question in intent.questions
        if is_held_out(question.text) == held_out
    ]


@cache
def learned_by_slots(intent: str) -> list[list[Question]]:
    """Return the training questions of an intent, grouped by slots."""
    return by_slots(q for q in intents()[intent].questions if not is_held_out(q.text))


def by_slots(asked: Iterable[Question]) -> list[list[Question]]:
    """Group questions by slots."""
    groups: dict[tuple[str, ...], list[Question]] = {}
    for question in asked:
        groups.setdefault(question.slots, []).append(question)
    return list(groups.values())


def reply_texts() -> list[str]:
    return sorted(set(_replies()))


def _replies() -> Iterator[str]:
    random = Random(0)
    for intent in intents().values():
        seen: set[tuple[str, ...]] = set()
        for question in intent.questions:
            if question.slots not in seen:
                seen.add(question.slots)
                yield from {answer(question, Context(), random) for _ in range(6)}
    for name in social.NAMES:
        yield f"Your name is {name}."
    yield from _told_facts()
    for _ in range(3000):
        context = Context(scene=camera.draw_scene(random))
        yield from (answer(each.questions[0], context, random) for each in camera.INTENTS)


def _told_facts() -> Iterator[str]:
    random = Random(0)
    for hour in range(24):
        for minute in range(60):
            context = facts.Facts(hour=hour, minute=minute).context()
            yield answer(Question("", "clock"), context, random)
    for weekday in range(7):
        for intent in ("day", "tomorrow", "yesterday"):
            yield answer(Question("", intent), facts.Facts(weekday=weekday).context(), random)
    for month, length in enumerate(facts.DAYS_OF_MONTH, start=1):
        for day in range(1, length + 1):
            yield answer(Question("", "date"), facts.Facts(month=month, day=day).context(), random)
