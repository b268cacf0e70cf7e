"""Predefined answers of the cascade, and questions that its language model answers."""

from __future__ import annotations

import pytest

from core.cascade.language import Line
from core.cascade.predefined import (
    PICTURE_MARK,
    SEES_LITTLE,
    picture_note,
    predefined_answer,
    with_picture,
)
from core.cascade.turn_based import SAY_SOMETHING, CascadeChatView
from core.schemas.chat import ChatRequest
from core.schemas.common import Message, Role
from core.serving.transcribers import LoopThreads
from core.tools import outputs_text
from tests.fakes.cascade_parts import BEGAN, ScriptedLanguageModel, scripted


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("What's the weather in Paris right now?", "can't look things up"),
        ("Tell me the news.", "can't look things up"),
        ("Is it raining?", "can't look things up"),
        ("What does the weather look like today?", "can't look things up"),
        ("Could you check the traffic?", "can't look things up"),
        ("I have good news for you!", None),
        ("Nice weather today, isn't it?", None),
        ("What a lovely weather today!", None),
        ("Is it cold on Mars?", None),
        ("I like the news in the morning.", None),
        ("Which model are you?", "ears hears you, brain thinks, and mouth speaks"),
        ("Hello, who are you?", "Hello! I'm a stand-in of three small models, not MiniCPM-o"),
        ("Can you hear me?", "Yes, I can hear you well. What would you like to talk about?"),
        (
            "Hello? Can you hear me? Please tell me what the weather will be like tomorrow.",
            "Hello! Yes, I can hear you well. I'm sorry, I can't look things up, so I don't know "
            "the weather.",
        ),
        ("Can you hear me? Who are you?", "Yes, I can hear you well. I'm a stand-in"),
        ("What's the weather? Never mind, tell me a joke.", None),
        ("Hello. How are you?", None),
        ("Nice to meet you.", "Nice to meet you, too, Anna!"),
        ("What can you do?", "I can chat"),
        ("What can you do against hiccups?", None),
        ("Do you speak German?", "I only speak English"),
        ("Do you speak English?", None),
        ("Where are you from?", "only a program"),
        ("What is seven plus five?", "7 plus 5 is 12."),
        ("Hello. Can you tell me what 20 − 6 × 2 is, please?", "Hello! 20 minus 6 times 2 is 8."),
        ("How many is five plus three?", "5 plus 3 is 8."),
        ("5 + 3 = ?", "5 plus 3 is 8."),
        ("What is 2+2=?", "2 plus 2 is 4."),
        ("10 / 3?", "10 divided by 3 is about 3.3333."),
        ("What's 15% of 80?", "15 percent of 80 is 12."),
        ("What is the difference between 5 and 7?", "7 minus 5 is 2."),
        ("What is 5 divided by 0?", "5 divided by 0 cannot be computed"),
        ("What's 7+5? And 9*9?", "7 plus 5 is 12. 9 times 9 is 81."),
        ("Is seven plus five twelve?", None),
        ("If I have two plus three apples, how many is that?", None),
        ("What is -5 + 3?", None),
        (f"What is {'1' * 5_000} plus 1?", None),
        ("What time is it?", "It's 9:07 AM."),
        ("What time is it, please?", "It's 9:07 AM."),
        ("Can you tell me what time it is?", "It's 9:07 AM."),
        ("What time is it in Tokyo?", None),
        ("And what day is it today?", "It's Monday, 4 May."),
        ("What's the date, please?", "It's Monday, 4 May."),
        ("Can you tell me what today's date is?", "It's Monday, 4 May."),
        ("What is the date of Christmas?", None),
        ("What's the date tomorrow?", None),
        ("What day is it tomorrow?", None),
        ("What are you talking about?", None),
        ("What are you doing?", None),
        ("Hello.", None),
        ("My new camera is great.", None),
        ("Who is in the picture?", "no picture"),
        ("What do you see?", "no picture"),
        ("What color is this?", "no picture"),
        ("What color is my shirt?", "no picture"),
        ("My car is red. What color is my car?", None),
        ("Do you like my shirt? What color is my shirt?", "no picture"),
        ("What color do you get from blue and yellow?", None),
        ("Which number comes after nine?", None),
        ("Can you see why that is funny?", None),
        (f"What do you see? {picture_note(None)}", None),
        (f"Tell me a joke. {picture_note('I see a star.')}", None),
        ("What is my name?", "Your name is Anna."),
        ("Do you know my name?", "Your name is Anna."),
        ("And what was my name again?", "Your name is Anna."),
        ("My name is Julia. How are you?", None),
        ("What's the capital of France?", None),
        ("How many days does a leap year have?", None),
        ("Why does the weather change?", None),
        ("My name is Bob.", None),
    ],
)
def test_a_small_model_is_not_asked_what_it_would_invent(question: str, told: str | None) -> None:
    lines = [
        Line("user", "Hello, my name is Anna."),
        Line("assistant", "Hi."),
        Line("user", question),
    ]
    answer = predefined_answer(lines, ("ears", "brain", "mouth"), BEGAN)
    assert answer is None if told is None else answer is not None and told in answer


