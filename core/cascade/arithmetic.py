"""Exact arithmetic for a small language model: "seven plus five", in words or digits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from math import floor, log10
from typing import Final

NAMES: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
).split()
SMALL: Final = dict(zip(NAMES, (*range(20), *range(20, 100, 10)), strict=True))
SCALES: Final = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
HUNDRED: Final = 100
# Operations between two numbers, spelled or as signs.
BETWEEN: Final = {sign: sign for sign in "+−×÷"} | {
    "plus": "+",
    "added to": "+",
    "minus": "−",
    "times": "×",
    "multiplied by": "×",
    "divided by": "÷",
    "percent of": "%",
}
SPOKEN: Final = {
    "+": "plus",
    "−": "minus",
    "×": "times",
    "÷": "divided by",
    "%": " percent",
    "=": "is",
    "≈": "is about",
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
    ("subtract", "from"): "−",  # the first number from the second
}
NUMBER: Final = re.compile(r"#\d+")  # a mark
OPERATION: Final = re.compile("|".join(map(re.escape, BETWEEN)))
TERM: Final = r"(?:\( )*#\d+(?: \))*"  # brackets may be unbalanced
CHAIN: Final = re.compile(rf"{TERM}(?: (?:{OPERATION.pattern}) {TERM})+")
INNERMOST: Final = re.compile(r"\( ([^()]+) \)")
SPELLED: Final = re.compile(
    "|".join(rf"(?<!\S){said} #\d+ {between} #\d+" for said, between in BEFORE)
)
# Plus and times need no spaces; dates, telephone numbers and ranges contain the other signs.
SIGN: Final = re.compile(r"(?<=[\d)])(?: ([-+−×*x÷/]) |([+×*÷]))(?=[\d(])")
SIGNS: Final = dict(zip("+-−×*x÷/", "+−−×××÷÷", strict=True))  # as written, as shown
DIGITS: Final = re.compile(r"\d+(?:\.\d+)?")
# Words without punctuation and hyphens. All other signs stay, since they change a calculation.
TOKEN: Final = re.compile(
    r"\d+(?:\.\d+)?|[^\W\d_]+|\.(?=\d)|(?<=[\d)])!(?=[-+−×*÷/])|(?<![a-z])-|-(?![a-z])|[^-\s\w.,;:?!'\"’‘“”…$€£]"
)
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
# Words before a calculation that is asked for, or anywhere around a spelled one; "from 1990 - 1995"
# is no subtraction.
ASKING: Final = re.compile(
    r"(?:^|\b(?:what(?: is| s| are| does| do| would| about)?|whats|(?:much|many) (?:is|are|does|do)"
    r"|how about|calculate|compute|evaluate|solve|work out|tell me|result of|answer to))$"
)
FILLERS: Final = frozenset("and but hello hey hi now ok okay please so the then well".split())
BEHIND: Final = frozenset("be equal equals give is make please then to =".split())
ASKING_WORDS: Final = frozenset(
    "answer calculate compute equal equals how know make makes many much result tell what".split()
)
ASKING_FIRST: Final = frozenset("are can could does do is would".split())
# Words of mathematics, which make a calculation beside them a part of another one.
CHANGING: Final = frozenset(
    "absolute add added average cos cosine cube cubed difference divide divided double doubled "
    "dozen dozens eighth eighths exponent hundredth hundredths mean sin sine tangent thousandth "
    "thousandths "
    "factorial fifth fifths fourth fourths half halved halves log logarithm minus mod modulo "
    "multiplied multiply negative ninth ninths over percent pi plus point power product quarter "
    "quarters remainder root seventh sevenths sixth sixths square squared subtract sum tenth "
    "tenths third thirds thrice times triple tripled twice π".split()
)
GOES_ON: Final = frozenset("and by from then to".split())
A_SCALE: Final = re.compile(r"\ban? (?=hundred|thousand|million|billion)")
# Ours: the question is at the end of a text, and patterns take quadratic time on the event loop.
LONGEST_CHARS: Final = 400
LARGEST: Final = 10**15  # ours
DECIMALS: Final = 4  # of a rounded result


def computed(text: str) -> str | None:
    """Return the calculation that a text asks for with its result, `7 + 5 = 12`, or None."""
    sentences = SENTENCE_END.split(text[-LONGEST_CHARS:])
    return next(filter(None, (_result(each, _is_asked) for each in sentences)), None)


def spoken_result(sentence: str) -> str | None:
    """Return the answer to a sentence that asks for a calculation and nothing else, or None."""
    result = _result(sentence, _is_alone)
    if result is None:
        return None
    for sign, word in SPOKEN.items():
        result = result.replace(sign, word)
    return f"{result}."


def _result(sentence: str, is_wanted: Callable[[list[str], str, list[str]], bool]) -> str | None:
    if len(sentence) > LONGEST_CHARS:  # and Python parses no number of 4,300 digits
        return None
    words, numbers = _numbered(sentence)
    found = [*CHAIN.finditer(words), *SPELLED.finditer(words)]
    if len(found) != 1:
        return None
    calculation, behind = found[0][0], words[found[0].end() :].split()
    before = [word for word in words[: found[0].start()].split() if word not in FILLERS]
    if not is_wanted(before, calculation, behind):
        return None
    if _is_chain(calculation):
        return _written(OPERATION.sub(lambda sign: BETWEEN[sign[0]], calculation), numbers)
    marks = NUMBER.findall(calculation)
    said, between, _ = (part.strip() for part in NUMBER.split(calculation))
    if said == "subtract":
        marks.reverse()
    elif said == "difference between":
        marks.sort(key=numbers.__getitem__, reverse=True)
    return _written(f" {BEFORE[said, between]} ".join(marks), numbers)


def _is_chain(calculation: str) -> bool:
    return calculation.startswith(("#", "("))


def _is_alone(before: list[str], calculation: str, behind: list[str]) -> bool:
    is_alone = CHANGING.isdisjoint(before) and BEHIND.issuperset(behind)
    return is_alone and ASKING.search(" ".join(before)) is not None


def _is_asked(before: list[str], calculation: str, behind: list[str]) -> bool:
    """Return whether a sentence asks for a calculation, and not for one that contains it."""
    if _is_alone(before, calculation, behind):
        return True
    asks_first = not ASKING_FIRST.isdisjoint(before[:1])
    others = [*before, *behind]
    if asks_first and not GOES_ON.intersection(behind[:1]):  # "is seven plus five twelve"
        others = [*before, *(word for word in behind if not NUMBER.fullmatch(word))]
    if any(not word.isalpha() or word in CHANGING for word in others):
        return False
    if not _is_chain(calculation):
        return True
    if any(sign in calculation for sign in ("(", *SIGNS.values())):
        return False
    return asks_first or not ASKING_WORDS.isdisjoint(others)


def _numbered(text: str) -> tuple[str, dict[str, Fraction]]:
    """Return words and signs of a sentence, in which marks stand for numbers, and the numbers."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.lower()).replace("%", " percent")

    def spaced(found: re.Match[str]) -> str:
        return f" {SIGNS[found[1] or found[2]]} "

    words = TOKEN.findall(A_SCALE.sub("one ", SIGN.sub(spaced, text)))
    shown: list[str] = []
    numbers: dict[str, Fraction] = {}
    while words:
        number, length = _number(words)
        if number is None:
            shown.append(words[0])
        else:
            shown.append(f"#{len(numbers)}")
            numbers[shown[-1]] = number
        del words[: max(1, length)]
    return " ".join(shown), numbers


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


