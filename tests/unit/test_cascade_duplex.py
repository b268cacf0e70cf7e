"""Full duplex over scripted parts: turns, barge-in, echo and backchannels, second by second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.audio import FloatArray
from core.cascade.language import Line, Sampling
from core.cascade.pictures import PrefetchedPicture
from core.cascade.prompts import CONTEXT_TOKENS, count_tokens
from core.cascade.turn_based import SILENCE_BEFORE_S
from core.cascade.turns import TURN_MAX_S, UserTurn
from core.errors import GenerationFailedError
from core.images import decode_wire_picture
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.transcription import Transcript
from tests.fakes.cascade_call import (
    ANSWER,
    ENDS,
    JUST_ENDS,
    QUESTION,
    QUIET,
    SHORT,
    SILENCE,
    SPEECH,
    VOICE,
    Call,
    call,
    modes,
    second,
    seconds_of,
)
from tests.fakes.cascade_parts import (
    ScriptedDetector,
    ScriptedLanguageModel,
    ScriptedTranscriber,
    scripted,
)
from tests.service.workers import jpeg


async def test_it_listens_answers_a_second_at_a_time_and_listens_again() -> None:
    live = await call(scripted(ANSWER, ANSWER, heard=[QUESTION] * 2))
    assert modes(await live.hear(SILENCE, SPEECH, ENDS)) == "LLS"
    said = await live.until_quiet()
    assert said.split() == ANSWER.split()
    speaking = [unit for unit in live.units if not unit.is_listen]
    assert all(seconds_of(unit) == 1.0 for unit in speaking[:-1])
    assert seconds_of(speaking[-1]) <= 1.0 and speaking[-1].end_of_turn
    # 13 words of 0.4 s: the words of a unit are those that are heard in it.
    assert all(1 <= len(unit.text.split()) <= 4 for unit in speaking)
    assert modes(await live.hear(SILENCE, SILENCE)) == "LL"
    assert live.units[-1].current_time == pytest.approx(len(live.units) * 1_000, abs=40)


async def test_an_open_sentence_is_waited_for() -> None:
    parts = scripted(ANSWER, heard=["I think that", "I think that it is late."])
    live = await call(parts)
    assert modes(await live.hear(ENDS, ENDS)) == "LS"
    assert live.language_model.asked[0][-1].content == "I think that it is late."


async def test_noise_begins_no_turn() -> None:
    live = await call(scripted())
    assert modes(await live.hear(SHORT, SILENCE, SHORT, SILENCE, SILENCE)) == "LLLLL"


async def test_a_cough_transcribed_as_thanks_is_not_answered() -> None:
    cough = second(*[QUIET] * 6, *[VOICE] * 3, QUIET)
    live = await call(scripted(ANSWER, heard=["Thank you."] * 2))
    assert modes(await live.hear(cough, SILENCE, SILENCE)) == "LLL"
    assert not live.language_model.asked


async def test_a_cough_transcribed_as_thanks_ends_no_reply() -> None:
    cough = second(*[QUIET] * 10, *[VOICE] * 9, QUIET)
    live = await call(scripted(ANSWER, heard=[QUESTION, "Thank you."]))
    assert modes(await live.hear(ENDS, cough, SILENCE)) == "SSS"


@pytest.mark.parametrize(
    ("heard", "goes_on"),
    [
        ("Stop.", False),
        ("No, I mean the one of Spain.", False),
        ("Uh-huh, right.", True),
        ("It is Paris", True),
        ("It is pair ish", True),
        ("It was perhaps parent", False),
        ("", True),
    ],
)
async def test_only_the_users_own_words_end_a_reply(heard: str, goes_on: bool) -> None:
    live = await call(scripted(ANSWER, "Madrid.", heard=[QUESTION, heard]))
    await live.hear(ENDS)
    [unit] = await live.hear(SPEECH)
    assert unit.is_listen is not goes_on
    assert live.language_model.ended == (0 if goes_on else 1)


@pytest.mark.parametrize(("heard", "goes_on"), [("Stop.", False), ("Berlin.", True)])
async def test_of_short_words_only_stop_ends_a_reply(heard: str, goes_on: bool) -> None:
    live = await call(scripted(ANSWER, heard=[QUESTION, heard]))
    await live.hear(ENDS)
    [unit] = await live.hear(second(VOICE, *[QUIET] * 3))
    assert unit.is_listen is not goes_on


async def test_after_stop_it_stays_silent_and_after_another_question_it_answers_that() -> None:
    wanted = "No, I mean the one of Spain."
    live = await call(scripted(ANSWER, "Madrid.", heard=[QUESTION, wanted, wanted]))
    await live.hear(ENDS, SPEECH)
    [unit] = await live.hear(ENDS)
    assert unit.text == "Madrid."
    told = live.language_model.asked[1]
    assert told[-1].content == wanted and ANSWER.startswith(told[-2].content)
    assert len(told[-2].content) < len(ANSWER)

    live = await call(scripted(ANSWER, heard=[QUESTION, "Stop.", "Stop!"]))
    await live.hear(ENDS, SPEECH)
    assert modes(await live.hear(ENDS, SILENCE, SILENCE)) == "LLL"


async def test_its_own_echo_is_no_turn_but_the_same_words_later_are() -> None:
    echo = "It lies on the Seine"
    live = await call(scripted(ANSWER, "Yes.", heard=[QUESTION, echo, echo]))
    await live.hear(ENDS)
    await live.until_quiet()
    assert modes(await live.hear(ENDS)) == "L"
    await live.hear(SILENCE, SILENCE)
    assert modes(await live.hear(ENDS)) == "S"


async def test_an_interrupting_question_in_the_models_words_is_answered() -> None:
    heard = [QUESTION, "Where is Rome", "Where is it on the map?"]
    live = await call(scripted(ANSWER, "In the north.", heard=heard))
    assert modes(await live.hear(ENDS, *[SILENCE] * 4, SPEECH, ENDS)) == "SSSSSLS"
    assert live.language_model.asked[-1][-1].content == "Where is it on the map?"


async def test_an_echo_that_interrupted_by_a_misheard_word_is_not_answered() -> None:
    heard = [QUESTION, "Its parish", "It is Paris, of course."]
    live = await call(scripted(ANSWER, "Yes.", heard=heard))
    assert modes(await live.hear(ENDS, *[SILENCE] * 4, SPEECH, ENDS)) == "SSSSSLL"


async def test_an_echo_that_goes_on_is_transcribed_as_a_whole_up_to_a_bound() -> None:
    lengths_s: list[float] = []

    class Measuring(ScriptedTranscriber):
        async def transcribe(self, samples: FloatArray, *options: Any) -> Transcript:
            lengths_s.append(len(samples) / INPUT_SAMPLE_RATE_HZ - SILENCE_BEFORE_S)
            return await super().transcribe(samples, *options)

    echo = ["It is Paris", "It is Paris, of course", "of course, my dear", "friend."]
    parts = replace(scripted(ANSWER), transcriber=Measuring(QUESTION, *echo))
    live = await call(parts)
    assert modes(await live.hear(ENDS, SPEECH, SPEECH, SPEECH, SPEECH)) == "SSSSS"
    assert lengths_s[1:] == pytest.approx([1.0, 2.0, 3.0, 1.0], abs=0.1)


async def test_break_and_forced_listening_end_the_reply_and_count_once() -> None:
    live = await call(scripted(ANSWER, ANSWER, heard=[QUESTION, QUESTION]))
    await live.hear(ENDS)
    live.view.set_break()
    assert modes(await live.hear(SILENCE, SILENCE)) == "LL"
    await live.hear(ENDS)
    assert modes(await live.hear(SILENCE, force_listen=True)) == "L"
    assert modes(await live.hear(SILENCE)) == "L"


async def test_it_listens_first_as_long_as_it_is_told_to_and_speaks_when_forced() -> None:
    live = await call(scripted(ANSWER, heard=[QUESTION]), force_listen_count=3)
    assert modes(await live.hear(ENDS, SILENCE, SILENCE, SILENCE)) == "LLLS"
    live = await call(scripted("Hello there."))
    assert modes(await live.hear(SILENCE, force_speak=True)) == "S"


async def test_speech_that_must_not_be_answered_is_kept_as_text_once_its_turn_is_full() -> None:
    heard = ["First of all,", "and then", QUESTION]
    live = await call(scripted(ANSWER, heard=heard))
    for _ in range(60):
        await live.hear(SPEECH, force_listen=True)
        assert len(live.view._state.turn.audio) <= (TURN_MAX_S + 1) * INPUT_SAMPLE_RATE_HZ
    assert modes(await live.hear(ENDS)) == "S"
    assert live.language_model.asked[0][-1].content == " ".join(heard)


async def test_a_click_and_half_a_minute_of_noise_are_not_what_the_user_said() -> None:
    live = await call(scripted(ANSWER, heard=["I'm going to go", QUESTION]))
    await live.hear(second(*[QUIET] * 30, VOICE, QUIET), force_listen=True)
    for _ in range(35):
        await live.hear(SILENCE, force_listen=True)
    assert not [line for line in live.view._lines if line.role == "user"]


async def test_of_ten_minutes_of_speech_that_must_not_be_answered_the_newest_is_kept() -> None:
    heard = [f"{number} {'word ' * 200}." for number in range(20)]
    live = await call(scripted(ANSWER, heard=[*heard, QUESTION]))
    for _ in range(29 * len(heard)):
        await live.hear(SPEECH, force_listen=True)
    assert modes(await live.hear(ENDS)) == "S"
    asked = live.language_model.asked[0][-1].content
    assert "19" in asked.split() and "0" not in asked.split() and asked.endswith(QUESTION)
    assert count_tokens(asked) < CONTEXT_TOKENS


async def test_the_beginning_leaves_early_where_it_is_asked_for() -> None:
    live = Call(scripted(ANSWER, heard=[QUESTION]))
    config = DuplexConfig(force_listen_count=0)
    await live.view.begin(None, config=config, early_audio=True)
    [unit] = await live.hear(ENDS)
    [early] = live.early
    assert len(early) / OUTPUT_SAMPLE_RATE_HZ + seconds_of(unit) == 1.0


async def test_without_sound_the_words_keep_their_pace() -> None:
    live = await call(scripted(ANSWER, heard=[QUESTION]), generate_audio=False)
    await live.hear(ENDS)
    assert (await live.until_quiet()).split() == ANSWER.split()
    assert all(unit.audio_data is None for unit in live.units) and len(live.units) > 2


async def test_without_sound_there_is_no_echo() -> None:
    answer = "Do you like tea or coffee?"
    live = await call(scripted(answer, "Nice.", heard=["Hi.", "Coffee."]), generate_audio=False)
    await live.hear(ENDS)
    await live.until_quiet()
    assert modes(await live.hear(ENDS)) == "S"


async def test_it_looks_at_the_newest_picture_when_it_is_asked_to() -> None:
    async def describe(picture: Any, question: str, threads: Any) -> str:
        return f"{picture.width} wide"

    heard = ["What do you see?", QUESTION]
    parts = scripted("A circle.", "Paris.", heard=heard, describe=describe)
    live = await call(parts)
    live.language_model.is_small = False
    pictures = [decode_wire_picture(jpeg(width, 48)) for width in (32, 64)]
    ahead = await live.view.encode_ahead(pictures[1], 1)
    assert ahead == PrefetchedPicture(pictures[1], 1)
    await live.hear(ENDS, frames=[pictures[0], ahead])
    await live.until_quiet()
    await live.hear(SILENCE, SILENCE)
    await live.hear(ENDS)
    first, then = (asked[-1].content for asked in live.language_model.asked)
    assert "64 wide" in first and then == QUESTION


def test_too_little_sound_is_no_unit_and_the_rest_is_kept() -> None:
    async def scenario() -> None:
        view = (await call(scripted())).view

        async def hear(samples: int) -> DuplexGenerateResult | None:
            sound = np.zeros(samples, np.float32)
            return await view.unit(
                sound, [], force_listen=False, force_speak=False, due_s=None, on_sound=_ignore
            )

        assert await hear(9_000) is None
        assert await hear(9_000) is not None

    asyncio.run(scenario())


async def test_a_language_model_that_fails_or_waits_leaves_nothing_running() -> None:
    class Failing(ScriptedLanguageModel):
        async def stream(
            self, lines: Sequence[Line], sampling: Sampling
        ) -> AsyncGenerator[str, None]:
            raise GenerationFailedError("It is not there.")
            yield ""

    class Waiting(ScriptedLanguageModel):
        async def stream(
            self, lines: Sequence[Line], sampling: Sampling
        ) -> AsyncGenerator[str, None]:
            try:
                await asyncio.Event().wait()
                yield ""
            finally:
                self.ended += 1

    live = await call(replace(scripted(heard=[QUESTION]), language_model=Failing()))
    with pytest.raises(GenerationFailedError, match="not there"):
        await live.hear(ENDS)

    waiting = Waiting()
    live = await call(replace(scripted(heard=[QUESTION, "Stop."]), language_model=waiting))
    live.view.patience_s = 0.0
    assert modes(await live.hear(ENDS, SILENCE, SPEECH)) == "LLL" and waiting.ended == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}

    live = await call(replace(scripted(heard=[QUESTION]), language_model=waiting))
    live.view.patience_s = 0.0
    await live.hear(ENDS)
    await live.view.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert waiting.ended == 2


async def test_the_end_of_a_call_ends_a_reply_that_waits_to_be_heard() -> None:
    live = await call(scripted(ANSWER, heard=[QUESTION]))
    await live.hear(ENDS)
    assert live.language_model.ended == 0
    await live.view.close()
    assert live.language_model.ended == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Replies that begin before it is certain that the user's turn is over


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


# Turns


def test_a_turn_never_grows_beyond_its_bound() -> None:
    turn = UserTurn(ScriptedDetector())
    for _ in range(20):
        turn.add(SILENCE)
    assert len(turn.audio) < INPUT_SAMPLE_RATE_HZ
    while not turn.is_full:
        turn.add(SPEECH)
    assert turn.speech_s == pytest.approx(TURN_MAX_S, abs=1.5)


async def _ignore(sound: FloatArray) -> None:
    """Nobody listens."""
