"""Exact arithmetic for a small language model: "seven plus five", in words or digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

ONES: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SMALL: Final = {word: value for value, word in enumerate(ONES)} | {
    word: value for value, word in zip(range(20, 100, 10), TENS, strict=True)
}
SCALES: Final = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
HUNDRED: Final = 100
# Operations between two numbers, spelled or as signs.
BETWEEN: Final = {
    "+": "+",
    "−": "−",
    "×": "×",
    "÷": "÷",
    "plus": "+",
    "added to": "+",
    "minus": "−",
    "times": "×",
    "multiplied by": "×",
    "divided by": "÷",
    "percent of": "% of",
}
# Before two numbers, with what stands between them.
BEFORE: Final = {
    ("sum of", "and"): "+",
    ("add", "and"): "+",
    ("add", "to"): "+",
    ("difference between", "and"): "−",
    ("product of", "and"): "×",
    ("multiply", "and"): "×",
    ("multiply", "by"): "×",
    ("divide", "by"): "÷",
}
# Plus and times need no spaces; dates, telephone numbers and ranges contain the other signs.
SIGN: Final = re.compile(r"(?<=\d)(?: ([-+−×*x÷/]) |([+×*÷]))(?=\d)")
SIGNS: Final = dict(zip("+-−×*x÷/", "+−−×××÷÷", strict=True))  # as written, as shown
DIGITS: Final = re.compile(r"\d+(?:\.\d+)?")
TOKEN: Final = re.compile(r"\d+(?:\.\d+)?|[a-z]+|(?<= )[+−×÷](?= )")
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
# Words before a calculation that is asked for, or anywhere around a spelled one; "from 1990 - 1995"
# is no subtraction.
ASKING: Final = re.compile(
    r"(?:^|\b(?:what(?: is| s| are| does| do| would)|whats|(?:how )?much (?:is|are|does|do)"
    r"|how about|calculate|compute|evaluate|solve|work out|tell me|result of|answer to))$"
)
FILLERS: Final = frozenset("and but hello hey hi now ok okay please so then well".split())
BEHIND: Final = frozenset("be equal equals give is make please then to".split())
ASKING_WORDS: Final = frozenset(
    "answer calculate compute equal equals how know make makes many much result tell what".split()
)
ASKING_FIRST: Final = frozenset("are can could does do is would".split())
A_SCALE: Final = re.compile(r"\ban? (?=hundred|thousand|million|billion)")
LONGEST_CHARS: Final = 400  # ours: the question is at the end of the text
LARGEST: Final = 10**15  # ours
DECIMALS: Final = 4  # of a rounded result


def computed(text: str) -> str | None:
    """Return the calculation that a text asks for with its result, `7 + 5 = 12`, or None."""
    for sentence in SENTENCE_END.split(text[-LONGEST_CHARS:]):
        terms = _terms(sentence)
        for at, term in enumerate(terms):
            if not isinstance(term, Fraction):
                continue
            numbers, signs, end = _chain(terms, at)
            if not signs:
                numbers, signs = _spelled_before(terms, at)
            elif not _is_asked(terms, at, end):
                continue
            if signs:
                return _written(numbers, signs)
    return None


def _is_asked(terms: Sequence[Fraction | str], start: int, end: int) -> bool:
    """Return whether a sentence asks for the result of the calculation `terms[start:end]`."""
    before = [str(term) for term in terms[:start] if term not in FILLERS]
    if ASKING.search(" ".join(before)) and BEHIND.issuperset(terms[end:]):
        return True
    if any(term in SIGNS for term in terms[start:end]):
        return False
    others = {*before, *terms[end:]}
    return bool(others & ASKING_WORDS) or (bool(before) and before[0] in ASKING_FIRST)


def _terms(text: str) -> list[Fraction | str]:
    """Split a sentence into numbers, signs between numbers, and other words."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.lower()).replace("%", " percent")

    def spaced(found: re.Match[str]) -> str:
        return f" {SIGNS[found[1] or found[2]]} "

    words = TOKEN.findall(A_SCALE.sub("one ", SIGN.sub(spaced, text)))
    terms: list[Fraction | str] = []
    at = 0
    while at < len(words):
        number, length = _number(words[at:])
        terms.append(words[at] if number is None else number)
        at += max(1, length)
    return terms


