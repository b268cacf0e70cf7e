"""The literal texts and the placeholders around a conversation, as the model was trained on them.

Pure functions; what is not text stays in the hands of the caller.
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
    """What the system prompt asks the model to do with the voice sample."""

    DEFAULT = "default"
    OMNI = "omni"
    AUDIO_ASSISTANT = "audio_assistant"
    AUDIO_ROLEPLAY = "audio_roleplay"
    VOICE_CLONING = "voice_cloning"


class Language(StrEnum):
    EN = "en"
    ZH = "zh"


class TurnOpening(StrEnum):
    """What the cache ends with when a piece of a user turn arrives."""

    FIRST = "first"  # nothing was generated yet
    AFTER_REPLY = "after_reply"  # a streamed reply whose terminator was never fed
    AFTER_COMPLETE_REPLY = "after_complete_reply"  # a reply that is whole except for its end mark
    CONTINUED = "continued"  # an earlier piece of the same turn


@dataclass(frozen=True)
class SystemPrompt:
    """Two texts with the voice sample between them; an empty `after` is left out."""

    before: str
    after: str
    has_voice: bool = True

    def parts(self, voice: Voice | None) -> list[str | Voice]:
        """Return the content around a voice sample, if there is one, without what is empty."""
        middle: list[str | Voice] = [] if voice is None or not self.has_voice else [voice]
        return [self.before, *middle, *([self.after] if self.after else [])]


DEFAULT_SYSTEM_PROMPT = SystemPrompt(
    before=(
        "You are a helpful assistant. You can accept audio and text input"
        " and output voice and text."
    ),
    after="",
    has_voice=False,
)

_CLONE_EN = "Clone the voice in the provided audio prompt."
_IMITATE_ZH = "模仿音频样本的音色并生成新的内容。"
_IMITATE_INPUT_ZH = "模仿输入音频中的声音特征。"


def _with_voice(mode: PromptMode, language: Language) -> SystemPrompt:
    match mode, language:
        case PromptMode.OMNI, Language.EN:
            return SystemPrompt(
                _CLONE_EN, "As an assistant, you will speak using this voice style."
            )
        case PromptMode.OMNI, _:
            return SystemPrompt(
                _IMITATE_ZH,
                "请用这种声音风格来为用户提供帮助。 请认真、高质量地回复用户的问题。"
                " 请用高自然度的方式和用户聊天。",
            )
        case PromptMode.AUDIO_ASSISTANT, Language.EN:
            return SystemPrompt(
                "Use the voice in the audio prompt to synthesize new content.",
                "You are a helpful assistant with the above voice style.",
            )
        case PromptMode.AUDIO_ASSISTANT, _:
            return SystemPrompt(
                _IMITATE_ZH,
                "你的任务是用这种声音模式来当一个助手。请认真、高质量地回复用户的问题。"
                "请用高自然度的方式和用户聊天。你是由面壁智能开发的人工智能助手：面壁小钢炮。",
            )
        case PromptMode.AUDIO_ROLEPLAY, Language.EN:
            return SystemPrompt(
                _CLONE_EN, "Try to role-play the character based on the audio prompt above."
            )
        case PromptMode.AUDIO_ROLEPLAY, _:
            return SystemPrompt(_IMITATE_INPUT_ZH, "假装你是上述音频中的人物，与我进行对话。")
        case PromptMode.VOICE_CLONING, Language.EN:
            return SystemPrompt(_CLONE_EN, "")
        case PromptMode.VOICE_CLONING, _:
            return SystemPrompt(_IMITATE_INPUT_ZH, "")
        case _:
            return DEFAULT_SYSTEM_PROMPT


def system_prompt(
    mode: str = PromptMode.DEFAULT, language: str = Language.EN, *, has_voice: bool = True
) -> SystemPrompt:
    """Return the system prompt of a mode.

    Texts that speak of "the audio prompt" make no sense without one, so every mode but voice
    cloning falls back to the default prompt when there is no voice sample.

    Raises:
        ValueError: unknown mode or language, or voice cloning without a sample.

    Source: docs/specification/model.md#3.4.
    """
    known_mode, known_language = PromptMode(mode), Language(language)
    if has_voice:
        return _with_voice(known_mode, known_language)
    if known_mode is PromptMode.VOICE_CLONING:
        raise ValueError("voice cloning needs a voice sample")
    return DEFAULT_SYSTEM_PROMPT


def message_text(role: str, content: str) -> str:
    """Return one closed message, as the chat template writes it without a generation prompt."""
    return f"{MESSAGE_START}{role}\n{content}{MESSAGE_END}"


def user_piece(content: str, opening: TurnOpening) -> str:
    """Return the text to feed for one piece of a user turn; the turn is left open."""
    header = f"{MESSAGE_START}user\n"
    match opening:
        case TurnOpening.FIRST:
            return header + content
        case TurnOpening.AFTER_REPLY:
            return SPEECH_END + MESSAGE_END + header + content
        case TurnOpening.AFTER_COMPLETE_REPLY:
            return MESSAGE_END + header + content
        case TurnOpening.CONTINUED:
            return content


def reply_prefix(
    *, enable_thinking: bool = False, use_tts_template: bool = True, is_user_turn_open: bool = True
) -> str:
    """Return the text that starts a reply, and ends a user's message that is still open.

    Without `enable_thinking` an empty thought is given.
    """
    return (
        (MESSAGE_END if is_user_turn_open else "")
        + f"{MESSAGE_START}assistant\n"
        + ("" if enable_thinking else EMPTY_THOUGHT)
        + (SPEECH_START if use_tts_template else "")
    )


def duplex_suffix(text: str = "") -> str:
    """Return what closes a duplex system message; `text` follows the voice sample."""
    return f"<|audio_end|>{text}<|im_end|>"


def duplex_prefix(system_text: str = DUPLEX_SYSTEM_PROMPT) -> str:
    """Return what a duplex session starts with; voice embeddings and `duplex_suffix` follow."""
    return f"{MESSAGE_START}system\n{system_text}\n<|audio_start|>"


Span = tuple[int, int]


@dataclass(frozen=True)
class Placeholder:
    """Ids with `<unk>` slots in them, and the (start, stop) of every run of slots, in order."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]


