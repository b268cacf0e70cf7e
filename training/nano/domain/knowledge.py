"""Knowledge: arithmetic, sequences, opposites, capitals, animals, colours."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from training.nano.domain.kinds import Intent, entries, slotted
from training.nano.domain.spoken_numbers import DAYS, MONTHS, cardinal
from training.nano.domain.words import (
    BABIES,
    CAPITALS,
    COLOURS_OF,
    LEGS,
    LETTERS,
    OPPOSITES,
    SOUNDS,
)

LARGEST = 20
LARGEST_FACTOR = 10
NUMBERS = {cardinal(number): number for number in range(LARGEST + 1)}
_ASKED = "(what is|what's|how much is|tell me,|calculate|)"


def _sums(
    name: str, pairs: Iterable[tuple[int, int]], other: str, value: Callable[[int, int], int]
) -> Intent:
    """Return the intent of an operation, asked for by its name or in other words."""

    def reply(first: str, second: str) -> str:
        result = value(NUMBERS[first], NUMBERS[second])
        return f"{first} {name} {second} is {cardinal(result)}."

    phrases = (f"{_ASKED} {{0}} {name} {{1}}?", f"{_ASKED} {{0}} {other} {{1}}?")
    slots = ((cardinal(a), cardinal(b)) for a, b in pairs)
    return slotted(name, phrases, slots, reply, 8.0, f"What is seven {name} five?")


def _arithmetic() -> tuple[Intent, ...]:
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    differences = [(a, b) for a, b in pairs if a >= b]
    products = [(a, b) for a, b in pairs if max(a, b) <= LARGEST_FACTOR]
    compared = [(a, b) for a, b in pairs if a != b and (a * 7 + b) % 3 == 0]
    return (
        _sums("plus", pairs, "and", operator.add),
        _sums("minus", differences, "take away", operator.sub),
        _sums("times", products, "multiplied by", operator.mul),
        slotted(
            "bigger",
            ("(which|what) is (bigger|larger|more), {0} or {1}?",),
            ((cardinal(a), cardinal(b)) for a, b in compared),
            lambda *words: f"{max(words, key=NUMBERS.__getitem__)} is bigger.",
            2.0,
        ),
    )


def _looked_up(table: str, **pairs: Mapping[str, str]) -> list[Intent]:
    """Return intents whose reply is the table's sentence with a slot and its entry in `pairs`."""

    def look_up(sentence: str, known: Mapping[str, str], key: str) -> str:
        return sentence.format(key, known[key])

    return [
        slotted(
            name,
            phrases,
            ((key,) for key in pairs[name]),
            partial(look_up, sentence, pairs[name]),
            weight,
        )
        for name, weight, (sentence,), phrases in entries(table)
    ]


def _followers(words: Sequence[str], *, is_ring: bool) -> dict[str, str]:
    after = dict(zip(words, words[1:], strict=False))
    if is_ring:
        after[words[-1]] = words[0]
    return after


def _next(name: str, words: Sequence[str], *, is_ring: bool, weight: float) -> list[Intent]:
    after = _followers(words, is_ring=is_ring)
    before = {value: key for key, value in after.items()}
    asked = "(what|which one|tell me what|and what)"
    table = f"""
after_{name} {weight}: {{1}} comes after {{0}}.
    {asked} comes (|right|next) after {{0}}?
    what is (|the) next after {{0}}?
before_{name} {weight}: {{1}} comes before {{0}}.
    {asked} comes (|right|just) before {{0}}?
    what is before {{0}}?
"""
    return _looked_up(table, **{f"after_{name}": after, f"before_{name}": before})


_DOUBLES = {cardinal(n): cardinal(2 * n) for n in range(1, LARGEST + 1)}
_HOW_MANY = {
    "days are in a week": "A week has seven days.",
    "days are in a year": "A year has three hundred and sixty five days.",
    "months are in a year": "A year has twelve months.",
    "hours are in a day": "A day has twenty four hours.",
    "minutes are in an hour": "An hour has sixty minutes.",
    "seconds are in a minute": "A minute has sixty seconds.",
    "letters are in the alphabet": "The alphabet has twenty six letters.",
    "fingers do i have": "You have ten fingers.",
    "eyes do i have": "You have two eyes.",
    "wheels does a car have": "A car has four wheels.",
    "wheels does a bicycle have": "A bicycle has two wheels.",
    "corners does a triangle have": "A triangle has three corners.",
    "corners does a square have": "A square has four corners.",
}


INTENTS = (
    *_arithmetic(),
    *_looked_up(
        """
double 2: Twice {0} is {1}.
    (what is|what's|tell me) (double|twice) {0}?
    {0} doubled is what?
half 2: Half of {0} is {1}.
    (what is|what's|tell me) half of {0}?
""",
        double=_DOUBLES,
        half={double: single for single, double in _DOUBLES.items()},
    ),
    *_next("number", [cardinal(n) for n in range(31)], is_ring=False, weight=4.0),
    *_next("letter", LETTERS, is_ring=False, weight=2.5),
    *_next("day", DAYS, is_ring=True, weight=2.5),
    *_next("month", MONTHS, is_ring=True, weight=2.5),
    *_looked_up(
        """
opposite 5: The opposite of {0} is {1}.
    (what is|what's|tell me|name|) the opposite of {0}?
    what is the (contrary|reverse) of {0}?
capital 6: The capital of {0} is {1}.
    (what is|what's|tell me|name|do you know|) the capital of {0}?
    (what|which) city is the capital of {0}?
    (what is|what's) the (capital city|main city) of {0}?
animal_sound 5: A {0} says {1}.
    (what does|what sound does|what noise does) (a|the) {0} (make|say)?
    how does (a|the) {0} (go|sound)?
    (make the sound|make a sound) like a {0}.
colour_of 3: The color of {0} is {1}.
    (what|which) color is {0}?
    (what is|what's|tell me) the color of {0}?
legs 2: {0} has {1} legs.
    how many legs does {0} have?
    how many legs has {0}?
    (tell me|do you know) how many legs {0} has?
baby 2: The baby of {0} is {1}.
    what is the (baby|child) of {0} (|called)?
    (what|how) do you call the (baby|child) of {0}?
    (tell me|do you know) (what|how) the (baby|child) of {0} is called?
how_many 2: {1}
    how many {0}?
    (tell me|say) how many {0}.
""",
        opposite=OPPOSITES,
        capital=CAPITALS,
        animal_sound=SOUNDS,
        colour_of=COLOURS_OF,
        legs=LEGS,
        baby=BABIES,
        how_many=_HOW_MANY,
    ),
)
