"""Fixed prompt texts and media placeholders, as in training.

Source: docs/specification/model.md#3.2 to #3.5 and #4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import WindowSettings

IMAGE_MARKER = "<image>./</image>"
AUDIO_MARKER = "<audio>./</audio>"

MESSAGE_START = "<|im_start|>"
MESSAGE_END = "<|im_end|>\n"
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
SPEECH_START = "<|tts_bos|>"
SPEECH_END = "<|tts_eos|>"

DUPLEX_SYSTEM_PROMPT = "Streaming Omni Conversation."
SERVICE_DUPLEX_SYSTEM_PROMPT = "You are a helpful assistant."
CONTEXT_MARKER = WindowSettings.context_marker

Voice = TypeVar("Voice")


class PromptMode(StrEnum):
    """Purpose of the voice sample in the system prompt."""

    DEFAULT = "default"
    OMNI = "omni"
    AUDIO_ASSISTANT = "audio_assistant"
    AUDIO_ROLEPLAY = "audio_roleplay"
    VOICE_CLONING = "voice_cloning"


class Language(StrEnum):
    EN = "en"
    ZH = "zh"


class TurnOpening(StrEnum):
    """End of the cached text, which decides how a chunk of a user turn is opened."""

    FIRST = "first"  # no reply yet
    AFTER_REPLY = "after_reply"  # a streamed reply; its terminator is not cached
    CONTINUED = "continued"  # an earlier chunk of the same turn


@dataclass(frozen=True)
class SystemPrompt:
    """The texts before and after the voice sample; `after` may be empty."""

    before: str
    after: str = ""
    has_voice: bool = True

    def parts(self, voice: Voice | None) -> list[str | Voice]:
        """Return the message content with a voice sample, if there is one."""
        middle: list[str | Voice] = [] if voice is None or not self.has_voice else [voice]
        return [self.before, *middle, *([self.after] if self.after else [])]


DEFAULT_SYSTEM_PROMPT = SystemPrompt(
    "You are a helpful assistant. You can accept audio and text input and output voice and text.",
    has_voice=False,
)

_CLONE_EN = "Clone the voice in the provided audio prompt."
_IMITATE_ZH = "模仿音频样本的音色并生成新的内容。"
_IMITATE_INPUT_ZH = "模仿输入音频中的声音特征。"

VOICE_SYSTEM_PROMPTS = {
    (PromptMode.OMNI, Language.EN): SystemPrompt(
        _CLONE_EN, "As an assistant, you will speak using this voice style."
    ),
    (PromptMode.OMNI, Language.ZH): SystemPrompt(
        _IMITATE_ZH,
        "请用这种声音风格来为用户提供帮助。 请认真、高质量地回复用户的问题。"
        " 请用高自然度的方式和用户聊天。",
    ),
    (PromptMode.AUDIO_ASSISTANT, Language.EN): SystemPrompt(
        "Use the voice in the audio prompt to synthesize new content.",
        "You are a helpful assistant with the above voice style.",
    ),
    (PromptMode.AUDIO_ASSISTANT, Language.ZH): SystemPrompt(
        _IMITATE_ZH,
        "你的任务是用这种声音模式来当一个助手。请认真、高质量地回复用户的问题。"
        "请用高自然度的方式和用户聊天。你是由面壁智能开发的人工智能助手：面壁小钢炮。",
    ),
    (PromptMode.AUDIO_ROLEPLAY, Language.EN): SystemPrompt(
        _CLONE_EN, "Try to role-play the character based on the audio prompt above."
    ),
    (PromptMode.AUDIO_ROLEPLAY, Language.ZH): SystemPrompt(
        _IMITATE_INPUT_ZH, "假装你是上述音频中的人物，与我进行对话。"
    ),
    (PromptMode.VOICE_CLONING, Language.EN): SystemPrompt(_CLONE_EN),
    (PromptMode.VOICE_CLONING, Language.ZH): SystemPrompt(_IMITATE_INPUT_ZH),
}


def system_prompt(
    mode: str = PromptMode.DEFAULT, language: str = Language.EN, *, has_voice: bool = True
) -> SystemPrompt:
    """Return the system prompt of a mode; without a voice sample, the default prompt.

    Raises:
        ValueError: unknown mode or language, or voice cloning without a sample.

    Source: docs/specification/model.md#3.4.
    """
    key = PromptMode(mode), Language(language)
    if has_voice:
        return VOICE_SYSTEM_PROMPTS.get(key, DEFAULT_SYSTEM_PROMPT)
    if key[0] is PromptMode.VOICE_CLONING:
        raise ValueError("voice cloning needs a voice sample")
    return DEFAULT_SYSTEM_PROMPT


def message_text(role: str, content: str) -> str:
    """Return one complete message in the format of the chat template."""
    return f"{MESSAGE_START}{role}\n{content}{MESSAGE_END}"


def user_chunk(content: str, opening: TurnOpening) -> str:
    """Return the text of one chunk of a user turn, which stays open."""
    header = f"{MESSAGE_START}user\n"
    match opening:
        case TurnOpening.FIRST:
            return header + content
        case TurnOpening.AFTER_REPLY:
            return SPEECH_END + MESSAGE_END + header + content
        case TurnOpening.CONTINUED:
            return content


def reply_prefix(
    *, enable_thinking: bool = False, use_tts_template: bool = True, is_user_turn_open: bool = True
) -> str:
    """Return the text that closes an open user message and starts a reply.

    Without `enable_thinking` it contains an empty thought.
    """
    return (
        (MESSAGE_END if is_user_turn_open else "")
        + f"{MESSAGE_START}assistant\n"
        + ("" if enable_thinking else EMPTY_THOUGHT)
        + (SPEECH_START if use_tts_template else "")
    )


def duplex_prefix(system_text: str = DUPLEX_SYSTEM_PROMPT) -> str:
    """Return the start of a duplex prompt; voice embeddings and `duplex_suffix` follow."""
    return f"{MESSAGE_START}system\n{system_text}\n<|audio_start|>"


def duplex_suffix(text: str = "") -> str:
    """Return the end of a duplex prompt; `text` follows the voice sample."""
    return f"<|audio_end|>{text}<|im_end|>"


def audio_placeholder(n_embeddings: int, special: SpecialTokens) -> list[int]:
    """Return the ids of a sound, with an `<unk>` for each embedding."""
    return [special.audio_start, *[special.unk] * n_embeddings, special.audio_end]
