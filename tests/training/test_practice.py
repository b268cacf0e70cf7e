"""Typed practice conversations and substituted answers."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch

from tests.training.conftest import Nano
from training.nano.asking import Dialogue
from training.nano.batches import Conversations
from training.nano.domain import control
from training.nano.domain.catalogue import answer, is_held_out, learned_by_slots
from training.nano.domain.kinds import Context, Question
from training.nano.domain.knowledge import NUMBERS
from training.nano.domain.spoken_numbers import cardinal
from training.nano.layout import Layout, SpokenReply
from training.nano.sessions import DuplexSession
from training.nano.turns import TurnsSession


def asked(nano: Nano, *, practises: bool, count: int) -> list[Question]:
    dialogue = Dialogue.begin(nano.bank, Random(0), has_pictures=False)
    return [dialogue.ask_in_writing(practises=practises) for _ in range(count)]


@pytest.fixture(scope="module")
def written(nano: Nano) -> list[Question]:
    return asked(nano, practises=False, count=2_000)


@pytest.fixture(scope="module")
def practised(nano: Nano) -> list[Question]:
    return asked(nano, practises=True, count=3_000)


def test_typed_questions_are_not_held_out_and_practice_favours_arithmetic(
    written: list[Question], practised: list[Question]
) -> None:
    assert not any(is_held_out(question.text) for question in written + practised)

    def share(questions: list[Question], *intents: str) -> float:
        counts = Counter(question.intent for question in questions)
        return sum(counts[intent] for intent in intents) / len(questions)

    for intent in ("clock", "date"):
        assert share(practised, intent) > 2 * share(written, intent) > 0
    known = ("hello", "capital", "opposite", "animal_sound", "count")
    assert 0 < share(practised, *known) < share(written, *known) / 2
    assert share(practised, "plus", "repeat") > share(practised, *known)


def test_typed_questions_include_unrecorded_ones(nano: Nano, practised: list[Question]) -> None:
    recorded = {each.question.slots for each in nano.bank.recordings if each.intent == "plus"}
    typed = {q.slots for q in practised if q.intent == "plus"}
    assert len(typed) > 100 > len(recorded)
    assert typed <= {group[0].slots for group in learned_by_slots("plus")}


def test_a_conversation_can_begin_with_stop(written: list[Question]) -> None:
    assert control.STOP in {question.intent for question in written}


def test_practice_batches_have_no_audio_and_a_loss(nano: Nano) -> None:
    conversations = Conversations([nano.bank_folder], nano.checkpoint, 12, seed=1, practice=1.0)
    batch = next(iter(conversations))
    assert not len(batch.clips) and not batch.stream.numel() and not len(batch.unit_places)
    assert len(batch.ids) == 4
    loss = nano.fresh_model()(batch).loss
    assert torch.isfinite(loss) and loss > 1


def test_practice_has_no_pictures_and_no_voice_sample(nano: Nano) -> None:
    for seed in range(12):
        session = TurnsSession(nano.bank, nano.processor, Random(seed), practises=True)
        example = session.compose()
        assert not example.clips and not session.has_pictures
        assert all(
            isinstance(part, str)
            for message in session.messages
            for part in ([message.content] if isinstance(message.content, str) else message.content)
        )


def results_learned(nano: Nano, layout: Layout, reply: SpokenReply) -> tuple[str, str]:
    decode = nano.processor.tokenizer.decode
    places = [at for span in reply.units for at in range(*span)]
    given = [layout.ids[at] for at in places if not layout.weights[at]]
    learned = [layout.ids[at] for at in places if layout.weights[at]]
    return decode(given), decode(learned, skip_special_tokens=True)


def test_loss_of_a_substituted_answer_excludes_the_restatement(nano: Nano) -> None:
    [asked] = {each.question for each in nano.bank.recordings if each.intent == "plus"}
    right, others = answer(asked, Context(), Random(0)), 0
    for seed in range(200):
        session = DuplexSession(
            nano.bank, nano.processor.tokenizer, Random(seed), 16, substitutes=True
        )
        layout = session.compose().layout
        for reply in layout.replies:
            if reply.intent != "plus" or not reply.has_ended:
                continue
            given, learned = results_learned(nano, layout, reply)
            assert given + learned == reply.text
            if reply.text == right:
                continue
            others += 1
            assert given.endswith(" is") and " plus " in given
            first, second = given.removesuffix(" is").lower().split(" plus ")
            total = NUMBERS[first] + NUMBERS[second]
            assert learned == f" {cardinal(total)}."
    assert others


def test_answers_are_not_substituted_by_default(nano: Nano) -> None:
    for seed in range(40):
        layout = (
            DuplexSession(nano.bank, nano.processor.tokenizer, Random(seed), 16).compose().layout
        )
        assert all(results_learned(nano, layout, reply)[0] == "" for reply in layout.replies)