def _number(words: Sequence[str]) -> tuple[Fraction | None, int]:
    """Parse the number that words begin with; return it and its length in words."""
    if DIGITS.fullmatch(words[0]):
        scale = SCALES.get(words[1], 1) if len(words) > 1 else 1
        return Fraction(words[0]) * scale, 1 + (scale > 1)
    whole = part = length = 0
    is_after_ten = False
    for at, word in enumerate(words):
        value = SMALL.get(word)
        if value is not None:
            if part % HUNDRED and not (is_after_ten and 0 < value < 10):
                break  # "five six" are two numbers
            part += value
            is_after_ten = value >= 20
        elif word == "hundred" and 0 < part < HUNDRED:
            part *= HUNDRED
        elif word in SCALES and part:
            whole, part = whole + part * SCALES[word], 0
        elif word != "and" or not length or part % HUNDRED or not whole + part:
            break
        elif at + 1 == len(words) or words[at + 1] not in SMALL:
            break
        else:
            continue
        length = at + 1
    return (Fraction(whole + part) if length else None), length


def _chain(terms: Sequence[Fraction | str], at: int) -> tuple[list[Fraction], list[str], int]:
    """Parse a chain of operations; return its numbers, its signs and its end."""
    first = terms[at]
    assert isinstance(first, Fraction)
    numbers, signs = [first], list[str]()
    while True:
        for said, sign in BETWEEN.items():
            end = at + 1 + len(said.split())
            number = terms[end] if end < len(terms) else None
            if list(terms[at + 1 : end]) == said.split() and isinstance(number, Fraction):
                numbers.append(number)
                signs.append(sign)
                at = end
                break
        else:
            return numbers, signs, at + 1


def _spelled_before(terms: Sequence[Fraction | str], at: int) -> tuple[list[Fraction], list[str]]:
    """Parse an operation named before its two numbers."""
    first, second = terms[at], terms[at + 2] if at + 2 < len(terms) else None
    assert isinstance(first, Fraction)
    if not isinstance(second, Fraction):
        return [first], []
    before = " ".join(str(term) for term in terms[max(0, at - 2) : at])
    for (said, between), sign in BEFORE.items():
        if terms[at + 1] == between and before.split()[-len(said.split()) :] == said.split():
            return [first, second], [sign]
    if terms[at + 1] == "from" and before.endswith("subtract"):
        return [second, first], ["−"]
    return [first], []


def _written(numbers: list[Fraction], signs: list[str]) -> str | None:
    shown = _text(numbers[0])
    for sign, number in zip(signs, numbers[1:], strict=True):
        shown += f"{'' if sign == '% of' else ' '}{sign} {_text(number)}"
    result = _value(numbers, signs)
    if result is None:
        return f"{shown} cannot be computed: nothing can be divided by zero"
    if max(abs(number) for number in (*numbers, result)) > LARGEST:
        return None
    exact = round(result, DECIMALS) == result
    return f"{shown} {'=' if exact else '≈'} {_text(result)}"


def _value(numbers: list[Fraction], signs: list[str]) -> Fraction | None:
    """Evaluate with the usual precedence; return None on division by zero."""
    terms = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        match sign:
            case "+":
                terms.append(number)
            case "−":
                terms.append(-number)
            case "×":
                terms[-1] *= number
            case "% of":
                terms[-1] *= number / HUNDRED
            case _ if number:
                terms[-1] /= number
            case _:
                return None
    return sum(terms, Fraction(0))


def _text(number: Fraction) -> str:
    rounded = round(number, DECIMALS)
    if rounded.denominator == 1:
        return str(rounded.numerator)
    return f"{float(rounded):.{DECIMALS}f}".rstrip("0")