def audio_placeholder(n_embeddings: int, special: SpecialTokens) -> Placeholder:
    ids = (special.audio_start, *(special.unk,) * n_embeddings, special.audio_end)
    return Placeholder(ids, ((1, 1 + n_embeddings),))


def image_placeholder(
    grid: tuple[int, int] | None,
    query_num: int,
    special: SpecialTokens,
    newline: tuple[int, ...],
    number: tuple[int, ...] | None = None,
) -> Placeholder:
    """Return the placeholder of one picture: overview first, then its slices row by row.

    `grid` is (columns, rows) of slices, None for a picture left whole; `newline` the line feed
    between two rows of slices, and `number` the ids of the picture's number, if it has one.
    """
    slots = (special.unk,) * query_num
    overview = (special.image_start, *slots, special.image_end)
    cell = (special.slice_start, *slots, special.slice_end)
    parts = [Placeholder(overview, ((1, 1 + query_num),))]
    if number is not None:
        parts.insert(0, Placeholder((special.image_id_start, *number, special.image_id_end), ()))
    columns, rows = grid or (0, 0)
    for row in range(rows):
        if row:
            parts.append(Placeholder(newline, ()))
        parts += [Placeholder(cell, ((1, 1 + query_num),))] * columns
    return _joined(parts)


def _joined(parts: list[Placeholder]) -> Placeholder:
    ids: list[int] = []
    spans: list[Span] = []
    for part in parts:
        spans += [(start + len(ids), stop + len(ids)) for start, stop in part.spans]
        ids += part.ids
    return Placeholder(tuple(ids), tuple(spans))
