"""What is computed for a small language model, and what is left alone."""

from __future__ import annotations

import re
from datetime import datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cascade.arithmetic import computed
from core.cascade.language import Line
from core.cascade.prompts import fit_context, prompt_of


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
        ("1 divided by 100000", "1 ÷ 100000 = 0.00001"),
        ("0.00002 times 3", "0.00002 × 3 = 0.00006"),
        ("1 divided by 3000", "1 ÷ 3000 ≈ 0.0003333"),
        ("The sum of a hundred and three, please.", None),  # one number, as it is said
        ("The sum of 100 and 3, please.", "100 + 3 = 103"),
        ("Subtract 3 from ten.", "10 − 3 = 7"),
        ("What's the difference between 3 and ten?", "10 − 3 = 7"),
        ("1,000,000 multiplied by 3", "1000000 × 3 = 3000000"),
        ("One hundred divided by zero?", "100 ÷ 0 cannot be computed"),
        ("What is 7+5? And 9*9?", "7 + 5 = 12"),
        ("Hey, so what's 17 x 6, please?", "17 × 6 = 102"),
        ("Calculate 12 - 30.", "12 − 30 = -18"),
        ("Is seven plus five twelve?", "7 + 5 = 12"),
        ("Oh — what’s $5 plus $3?", "5 + 3 = 8"),
        ("What is 15 percent of 80 plus forty-two?", "15% of 80 + 42 = 54"),
        ("If I have two plus three apples, how many is that?", "2 + 3 = 5"),
        ("(2 + 3) x 4?", "(2 + 3) × 4 = 20"),
        ("What is 2*(3+4)?", "2 × (3 + 4) = 14"),
        ("What is ((8 - 2) / (1 + 2)) × 5?", "((8 − 2) ÷ (1 + 2)) × 5 = 10"),
        ("What is 15% of (80 + 20)?", "15% of (80 + 20) = 15"),
        ("What is 7 / (5 - 5)?", "7 ÷ (5 − 5) cannot be computed"),
        ("Who was the president from 1990 - 1995?", None),
        ("What happened in the years 1990 - 1995?", None),
        ("What is 1990 - 1995 known for?", None),
        ("Do you work 24/7, or from 9 - 5?", None),
        ("My seven plus three friends are coming.", None),
        ("Call 555-1234.", None),
        ("Tell me about nine eleven.", None),
        ("My number is five six seven.", None),
        ("I was there two times.", None),
        ("", None),
        ("What is a billion times a billion?", None),  # larger than anybody needs
        (f"What is 0.{'0' * 350}1 divided by 0?", None),  # smaller
    ],
)
def test_calculations_in_words_and_digits(said: str, fact: str | None) -> None:
    found = computed(said)
    assert found == fact or (fact is not None and found is not None and found.startswith(fact))


@pytest.mark.parametrize(
    "said",
    [
        "What is negative five plus three?",
        "What is minus five plus three?",
        "What is -5 + 3?",
        "What is - 5 plus 3?",
        "What is 5 × -3?",
        "2(3 + 4)",
        "(2 + 3) x 4)",
        "What is ((2 + 3) x 4?",
        "2) + (3",
        "(2 + 3)!+1",
        "What is 2^(3 + 1)?",
        "What is √(9 + 7)?",
        "What is sin(5 + 4)?",
        "What is f(5 + 4)?",
        "What is -(5 + 3)?",
        "What is 1/2 × (3 + 4)?",
        "Is the house (three plus four) big?",
        "What is √9 + 1?",
        "What is 2^3 + 1?",
        "What is 3 plus 5²?",
        "What is half of ten plus two?",
        "What is twice the sum of three and four?",
        "What is the square root of nine plus seven?",
        "What is half the result of five plus three?",
        "What is five plus three squared?",
        "What is two to the power of three plus one?",
        "What is two plus three dozen?",
        "What is one plus one third?",
        "What is five point two plus three?",
        "What is .5 plus 3?",
        "What is 1/2 plus 3?",
        "What is 3 plus 1/2?",
        "What is the remainder of ten divided by three?",
        "12 plus 5 percent",
        "How much is 100 plus 10%?",
        "Add 3 and 4 and 5.",
        "What is five plus three and two?",
        "Do you know what five plus three and two is?",
        "Divide ten by four plus one.",
        "Multiply the sum of 3 and 4 by 2.",
        "Add five to three times two.",
        "Subtract the product of 3 and 4 from 20.",
        "What is two plus two, and what is three plus three?",
        "Can you add 5 and 3 to 10?",
        "Can you multiply 3 and 4 by 5?",
        "Could you add five to seven, then 2?",
        "Can you divide 100 by 5 by 2?",
        "What is the sine of 5 plus 4?",
        "What is the average of 5 plus 3?",
        "What is 5!+3?",
        "If I have two plus three apples and eat one, how many are left?",
    ],
)
def test_a_part_of_a_calculation_is_not_taken_for_the_whole(said: str) -> None:
    assert computed(said) is None


