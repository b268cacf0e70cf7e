"""The tiny checkpoint's tokenizer: a small byte-level BPE and the published control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.prompts import Language, PromptMode
from MiniCPMO45.processing.tokenizer import (
    ASCII_MARKS,
    FULL_WIDTH_MARKS,
    UNK_TOKEN,
    MiniCPMOTokenizerFast,
)

SPOKEN_TEXT = """
Hello, how are you today? I am fine, thank you. It is good to hear your voice again.
Yes, I can hear you. No, I can not see it yet. Please tell me more about it.
The morning is bright and the window is open. A small bird sings on the old roof.
We walk along the river and talk about the weather. The water is cold and clear.
What time is it now? It is almost seven. The train leaves in a few minutes.
My friend lives near the station and works in a garden with many red flowers.
Can you help me find the right way? Of course, go straight and then turn left.
She reads a long book while he makes some tea in the kitchen.
The children play in the yard, run to the door and laugh very loud.
I like warm bread, green apples and a little honey. Do you want to eat with us?
Let me think for a moment. That is a nice question, and the answer is not easy.
There are three cups on the table, two are white and one is blue.
Last night the moon was round and the whole street was quiet.
One, two, three, four, five, six, seven, eight, nine, ten.
I see a dog, a cat and a big tree in this picture. The light comes from the right.
Maybe we should wait here until the rain stops. Then we can go home together.
Your music sounds great! Could you sing that song once more, but slowly?
Thank you for the call. Have a good day and see you soon. Goodbye!
你好，今天天气很好。请问现在几点了？我听见你的声音了，谢谢你。
我们一起去河边走走吧。桌子上有三个杯子。早上好，晚安，再见！
我喜欢喝茶，也喜欢听音乐。请你慢一点说，我想一想再回答。
"""
"""Everyday sentences; the tiny model prefers their words."""

CHAT_TEMPLATE = """
{%- set turn = namespace(last_question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set turn.last_question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set words = message.content %}
    {%- if message.role == 'assistant' and loop.index0 < turn.last_question %}
        {%- set words = words.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ words ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
    {%- if use_tts_template is defined and use_tts_template %}
        {{- '<|tts_bos|>' }}
    {%- endif %}
{%- endif %}
"""

_REPEATS = 20  # so that roles and punctuation become single tokens


def training_texts() -> list[str]:
    system = [
        text
        for mode in PromptMode
        for language in Language
        for text in prompts.system_prompt(mode, language).parts(None)
    ]
    often = ["system\n", "user\n", "assistant\n", "\n\n", *ASCII_MARKS, *FULL_WIDTH_MARKS]
    duplex = [
        prompts.DUPLEX_SYSTEM_PROMPT,
        prompts.SERVICE_DUPLEX_SYSTEM_PROMPT,
        prompts.CONTEXT_MARKER,
    ]
    return [*SPOKEN_TEXT.strip().split("\n"), *system, *duplex, *often * _REPEATS]


MERGES = 1000
CONTROL_TOKENS = tuple(
    (
        "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> "
        "<|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> "
        "<|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> "
        "<|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> "
        "</tool_response> <think> </think> <image> </image> <ref> </ref> <box> </box> <quad> "
        "</quad> <point> </point> <slice> </slice> <image_id> </image_id> <unit> </unit> <answer> "
        "</answer> <focus> </focus> <line> </line> <perception> </perception> <source_image> "
        "</source_image> <image_save_to> </image_save_to> <|audio_start|> <|audio|> <|audio_end|> "
        "<|spk_bos|> <|spk|> <|spk_eos|> <|tts_bos|> <|tts_eos|> <|listen|> <|speak|> "
        "<|interrupt|> <|vad_start|> <|vad_end|> <|emotion_start|> <|emotion_end|> <|speed_start|> "
        "<|speed_end|> <|pitch_start|> <|pitch_end|> <|turn_bos|> <|turn_eos|> <|chunk_eos|> "
        "<|chunk_bos|> <|chunk_tts_bos|> <|chunk_tts_eos|> <|tts_pad|>"
    ).split()
) + tuple(f"<|timbre_{number}|>" for number in range(7, 32))
"""Added tokens in published id order. Source: docs/specification/model.md#3.1."""

PLAIN_SLOTS = (UNK_TOKEN, "<s>", "</s>")  # base entries that no text is encoded to
MODEL_MAX_LENGTH = 131_072
_NOT_SPECIAL = frozenset(  # not removed by `skip_special_tokens`
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
    "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>".split()
)
_UNSPEAKABLE = frozenset("()（）")


@dataclass(frozen=True)
class TinyVocabulary:
    """Base entries and added tokens in id order; the last `n_spare` base entries are unused."""

    base: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    added: tuple[str, ...]
    n_spare: int = 0

    @property
    def size(self) -> int:
        return len(self.base) + len(self.added)

    def id_of(self, token: str) -> int:
        return (*self.base, *self.added).index(token)


def train_vocabulary(texts: Iterable[str] | None = None, merges: int = MERGES) -> TinyVocabulary:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer = _byte_level()
    tokenizer.train_from_iterator(training_texts() if texts is None else texts, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    pairs = tuple((left, right) for left, right in trained["merges"])
    words = sorted(trained["vocab"], key=trained["vocab"].__getitem__)[len(alphabet) :]
    return TinyVocabulary((*alphabet, *PLAIN_SLOTS, *words), pairs, CONTROL_TOKENS)


def make_tokenizer(vocabulary: TinyVocabulary) -> MiniCPMOTokenizerFast:
    first = len(vocabulary.base)
    ids = {UNK_TOKEN: vocabulary.id_of(UNK_TOKEN)}
    ids |= {token: first + i for i, token in enumerate(vocabulary.added)}
    added = {
        i: AddedToken(token, special=token not in _NOT_SPECIAL, normalized=False)
        for token, i in ids.items()
    }
    return MiniCPMOTokenizerFast(
        {token: i for i, token in enumerate(vocabulary.base)},
        list(vocabulary.merges),
        bad_token_ids=unspeakable_ids(vocabulary),
        added_tokens_decoder=added,
        additional_special_tokens=[token.content for token in added.values() if token.special],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=MODEL_MAX_LENGTH,
    )


def unspeakable_ids(vocabulary: TinyVocabulary) -> list[int]:
    """Return base ids that are no complete characters or contain a bracket."""
    texts = (base_text(token) for token in vocabulary.base)
    return [i for i, text in enumerate(texts) if text is None or _UNSPEAKABLE & set(text)]


def spoken_ids(vocabulary: TinyVocabulary) -> list[int]:
    """Return base ids that are whole words of the everyday sentences."""
    pre_tokenizer = _byte_level().pre_tokenizer
    assert pre_tokenizer is not None
    words = {word for word, _ in pre_tokenizer.pre_tokenize_str(SPOKEN_TEXT)}
    return [
        i
        for i, token in enumerate(vocabulary.base)
        if token in words and any(c.isalpha() for c in base_text(token) or "")
    ]


def base_text(token: str) -> str | None:
    """Return the text of a base entry, None if its bytes are no complete characters."""
    text = decoders.ByteLevel().decode([token])
    return None if "\ufffd" in text else text


def write_json(path: Path, values: Any, indent: int | None = 2) -> None:
    text = json.dumps(values, ensure_ascii=False, indent=indent)
    path.write_text(text + "\n", encoding="utf8")


def _byte_level() -> Tokenizer:
    """Return an untrained tokenizer with the published pre-tokenization."""
    published = MiniCPMOTokenizerFast().backend_tokenizer
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = published.normalizer
    tokenizer.pre_tokenizer = published.pre_tokenizer
    tokenizer.decoder = published.decoder
    return tokenizer
