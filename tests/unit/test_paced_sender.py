"""Paced output: in real time, silence as exact zeros, text with its audio."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocols.paced_output import (
    LATE_MAX_S,
    LONGEST_S,
    PIECE_MS,
    SILENCE_MS,
    PacedSender,
)
from core.schemas.realtime_session import AudioFormat

BYTES_PER_MS = 48
SECOND = 1_000 * BYTES_PER_MS
PIECE_BYTES = PIECE_MS * BYTES_PER_MS
SILENCE = bytes(SILENCE_MS * BYTES_PER_MS)


def started(**audio_format: Any) -> PacedSender:
    sender = PacedSender(AudioFormat(**audio_format))
    sender.due_s = 0.0
    return sender


@pytest.fixture
def sender() -> PacedSender:
    return started()


def test_ten_minutes_keep_to_the_clock_without_a_gap() -> None:
    """Units arrive early, late or not at all; timers fire up to 80 ms late."""
    draws = random.Random(5)
    sender, now_s, sent_ms = PacedSender(AudioFormat()), 50.0, 0
    spoken, heard = bytearray(), bytearray()
    sender.due_s = now_s
    next_unit_s = 51.0
    while now_s < 650.0:
        pieces = sender.due(now_s)
        for piece in pieces:
            is_silent = piece.samples == SILENCE
            length_ms = SILENCE_MS if is_silent else PIECE_MS
            assert piece.start_ms == sent_ms
            assert piece.end_ms == sent_ms + length_ms or piece.text
            assert len(piece.samples) == length_ms * BYTES_PER_MS
            heard += piece.samples.replace(b"\0", b"")
            sent_ms += length_ms
        assert abs(sent_ms / 1_000 - (now_s - 50.0)) <= 0.2
        wait_s = max(0.0, sender.due_s - now_s)
        assert 0 <= wait_s <= 0.1001
        now_s += wait_s + draws.choice([0.0, 0.0, 0.003, 0.08])
        if now_s >= next_unit_s:
            next_unit_s += 1.0 + draws.uniform(-0.2, 0.3)
            if draws.random() < 0.6:
                sound = bytes([draws.randrange(1, 255)]) * draws.randrange(2, SECOND + 2, 2)
                spoken += sound
                sender.put(sound)
                sender.end_unit("some words")
    assert sent_ms >= 599_900
    assert spoken.startswith(heard), "everything is heard once, in order"


def test_silence_is_exact_zeros(sender: PacedSender) -> None:
    sender.put(b"\1" * (PIECE_BYTES + 8))
    first, second, third = sender.due(0.1)
    assert first.samples == b"\1" * PIECE_BYTES
    assert second.samples == b"\1" * 8 + bytes(PIECE_BYTES - 8)
    assert third.samples == SILENCE


@pytest.mark.parametrize(("kind", "zero"), [("audio/pcmu", b"\xff"), ("audio/pcma", b"\xd5")])
def test_g711_silence_is_its_own_zero(kind: Any, zero: bytes) -> None:
    sender = started(type=kind)
    sender.put(b"\1" * 8)
    first, second = sender.due(0.1)
    assert first.samples == b"\1" * 8 + zero * (PIECE_MS * 8 - 8)
    assert second.samples == zero * SILENCE_MS * 8


def test_held_audio_follows_the_silence_sent_instead(sender: PacedSender) -> None:
    sender.put(b"\1" * 2 * PIECE_BYTES)
    sender.end_unit("one two")
    sender.is_held = True
    (held,) = sender.due(0.0)
    assert (held.samples, held.text) == (bytes(PIECE_BYTES), "")
    sender.is_held = False
    pieces = sender.due(0.08)
    assert [piece.samples for piece in pieces] == [b"\1" * PIECE_BYTES] * 2
    assert "".join(piece.text for piece in pieces) == "one two"


def test_text_is_sent_with_its_audio(sender: PacedSender) -> None:
    sender.put(bytes(SECOND))
    sender.end_unit(" One two three four.")
    told = [piece for piece in sender.due(1.5) if piece.text]
    assert "".join(piece.text for piece in told) == " One two three four."
    spans = [(piece.start_ms, piece.end_ms) for piece in told]
    assert spans == [(0, 200), (200, 400), (400, 700), (680, 1_000)]


def test_one_word_per_unit_leaves_no_pause(sender: PacedSender) -> None:
    """Clients end a message at a gap of 800 ms between the end of its text and the next."""
    for word in (" One", " two"):
        sender.put(bytes(SECOND))
        sender.end_unit(word)
    one, two = (piece for piece in sender.due(2.5) if piece.text)
    assert (one.end_ms, two.start_ms) == (1_000, 1_000)


def test_text_that_arrives_after_early_audio_is_spread_over_all_of_it(sender: PacedSender) -> None:
    sender.put(bytes(SECOND // 2))
    sender.due(0.2)
    sender.put(bytes(SECOND // 2))
    sender.end_unit("a b c d e")
    told = [(piece.start_ms, piece.text) for piece in sender.due(1.5) if piece.text]
    assert told == [(240, "a b"), (320, " c"), (520, " d"), (760, " e")]


def test_dropped_audio_and_text_are_not_sent(sender: PacedSender) -> None:
    sender.put(b"\1" * SECOND)
    sender.end_unit("one two three")
    sender.due(0.0)
    sender.drop()
    assert not sender.is_audible
    rest = sender.due(2.0)
    assert all(piece.samples == SILENCE and not piece.text for piece in rest)
    sender.put(b"\2" * PIECE_BYTES)
    sender.end_unit("four")
    piece, *_ = sender.due(2.15)
    assert (piece.text, piece.samples) == ("four", b"\2" * PIECE_BYTES)


def test_waiting_audio_is_bounded(sender: PacedSender) -> None:
    for _ in range(70):
        sender.put(bytes(SECOND))
    pieces = [piece for second in range(60) for piece in sender.due(second + 0.97)]
    assert sum(len(piece.samples) for piece in pieces) == LONGEST_S * SECOND
    assert not sender.is_audible


def test_overdue_audio_is_too_late() -> None:
    sender = PacedSender(AudioFormat())
    assert not sender.is_too_late(1_000.0), "it has not begun"
    sender.due_s = 5.0
    assert len(sender.due(6.0)) == 11
    assert not sender.is_too_late(6.0 + LATE_MAX_S) and sender.is_too_late(6.2 + LATE_MAX_S)
    assert len(sender.due(6.0 + LATE_MAX_S)) == LATE_MAX_S * 1_000 / SILENCE_MS


@given(st.text(max_size=60), st.integers(0, SECOND // 2))
def test_the_parts_of_a_text_are_the_text(text: str, samples: int) -> None:
    sender = started()
    sender.put(bytes(samples * 2))
    sender.end_unit(text)
    assert "".join(piece.text for piece in sender.due(3.0)) == text


@pytest.mark.parametrize("text", ["你好世界", "a 你 b"])
def test_scripts_without_spaces_are_split_by_characters(sender: PacedSender, text: str) -> None:
    sender.put(bytes(SECOND))
    sender.end_unit(text)
    told = [piece.text for piece in sender.due(1.5) if piece.text]
    assert len(told) == len(text.replace(" ", "")) and "".join(told) == text
