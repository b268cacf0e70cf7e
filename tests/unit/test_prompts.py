"""Every row of the specification's tables of fixed texts."""

from __future__ import annotations

import re

import pytest

from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.prompts import TurnOpening
from tests.source_tree import ROOT

ROW = re.compile(r"^\| `(\w+)` (en|zh) \| (.+) \| (.+) \|$", re.MULTILINE)
SPECIFICATION = (ROOT / "docs" / "specification" / "model.md").read_text(encoding="utf8")
SYSTEM_PROMPTS = [
    *ROW.findall(SPECIFICATION),
    ("voice_cloning", "en", "Clone the voice in the provided audio prompt.", ""),
    ("voice_cloning", "zh", "模仿输入音频中的声音特征。", ""),
]
DEFAULT = (
    "You are a helpful assistant. You can accept audio and text input and output voice and text."
)


def test_every_system_prompt_with_a_voice_is_specified() -> None:
    assert sorted(row[:2] for row in SYSTEM_PROMPTS) == sorted(prompts.VOICE_SYSTEM_PROMPTS)


@pytest.mark.parametrize(("mode", "language", "before", "after"), SYSTEM_PROMPTS)
def test_system_prompt_surrounds_the_voice(
    mode: str, language: str, before: str, after: str
) -> None:
    voice = object()
    expected = [before, voice, after] if after else [before, voice]
    assert prompts.system_prompt(mode, language).parts(voice) == expected


@pytest.mark.parametrize("language", ["en", "zh"])
def test_default_prompt_never_holds_a_voice(language: str) -> None:
    assert prompts.system_prompt("default", language).parts(object()) == [DEFAULT]


@pytest.mark.parametrize("mode", ["omni", "audio_assistant", "audio_roleplay"])
def test_without_a_voice_the_default_is_used(mode: str) -> None:
    assert prompts.system_prompt(mode, "en", has_voice=False).parts(None) == [DEFAULT]


def test_voice_cloning_needs_a_voice() -> None:
    with pytest.raises(ValueError, match="needs a voice"):
        prompts.system_prompt("voice_cloning", "en", has_voice=False)


@pytest.mark.parametrize(("mode", "language"), [("opera", "en"), ("omni", "fr")])
def test_unknown_names_are_refused(mode: str, language: str) -> None:
    with pytest.raises(ValueError):
        prompts.system_prompt(mode, language)


def test_closed_message() -> None:
    assert prompts.message_text("system", "Be kind.") == "<|im_start|>system\nBe kind.<|im_end|>\n"


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        (TurnOpening.FIRST, "<|im_start|>user\nHi"),
        (TurnOpening.AFTER_REPLY, "<|tts_eos|><|im_end|>\n<|im_start|>user\nHi"),
        (TurnOpening.CONTINUED, "Hi"),
    ],
)
def test_user_chunk(opening: TurnOpening, expected: str) -> None:
    assert prompts.user_chunk("Hi", opening) == expected


@pytest.mark.parametrize(
    ("thinking", "speech", "is_open", "expected"),
    [
        (
            False,
            True,
            True,
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>",
        ),
        (False, False, True, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (True, True, True, "<|im_end|>\n<|im_start|>assistant\n<|tts_bos|>"),
        (True, False, True, "<|im_end|>\n<|im_start|>assistant\n"),
        (False, True, False, "<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>"),
    ],
)
def test_reply_prefix(thinking: bool, speech: bool, is_open: bool, expected: str) -> None:
    assert (
        prompts.reply_prefix(
            enable_thinking=thinking, use_tts_template=speech, is_user_turn_open=is_open
        )
        == expected
    )


def test_duplex_texts() -> None:
    assert (
        prompts.duplex_prefix()
        == "<|im_start|>system\nStreaming Omni Conversation.\n<|audio_start|>"
    )
    assert (
        prompts.duplex_prefix(prompts.SERVICE_DUPLEX_SYSTEM_PROMPT)
        == "<|im_start|>system\nYou are a helpful assistant.\n<|audio_start|>"
    )
    assert prompts.duplex_suffix() == "<|audio_end|><|im_end|>"
    assert prompts.CONTEXT_MARKER == "\n\nprevious: "
