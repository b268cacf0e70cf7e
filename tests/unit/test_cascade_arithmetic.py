"""What is computed for a small language model, and what is left alone."""

from __future__ import annotations

import re
from datetime import datetime
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.cascade.arithmetic import computed
from core.cascade.parts import Line
from core.cascade.prompts import prompt_of


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("What is seven plus five?", "7 + 5 = 12"),
        ("What's 7 + 5?", "7 + 5 = 12"),
        ("Is two hundred and five minus forty-two more than a hundred?", "205 − 42 = 163"),
        ("What is three times four plus 2?", "3 × 4 + 2 = 14"),
        ("And 15 percent of 80?", "15% of 80 = 12"),
        ("What is 20% of two thousand?", "20% of 2000 = 400"),
        ("Divide ten by four.", "10 ÷ 4 = 2.5"),
        ("10 / 3", "10 ÷ 3 ≈ 3.3333"),
        ("The sum of a hundred and three, please.", None),  # one number, as it is said
        ("The sum of 100 and 3, please.", "100 + 3 = 103"),
        ("Subtract 3 from ten.", "10 − 3 = 7"),
        ("1,000,000 multiplied by 3", "1000000 × 3 = 3000000"),
        ("One hundred divided by zero?", "100 ÷ 0 cannot be computed"),
        ("Call 555-1234.", None),
        ("Tell me about nine eleven.", None),
        ("My number is five six seven.", None),
        ("I was there two times.", None),
        ("", None),
        ("What is a billion times a billion?", None),  # larger than anybody needs
    ],
)
def test_calculations_in_words_and_digits(said: str, fact: str | None) -> None:
    found = computed(said)
    assert found == fact or (fact is not None and found is not None and found.startswith(fact))


@given(a=st.integers(0, 10_000), b=st.integers(1, 10_000))
def test_results_are_exact(a: int, b: int) -> None:
    assert computed(f"What is {a} plus {b}?") == f"{a} + {b} = {a + b}"
    assert computed(f"What is {a} times {b}?") == f"{a} × {b} = {a * b}"


WORDS = "what is one five twenty hundred and plus minus times divided by percent of 3 0 % 0.5"


def check(fact: str | None) -> None:
    """Whatever is computed is right, as Python's own fractions see it."""
    if fact is None or "cannot be computed" in fact:
        return
    asked, equals, result = re.split(r" ([=≈]) ", fact)
    numbers = re.sub(r"\d+(\.\d+)?", r"Fraction('\g<0>')", asked)
    for sign, operator in (("% of", "/ 100 *"), ("×", "*"), ("÷", "/"), ("−", "-")):
        numbers = numbers.replace(sign, operator)
    value = eval(numbers, {"Fraction": Fraction})
    found = Fraction(result.replace("−", "-"))
    assert found == value if equals == "=" else abs(found - value) <= Fraction(1, 10_000), fact


@given(st.text(max_size=200))
def test_no_text_is_a_mistake(text: str) -> None:
    check(computed(text))


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS.split()), max_size=12))
def test_no_row_of_numbers_is_a_mistake(words: list[str]) -> None:
    check(computed(" ".join(words)))


def test_the_model_is_given_what_was_computed_and_the_same_in_every_prompt() -> None:
    began = datetime(2026, 5, 4, 9, 7)
    asked = Line("user", "What is seven plus five?")
    first = prompt_of([asked], began)
    assert "7 + 5 = 12" in first[-1].content and first[-1].content.startswith(asked.content)
    later = prompt_of([asked, Line("assistant", "Twelve."), Line("user", "Thanks.")], began)
    assert later[: len(first)] == first, "the kept prompt serves again"
    assert later[-1].content == "Thanks."