@given(a=st.integers(0, 10_000), b=st.integers(1, 10_000))
def test_results_are_exact(a: int, b: int) -> None:
    assert computed(f"What is {a} plus {b}?") == f"{a} + {b} = {a + b}"
    assert computed(f"What is {a} times {b}?") == f"{a} × {b} = {a * b}"


def check(fact: str | None) -> None:
    """Compute a fact again, with Python's own arithmetic."""
    if fact is None or "cannot be computed" in fact:
        assert fact is None or "÷ 0 " in fact
        return
    asked, sign, result = re.fullmatch(r"(.+) ([=≈]) (-?[\d.]+)", fact).groups()  # type: ignore[union-attr]
    written = asked.replace("% of ", " / 100 * ")
    numbers = re.sub(r"\d+(?:\.\d+)?", lambda found: f"Fraction('{found[0]}')", written)
    exact = eval(numbers.translate(str.maketrans("−×÷", "-*/")))
    assert round(exact, 4) == Fraction(result) and (sign == "=") is (exact == Fraction(result))


@given(st.text(max_size=200))
def test_of_any_text_only_a_right_calculation_is_taken(text: str) -> None:
    check(computed(text))


@given(st.lists(st.sampled_from("one five twenty hundred and plus times by of 3 % 0.5".split())))
def test_any_row_of_numbers_is_computed_rightly(words: list[str]) -> None:
    check(computed(f"What is {' '.join(words)}?"))


@given(
    st.lists(st.sampled_from(["2", "30", " + ", "+", " × ", " - ", "-", "(", ")", ".5", "^", " "]))
)
def test_a_written_row_of_signs_is_computed_as_a_whole_or_not_at_all(signs: list[str]) -> None:
    asked = "".join(signs)
    if fact := computed(f"What is {asked}?"):
        exact = eval(re.sub(r"[\d.]+", r"Fraction('\g<0>')", asked.replace("×", "*")))
        assert Fraction(re.split("[=≈]", fact)[1].strip()) == round(exact, 4)


def test_a_number_too_large_for_a_decimal_is_left_alone() -> None:
    assert computed(f"What is {'1' * 350}.5 + 1?") is None


def test_the_model_is_given_what_was_computed_and_the_same_in_every_prompt() -> None:
    began = datetime(2026, 5, 4, 9, 7)
    asked = Line("user", "What is seven plus five?")
    first = prompt_of([asked], began)
    assert "7 + 5 = 12" in first[-1].content and first[-1].content.startswith(asked.content)
    later = prompt_of([asked, Line("assistant", "Twelve."), Line("user", "Thanks.")], began)
    assert later[: len(first)] == first, "the kept prompt serves again"
    assert later[-1].content == "Thanks."


def test_a_long_history_is_counted_once_and_not_for_each_dropped_line() -> None:
    counts = 0

    class Counted(str):
        def encode(self, *_: str) -> bytes:
            nonlocal counts
            counts += 1
            return super().encode()

    lines = [Line("user", Counted("hello " * 100)) for _ in range(500)]
    assert 1 <= len(fit_context(lines)) < 10
    assert counts <= 2 * len(lines)