def _written(calculation: str, numbers: dict[str, Fraction]) -> str | None:
    """Return a calculation of marks, signs and brackets with its result."""
    given = map(numbers.__getitem__, NUMBER.findall(calculation))
    if not all(map(_is_readable, given)):
        return None
    shown = NUMBER.sub(lambda mark: _text(numbers[mark[0]]), calculation)
    shown = shown.replace(" %", "% of").replace("( ", "(").replace(" )", ")")
    try:
        result = _value(calculation, numbers)
    except ZeroDivisionError:
        return f"{shown} cannot be computed: nothing can be divided by zero"
    except ValueError:
        return None
    if not _is_readable(result):
        return None
    exact = _rounded(result) == result
    return f"{shown} {'=' if exact else '≈'} {_text(result)}"


def _value(calculation: str, numbers: dict[str, Fraction]) -> Fraction:
    """Evaluate with the usual precedence, or raise `ZeroDivisionError`.

    Raises `ValueError` if brackets are unbalanced. Marks are added for what is in brackets.
    """
    while found := INNERMOST.search(calculation):
        mark = f"#{len(numbers)}"
        numbers[mark] = _value(found[1], numbers)
        calculation = calculation.replace(found[0], mark)
    if "(" in calculation or ")" in calculation:
        raise ValueError("brackets are unbalanced")
    first, *others = calculation.split()
    terms = [numbers[first]]
    for sign, mark in zip(others[::2], others[1::2], strict=True):
        number = numbers[mark]
        if sign in ("+", "−"):
            terms.append(number if sign == "+" else -number)
        elif sign == "÷":
            terms[-1] /= number
        else:
            terms[-1] *= number / HUNDRED if sign == "%" else number
    return sum(terms, Fraction(0))


def _is_readable(number: Fraction) -> bool:
    return not number or 1 / LARGEST <= abs(number) <= LARGEST


def _text(number: Fraction) -> str:
    rounded = _rounded(number)
    return f"{Decimal(rounded.numerator) / rounded.denominator:f}"


def _rounded(number: Fraction) -> Fraction:
    """Round to `DECIMALS` places, and a number below 1 to as many significant digits."""
    is_small = 0 < abs(number) < 1
    return round(number, DECIMALS - 1 - floor(log10(abs(number))) if is_small else DECIMALS)
