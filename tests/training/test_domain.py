"""The domain's questions and replies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from random import Random

import pytest

from MiniCPMO45.engine.policies import MAX_UNIT_CHARACTERS
from MiniCPMO45.settings import DuplexSettings
from tests.training.conftest import Nano
from training.nano.domain import control, unknown
from training.nano.domain.camera import BLIND
from training.nano.domain.catalogue import answer, intents, questions, reply_texts, words_of
from training.nano.domain.facts import Facts, system_text
from training.nano.domain.foreign import endless_foreign, foreign
from training.nano.domain.kinds import Context, Question, Scene, expand
from training.nano.pace import split_reply, timed_words

FEWEST_INTENTS = 60
FEWEST_REPEATED = 500
SPEECH_TOKENS_A_UNIT = DuplexSettings().max_new_speak_tokens_per_chunk - 3


@cache
def asked_in_words() -> Mapping[str, list[Question]]:
    """Return every question by its words: taking some hundred thousand apart takes a second."""
    found = defaultdict(list)
    for intent in intents().values():
        for question in intent.questions:
            found[" ".join(words_of(question.text))].append(question)
    return found


def reply_to(text: str, context: Context | None = None) -> str:
    [question] = asked_in_words()[" ".join(words_of(text))]
    return answer(question, context or Context(), Random(0))


def test_size_of_the_domain() -> None:
    assert len(intents()) >= FEWEST_INTENTS
    assert len({question.slots for question in intents()["repeat"].questions}) >= FEWEST_REPEATED


def test_no_question_has_two_intents() -> None:
    meanings = {
        text: {(question.intent, question.slots) for question in found}
        for text, found in asked_in_words().items()
    }
    assert [text for text, found in meanings.items() if len(found) > 1] == []


def test_held_out_questions_are_few_per_intent_and_not_in_training() -> None:
    held_out, learned = questions(held_out=True), questions(held_out=False)
    assert 0.03 < len(held_out) / len(learned) < 0.08
    known = {" ".join(words_of(question.text)) for question in learned}
    assert known.isdisjoint(" ".join(words_of(question.text)) for question in held_out)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("what is seven plus five?", "Seven plus five is twelve."),
        ("what's twelve minus twelve?", "Twelve minus twelve is zero."),
        ("what is the capital of France?", "The capital of France is Paris."),
        ("what is the opposite of hot?", "The opposite of hot is cold."),
        ("what comes after Monday?", "Tuesday comes after Monday."),
        ("count to five.", "One, two, three, four, five."),
        ("please repeat after me, rainbow.", "Rainbow."),
        ("what is your name?", "My name is Nano."),
        ("what do you see?", BLIND),
    ],
)
def test_reply_to_a_question(text: str, reply: str) -> None:
    assert reply_to(text) == reply


def test_replies_use_facts_of_the_system_prompt() -> None:
    facts = Facts(hour=14, minute=5, weekday=4, month=11, day=20, name="Anna")
    context = facts.context()
    assert "The time is 14:05. Today is Friday. The date is 20 November." in system_text("", facts)
    assert reply_to("what time is it?", context) == "It is two oh five in the afternoon."
    assert reply_to("what day is it?", context) == "Today is Friday."
    assert reply_to("what is the date?", context) == "It is the twentieth of November."
    assert reply_to("what is my name?", context) == "Your name is Anna."


def test_replies_use_the_conversation_history() -> None:
    context = Context()
    assert reply_to("what is my name?", context) == "I do not know your name yet."
    assert reply_to("my name is Tom.", context) == "Nice to meet you, Tom."
    assert reply_to("what is my name?", context) == "Your name is Tom."
    assert reply_to("say that again.", Context(last_reply="Rope.")) == "Rope."
    assert reply_to("go on.", Context(unsaid="four, five.")) == "four, five."
    assert reply_to("go on.") == control.NOTHING_LEFT


def test_replies_describe_the_scene() -> None:
    seen = Context(scene=Scene("red", "star", "", "three"))
    assert reply_to("what do you see?", seen) == "I see three red stars."
    assert reply_to("what color is this?", seen) == "It is red."
    digit = Context(scene=Scene("blue", "digit", "seven", "one"))
    assert reply_to("what number is this?", digit) == "It is the number seven."


def test_unknown_questions_are_declined() -> None:
    random = Random(3)
    asked = [unknown.draw_unknown(random) for _ in range(200)]
    assert {answer(each, Context(), random) for each in asked} == {unknown.SORRY}
    assert len({each.text for each in asked}) > 150


def test_paraphrases_of_domain_questions_are_not_out_of_domain() -> None:
    texts = [
        "He had a great time though.",
        "So what is the capital of France anyway?",
        "Tell me a story about the sea.",
        "Super fun.",
        "Nice to meet you, Tom.",
    ]
    assert foreign(texts) == ["He had a great time though."]
    drawn = next(endless_foreign(texts, Random(0)))
    assert drawn == Question("He had a great time though.", unknown.INTENT)
    assert answer(drawn, Context(), Random(0)) == unknown.SORRY
    with pytest.raises(ValueError, match="foreign"):
        next(endless_foreign(["Hello."], Random(0)))


def test_expand_returns_every_alternative() -> None:
    assert expand("(what is|what's) it (|now)?") == [
        "what is it?",
        "what is it now?",
        "what's it?",
        "what's it now?",
    ]


def test_every_reply_fits_its_units(nano: Nano) -> None:
    tokenizer = nano.processor.tokenizer
    for reply in reply_texts():
        units = split_reply(reply)
        assert "".join(units) == reply
        encoded = [tokenizer.encode(text) for text in units]
        assert [token for ids in encoded for token in ids] == tokenizer.encode(reply)
        assert max(map(len, encoded)) <= SPEECH_TOKENS_A_UNIT
        assert max(map(len, units)) < MAX_UNIT_CHARACTERS


def test_words_precede_and_turn_ends_follow_their_audio() -> None:
    for reply in reply_texts()[::20]:
        units, emitted = split_reply(reply), 0
        starts = [(word.text, word.start_s) for word in timed_words(reply)]
        for number, text in enumerate(units):
            emitted += len(text)
            due = sum(len(word) for word, start_s in starts if start_s < number)
            assert emitted >= due
        assert timed_words(reply)[-1].stop_s <= len(units)


def test_questions_have_words() -> None:
    assert all(words_of(question.text) for question in questions(held_out=False))
    assert isinstance(questions(held_out=True)[0], Question)