@pytest.mark.parametrize("name", ["José", "Zoë", "McDonald", "Mary-Jane", "O'Brien", "Łukasz"])
def test_a_name_is_repeated_as_a_whole(name: str) -> None:
    lines = [Line("user", f"Hello, my name is {name}."), Line("user", "What is my name?")]
    answer = predefined_answer(lines, ("ears", "brain", "mouth"), BEGAN)
    assert answer == f"Your name is {name}."


def test_what_the_vision_model_saw_is_said_and_its_limits_once() -> None:
    seen = "I see a red circle."
    lines = [Line("user", f"What do you see? {picture_note(seen)}")]
    first = predefined_answer(lines, ("ears", "brain", "mouth"), BEGAN)
    assert first == f"{seen} {SEES_LITTLE}"
    color = Line("user", f"And what color is this? {picture_note('It is red.')}")
    again = predefined_answer(
        [*lines, Line("assistant", first), color], ("ears", "brain", "mouth"), BEGAN
    )
    assert again == "It is red."


def test_a_picture_without_a_question_is_described() -> None:
    lines = [Line("user", picture_note("I see a red circle."))]
    answer = predefined_answer(lines, ("ears", "brain", "mouth"), BEGAN)
    assert answer == f"I see a red circle. {SEES_LITTLE}"


def test_what_the_user_told_needs_no_picture() -> None:
    told = [Line("user", "My car is red."), Line("assistant", "Nice.")]
    asked = Line("user", "What color is my car?")
    assert predefined_answer([*told, asked], ("ears", "brain", "mouth"), BEGAN) is None
    twice = [asked, Line("assistant", "There is no picture."), asked]
    answer = predefined_answer(twice, ("ears", "brain", "mouth"), BEGAN)
    assert answer is not None and "no picture" in answer


def test_an_earlier_message_without_an_answer_is_no_part_of_the_question() -> None:
    lines = [Line("user", "What's the weather today?"), Line("user", "Hello, who are you?")]
    answer = predefined_answer(lines, ("Whisper tiny", "Qwen2.5-Coder 0.5B", "hibari"), BEGAN)
    assert answer is not None
    assert answer.endswith("Whisper hears you, Qwen thinks, and hibari speaks.")


def test_a_functions_output_is_no_question() -> None:
    lines = [Line("user", outputs_text(['{"text": "Your name is Anna"}']))]
    assert predefined_answer(lines, ("ears", "brain", "mouth"), BEGAN) is None


def test_only_the_end_of_a_long_text_is_searched_for_a_question() -> None:
    """Some patterns take quadratic time, and a text may have 200,000 characters."""
    long = "blue " * 100
    asked = Line("user", f"Who won today? {long}. What is one plus one?")
    assert predefined_answer([asked], ("ears", "brain", "mouth"), BEGAN) == "1 plus 1 is 2."
    digits = Line("user", "1" * 5_000)
    assert predefined_answer([digits], ("ears", "brain", "mouth"), BEGAN) is None
    earlier = [Line("user", f"Look! {picture_note('red')}")]
    assert (
        PICTURE_MARK not in with_picture(Line("user", f"What do you see? {long}"), earlier).content
    )
    assert PICTURE_MARK in with_picture(Line("user", f"{long}. What do you see?"), earlier).content


async def test_instructions_alone_are_answered_by_the_language_model() -> None:
    parts = scripted("Welcome!")
    request = ChatRequest(messages=[Message(role=Role.SYSTEM, content="What is 2 + 2?")])
    assert (await CascadeChatView(parts, LoopThreads()).respond(request)).text == "Welcome!"
    assert isinstance(parts.language_model, ScriptedLanguageModel)
    assert parts.language_model.asked[0][-1] == Line("user", SAY_SOMETHING)
