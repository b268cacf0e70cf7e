"""Conversations without sound: typed, mostly worked out, never what is kept for evaluation."""

from __future__ import annotations

from collections import Counter
from random import Random

import torch

from tests.training.conftest import Nano
from training.nano.asking import Talk
from training.nano.batches import Conversations
from training.nano.domain import control
from training.nano.domain.catalogue import is_held_out, learned_by_slots
from training.nano.domain.kinds import Question
from training.nano.turns import TurnsSession


def asked(nano: Nano, *, practises: bool, count: int = 2_000) -> list[Question]:
    talk = Talk.begin(nano.bank, Random(0), has_pictures=False)
    return [talk.ask_in_writing(practises=practises) for _ in range(count)]


def test_what_is_typed_may_be_learned_and_practice_is_worked_out(nano: Nano) -> None:
    written, practised = asked(nano, practises=False), asked(nano, practises=True)
    assert not any(is_held_out(question.text) for question in written + practised)

    def share(questions: list[Question], *intents: str) -> float:
        counts = Counter(question.intent for question in questions)
        return sum(counts[intent] for intent in intents) / len(questions)

    sums = ("plus", "minus", "times")
    assert share(practised, *sums) > 2 * share(written, *sums) > 0
    assert share(practised, "clock") > 2 * share(written, "clock") > 0
    assert share(practised, "whats_my_name") > 2 * share(written, "whats_my_name") > 0


def test_more_is_typed_than_was_recorded(nano: Nano) -> None:
    recorded = {each.question.slots for each in nano.bank.recordings if each.intent == "plus"}
    typed = {q.slots for q in asked(nano, practises=True) if q.intent == "plus"}
    assert len(typed) > 100 > len(recorded)
    assert typed <= {group[0].slots for group in learned_by_slots("plus")}


def test_a_conversation_may_begin_with_stop(nano: Nano) -> None:
    assert control.STOP in {question.intent for question in asked(nano, practises=False)}


def test_practice_has_no_sound_and_is_learned(nano: Nano) -> None:
    conversations = Conversations([nano.bank_folder], nano.checkpoint, 12, seed=1, practice=1.0)
    batch = next(iter(conversations))
    assert not len(batch.clips) and not batch.stream.numel() and not len(batch.unit_places)
    assert len(batch.ids) == 4
    loss = nano.fresh_brain()(batch).loss
    assert torch.isfinite(loss) and loss > 1


def test_practice_shows_no_pictures_and_brings_no_voice(nano: Nano) -> None:
    for seed in range(12):
        session = TurnsSession(nano.bank, nano.processor, Random(seed), practises=True)
        example = session.compose()
        assert not example.clips and not session.has_pictures
        assert all(
            isinstance(part, str)
            for message in session.messages
            for part in ([message.content] if isinstance(message.content, str) else message.content)
        )
