"""A history fed as one piece is known message by message to the text window."""

from __future__ import annotations

import gc
import weakref

from tests.fakes.decoders import held_tokens
from tests.model.toy import Toy
from tests.model.turns import ScriptedTurns, ToyTurns

HISTORY = [
    ("system", "Be brief."),
    ("user", "hello"),
    ("assistant", "hello there"),
    ("user", "and again"),
]


def test_every_message_of_a_history_becomes_a_round(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history(HISTORY)
    rounds = talk.session.window.rounds
    assert [each.role for each in rounds] == [role for role, _ in HISTORY]
    assert [each.number for each in rounds] == [0, 0, 0, 1]
    assert sum(each.length for each in rounds) == talk.session.kv.length
    expected = [
        len(talk.encode(f"<|im_start|>{role}\n{text}<|im_end|>\n")) for role, text in HISTORY
    ]
    assert [each.length for each in rounds] == expected


def test_the_reply_belongs_to_the_last_round_of_a_history(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history(HISTORY)
    talk.script(" yes")
    talk.generate()
    reply = talk.session.window.rounds[-1]
    assert (reply.role, reply.number) == ("assistant", 1)
    assert sum(each.length for each in talk.session.window.rounds) == talk.session.kv.length


def test_a_text_that_spells_the_start_mark_out_stays_one_round(toy: Toy) -> None:
    talk = ScriptedTurns(toy)
    talk.prefill_history([("user", "I wrote <|im_start|> myself")])
    assert [each.role for each in talk.session.window.rounds] == ["user"]


def test_dropping_a_conversation_frees_its_caches(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("user", "hello")
    store = talk.session.kv.store
    assert held_tokens(store) > 0
    session = weakref.ref(talk.session)
    del talk
    gc.collect()
    assert session() is None and held_tokens(store) == 0
