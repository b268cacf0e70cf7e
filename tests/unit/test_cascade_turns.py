"""Whose turn it is, by silence and by the words heard."""

from __future__ import annotations

import pytest

from core.cascade import turns
from core.cascade.turns import words_of


@pytest.mark.parametrize(
    ("text", "silence_s", "is_over"),
    [
        ("What is the capital of France?", 0.1, False),
        ("What is the capital of France?", 0.4, True),
        ("What is the capital of", 0.4, False),
        ("I would like to go there, and", 0.9, False),
        ("Well...", 0.4, False),
        ("What is the capital of", 1.0, True),
        ("Explain to a child what rain is.", 0.4, True),
        ("What should I do?", 0.4, True),
        ("Tell me where she is.", 0.4, True),
        ("What is?", 0.4, False),
        ("What time is?", 0.4, False),
        ("I think you should.", 0.4, False),
        ("", 0.4, False),
    ],
)
def test_a_turn_ends_where_words_and_silence_say_so(
    text: str, silence_s: float, is_over: bool
) -> None:
    assert turns.is_over(text, silence_s) is is_over


@pytest.mark.parametrize(
    ("text", "stops", "nods"),
    [
        ("No, stop.", True, False),
        ("Can you stop talking, please?", True, False),
        ("That's enough, thanks.", True, False),
        ("Can you?", False, False),
        ("Stop.", True, False),
        ("Okay, please stop now!", True, False),
        ("Wait, hold on.", True, False),
        ("Don't stop believing", False, False),
        ("How do I stop smoking?", False, False),
        ("Uh-huh.", False, True),
        ("Oh, really? Wow.", False, True),
        ("Yes, but what about Berlin?", False, False),
        ("", False, False),
    ],
)
def test_stop_and_backchannels_are_told_from_questions(text: str, stops: bool, nods: bool) -> None:
    assert (turns.is_stop(text), turns.is_backchannel(text)) == (stops, nods)


def test_an_echo_repeats_what_is_said() -> None:
    said = words_of("The capital of Australia is Canberra, not Sydney.")
    assert turns.is_echo("Capital of Australia is Canbera", said)
    assert not turns.is_echo("What about the one of Austria?", said)
    assert not turns.is_echo("Stop.", said)
    assert not turns.is_echo("", said)


@pytest.mark.parametrize(
    ("text", "speech_s", "heard"),
    [
        ("[BLANK_AUDIO]", 2.0, ""),
        ("(clears throat) Hello  there.", 2.0, "Hello there."),
        ("you", 0.3, ""),
        ("Thank you.", 0.3, ""),
        ("Thank you.", 0.9, "Thank you."),
        ("...", 2.0, ""),
    ],
)
def test_what_whisper_writes_of_noise_is_not_heard(text: str, speech_s: float, heard: str) -> None:
    assert turns.clean_transcript(text, speech_s) == heard
