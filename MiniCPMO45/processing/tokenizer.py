"""The tokenizer: Qwen2's byte-level BPE, and the control tokens that the model works with.

Every control token is looked up once, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from jinja2 import TemplateError
from transformers import Qwen2Tokenizer

# Punctuation that a spoken reply may not contain. Source: docs/specification/model.md#5.4.
ASCII_MARKS = (":", "#", "@", "*", "(", ")", "[", "]", "&", "/", "$")
FULL_WIDTH_MARKS = ("：", "；", "“", "”", "‘", "’", "【", "】", "「", "」", "（", "）")

UNK_TOKEN = "<unk>"
TOOL_CALL = "<tool_call>"  # begins a function call
END_OF_SEQUENCE = "</s>"  # optional


class TokenizerError(ValueError):
    """A checkpoint's tokenizer cannot be read or lacks control tokens."""


def _named(token: str) -> Any:  # Any: stands where the dataclass expects the field's own type
    return field(metadata={"token": token})


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the control tokens. Source: docs/specification/model.md#3.1."""

    end_of_sequence: int | None
    tool_call: int | None
    special_ids: frozenset[int]
    bad_token_ids: tuple[int, ...]
    ascii_mark_ids: tuple[int, ...]
    full_width_mark_ids: tuple[int, ...]
    unk: int = _named(UNK_TOKEN)
    endoftext: int = _named("<|endoftext|>")
    im_start: int = _named("<|im_start|>")
    im_end: int = _named("<|im_end|>")
    image_start: int = _named("<image>")
    image_end: int = _named("</image>")
    slice_start: int = _named("<slice>")
    slice_end: int = _named("</slice>")
    image_id_start: int = _named("<image_id>")
    image_id_end: int = _named("</image_id>")
    unit_start: int = _named("<unit>")
    unit_end: int = _named("</unit>")
    audio_start: int = _named("<|audio_start|>")
    audio_end: int = _named("<|audio_end|>")
    tts_bos: int = _named("<|tts_bos|>")
    tts_eos: int = _named("<|tts_eos|>")
    listen: int = _named("<|listen|>")
    speak: int = _named("<|speak|>")
    turn_eos: int = _named("<|turn_eos|>")
    chunk_eos: int = _named("<|chunk_eos|>")
    chunk_tts_eos: int = _named("<|chunk_tts_eos|>")
    tts_pad: int = _named("<|tts_pad|>")

    @classmethod
    def look_up(cls, vocabulary: MiniCPMOTokenizerFast) -> SpecialTokens:
        """Look every token up by name.

        Raises:
            TokenizerError: tokens are missing; the message lists all of them.
        """
        names = {f.name: f.metadata["token"] for f in fields(cls) if "token" in f.metadata}
        found = {name: vocabulary.token_id(token) for name, token in names.items()}
        missing = [names[name] for name, value in found.items() if value is None]
        if missing:
            raise TokenizerError(
                f"the vocabulary lacks {len(missing)} control tokens: {' '.join(missing)}"
            )
        return cls(
            **{name: value for name, value in found.items() if value is not None},
            end_of_sequence=vocabulary.token_id(END_OF_SEQUENCE),
            tool_call=vocabulary.token_id(TOOL_CALL),
            special_ids=vocabulary.special_ids,
            bad_token_ids=vocabulary.bad_token_ids,
            ascii_mark_ids=_single_ids(vocabulary, ASCII_MARKS),
            full_width_mark_ids=_single_ids(vocabulary, FULL_WIDTH_MARKS),
        )

    @property
    def chat_terminators(self) -> frozenset[int]:
        """Ids that end a one-shot reply: `<|im_end|>`, `<|endoftext|>`."""
        return frozenset((self.im_end, self.endoftext))

    @property
    def reply_terminators(self) -> frozenset[int]:
        """Ids that end a streamed reply: `<|tts_eos|>`, `<|im_end|>` and `</s>` where it exists."""
        extra = () if self.end_of_sequence is None else (self.end_of_sequence,)
        return frozenset((self.tts_eos, self.im_end, *extra))

    @property
    def chunk_terminators(self) -> frozenset[int]:
        """Ids that end a duplex unit: listen, end of chunk, end of spoken chunk."""
        return frozenset((self.listen, self.chunk_eos, self.chunk_tts_eos))

    @property
    def non_text_ids(self) -> frozenset[int]:
        """Control ids: never part of the text of a unit."""
        marks = (self.unit_start, self.unit_end, self.speak, self.turn_eos)
        speech = (self.tts_bos, self.tts_eos, self.tts_pad)
        return self.special_ids | self.chunk_terminators | {*marks, *speech}

    def spoken_count(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a reply are spoken: those before a function call."""
        return ids.index(self.tool_call) if self.tool_call in ids else len(ids)

    def spoken_reply_forbidden(self, full_width_marks_allowed: bool = False) -> tuple[int, ...]:
        """Return the sorted ids that a spoken streamed reply may not contain.

        Source: docs/specification/model.md#5.4.
        """
        wide = () if full_width_marks_allowed else self.full_width_mark_ids
        return tuple(sorted({*self.ascii_mark_ids, *wide, *self.bad_token_ids, self.unk}))

    def unit_forbidden(self) -> tuple[int, ...]:
        """Return the sorted ids excluded from a duplex decision once the chunk does not end.

        Source: docs/specification/model.md#6.5.
        """
        return tuple(sorted({*self.bad_token_ids, self.tts_pad, self.chunk_eos}))


def _single_ids(vocabulary: MiniCPMOTokenizerFast, marks: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of the marks that are single tokens, in order."""
    encoded = (vocabulary.encode(mark) for mark in marks)
    return tuple(ids[0] for ids in encoded if len(ids) == 1)


_WHOLE_FILE = "tokenizer.json"
_PART_FILES = ("vocab.json", "merges.txt")
_SETTINGS_FILE = "tokenizer_config.json"


class MiniCPMOTokenizerFast(Qwen2Tokenizer):
    """Qwen2's byte-level BPE with the model's control tokens and chat template."""

    def __init__(
        self,
        vocab: Any = None,  # Any: the library passes a mapping or a file name
        merges: Any = None,
        unk_token: str = UNK_TOKEN,
        bad_token_ids: Iterable[int] = (),
        **options: Any,
    ) -> None:
        """Build a tokenizer; options are those of `tokenizer_config.json`.

        `bad_token_ids` are never generated in speech.

        Raises:
            TokenizerError: an added token does not get the id it is stored with.
        """
        bad = tuple(bad_token_ids)
        super().__init__(vocab, merges, unk_token=unk_token, bad_token_ids=list(bad), **options)
        self.bad_token_ids = bad
        stored = options.get("added_tokens_decoder") or {}
        wrong = [(str(t), int(i)) for i, t in stored.items() if self.token_id(str(t)) != int(i)]
        if wrong:
            token, wanted = wrong[0]
            raise TokenizerError(
                f"{len(wrong)} added tokens cannot have the ids their files say, first {token}: "
                f"{wanted} wanted, {self.token_id(token)} found"
            )

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the same, with our errors
        cls, pretrained_model_name_or_path: str | Path, *inputs: Any, **options: Any
    ) -> Self:
        """Load the tokenizer files of a checkpoint.

        Raises:
            TokenizerError: files are missing or unreadable, or ids contradict each other.
        """
        folder = Path(pretrained_model_name_or_path)
        if folder.is_dir():
            _require_files(folder)
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *inputs, **options)
        except TokenizerError:
            raise
        except Exception as error:  # the compiled library raises plain Exception
            raise TokenizerError(f"the tokenizer of {folder} cannot be read: {error}") from error

    @cached_property
    def special(self) -> SpecialTokens:
        return SpecialTokens.look_up(self)

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(i for i, t in self.added_tokens_decoder.items() if t.special)

    def decode(  # type: ignore[override]  # typed for one text, as all of our callers use it
        self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """Decode ids, or as the library a batch of them to a list; invalid UTF-8 becomes U+FFFD."""
        text: Any = super().decode(token_ids, skip_special_tokens, **options)  # type: ignore[arg-type]
        return text

    def token_id(self, token: str) -> int | None:
        return self.backend_tokenizer.token_to_id(token)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Render messages of plain text with the checkpoint's chat template and its options.

        Raises:
            TokenizerError: there is no template, or rendering failed.
        """
        rows = [dict(message) for message in messages]
        try:
            text = self.apply_chat_template(rows, tokenize=False, **options)
        except (TemplateError, ValueError) as error:
            raise TokenizerError(f"the chat template failed: {error}") from error
        assert isinstance(text, str)
        return text


def _require_files(folder: Path) -> None:
    """Check that the files exist; without them the library builds an empty vocabulary."""
    needed = (_WHOLE_FILE,) if (folder / _WHOLE_FILE).is_file() else _PART_FILES
    missing = [name for name in (*needed, _SETTINGS_FILE) if not (folder / name).is_file()]
    if missing:
        raise TokenizerError(f"{', '.join(missing)} missing in {folder}")
