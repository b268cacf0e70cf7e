"""Which of the published prompts are a person's sentences."""

from __future__ import annotations

from benchmarks.embedded_speech import spoken_prompts

TEXTS = """; Core Asterisk Sounds in English

added: Added.
agent-user: Agent login.  Please enter your agent number followed by the pound key.
ascending-2tone: [ascending tones, which are long and high]
dictate/both_help: press * to toggle pause, press # to enter a new dictation filename
vm-leavemsg:  Press 5 to leave a message
"""


def test_sentences_are_kept_and_sounds_and_keys_are_not() -> None:
    assert spoken_prompts(TEXTS) == {
        "agent-user": "Agent login.  Please enter your agent number followed by the pound key.",
        "vm-leavemsg": "Press 5 to leave a message",
    }
