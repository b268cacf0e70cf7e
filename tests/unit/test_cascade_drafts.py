"""Replies begun while it is not certain yet that the user's turn is over."""

from __future__ import annotations

import asyncio

import pytest

from core.audio import FloatArray
from tests.fakes.cascade_call import (
    ANSWER,
    ENDS,
    JUST_ENDS,
    QUESTION,
    QUIET,
    SILENCE,
    SPEECH,
    VOICE,
    call,
    modes,
    second,
)
from tests.fakes.cascade_parts import scripted


@pytest.mark.parametrize(
    ("heard", "expected"),
    [(QUESTION, "S"), ("What is the capital", "L"), ("What is the", "L"), ("Stop.", "L")],
)
async def test_a_finished_sentence_is_answered_after_a_short_pause(
    heard: str, expected: str
) -> None:
    live = await call(scripted(ANSWER, heard=[heard]))
    assert modes(await live.hear(JUST_ENDS)) == expected


async def test_a_reply_to_half_a_turn_is_withdrawn_and_the_whole_turn_is_answered() -> None:
    whole = "What do you think about cats?"
    heard = ["What do you think?", "About cats?", whole]
    live = await call(scripted(ANSWER, "They are nice.", heard=heard))
    assert modes(await live.hear(JUST_ENDS, ENDS, SILENCE)) == "SLS"
    said = live.language_model.asked[-1]
    assert said[-1].content == whole and live.language_model.ended == 2
    assert not any("capital" in line.content or "Paris" in line.content for line in said)

    live = await call(scripted(ANSWER, heard=["What do you think?", "Stop."]))
    assert modes(await live.hear(JUST_ENDS, ENDS, SILENCE, SILENCE)) == "SLLL"


@pytest.mark.parametrize(
    ("following", "then", "drafts"),
    [
        (second(VOICE, *[QUIET] * 9), [QUESTION], 1),
        (second(VOICE, *[QUIET] * 9), ["What is the capital of Spain?"], 2),
        (ENDS, ["What is the capital of Spain?"], 2),
    ],
)
async def test_a_reply_is_begun_while_it_is_not_known_yet_whether_the_turn_is_over(
    following: FloatArray, then: list[str], drafts: int
) -> None:
    live = await call(scripted(*[ANSWER] * drafts, heard=[QUESTION, *then]))
    assert modes(await live.hear(SPEECH)) == "L"
    await asyncio.sleep(0)
    assert modes(await live.hear(following)) == "S"
    assert len(live.language_model.asked) == drafts
    asked = [line.content for line in live.language_model.asked[-1]]
    assert asked[-1] == (then or [QUESTION])[-1] and asked.count(QUESTION) <= 1


async def test_a_turn_that_gets_no_longer_is_transcribed_once() -> None:
    live = await call(scripted(ANSWER, heard=["What is the capital", "something else"]))
    assert modes(await live.hear(JUST_ENDS, SILENCE)) == "LS"
    [asked] = live.language_model.asked
    assert asked[-1].content == "What is the capital"


async def test_the_language_model_reads_an_unfinished_turn_ahead() -> None:
    live = await call(scripted(ANSWER, heard=["What is the"]))
    await live.hear(SPEECH)
    await asyncio.sleep(0)
    assert live.language_model.prefetched[-1][-1].content == "What is the"
    assert not live.language_model.asked
