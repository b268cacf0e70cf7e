"""The tokenizer: Qwen2's byte-level BPE with the published control tokens.

It executes nothing of the checkpoint: chat templates run in the library's sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from jinja2 import TemplateError
from transformers import Qwen2Tokenizer

from MiniCPMO45.special_tokens import UNK_TOKEN, SpecialTokens, TokenizerError

__all__ = ["MiniCPMOTokenizerFast", "SpecialTokens", "TokenizerError"]

_WHOLE_FILE = "tokenizer.json"
_PART_FILES = ("vocab.json", "merges.txt")
_SETTINGS_FILE = "tokenizer_config.json"


class MiniCPMOTokenizerFast(Qwen2Tokenizer):
    """Text to ids and back, control tokens by name, chat template."""

    def __init__(
        self,
        vocab: Any = None,  # Any: the library hands in a mapping or a file's name
        merges: Any = None,
        unk_token: str = UNK_TOKEN,
        bad_token_ids: Iterable[int] = (),
        **options: Any,
    ) -> None:
        """Make a tokenizer; use `from_pretrained` for one of a checkpoint.

        Args:
            vocab: ids of the base entries.
            merges: pairs of entries, most important first.
            unk_token: stands for media and for what is unknown.
            bad_token_ids: ids that must never be spoken.
            options: as the library stores them in `tokenizer_config.json`.

        Raises:
            TokenizerError: an added token cannot have the id it is stored with.
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
        """Read the tokenizer files of a checkpoint.

        Args:
            pretrained_model_name_or_path: a folder, or a hub id.
            inputs: as the library takes them.
            options: as the library takes them.

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
        except Exception as error:  # the library and its compiled part raise errors of any kind
            raise TokenizerError(f"the tokenizer of {folder} cannot be read: {error}") from error

    @cached_property
    def special(self) -> SpecialTokens:
        """Every control token the model works with, by name."""
        return SpecialTokens.look_up(self)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids flagged special."""
        return frozenset(i for i, t in self.added_tokens_decoder.items() if t.special)

    def decode(  # type: ignore[override]  # one text, not a batch of them
        self, token_ids: Sequence[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """Return the text of ids; bytes that form no character become U+FFFD.

        Args:
            token_ids: ids of one text.
            skip_special_tokens: leave out tokens flagged special.
            options: as the library takes them.
        """
        text = super().decode(list(token_ids), skip_special_tokens, **options)
        assert isinstance(text, str)
        return text

    def encode_said(self, text: str) -> list[int]:
        """Return the ids of what somebody says: control tokens that it spells out are left out."""
        return [token for token in self.encode(text) if token not in self.special.untold_ids]

    def token_id(self, token: str) -> int | None:
        """Return the id of an exact vocabulary entry, or None."""
        return self.backend_tokenizer.token_to_id(token)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
    ) -> str:
        """Render messages with the checkpoint's chat template.

        Args:
            messages: each with `role` and `content`, media already replaced by markers.
            add_generation_prompt: end with the start of a reply.
            enable_thinking: leave the thought to the model.
            use_tts_template: ask for a reply that can be spoken.

        Raises:
            TokenizerError: there is no template, or rendering failed.
        """
        try:
            text = self.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                use_tts_template=use_tts_template,
            )
        except (TemplateError, ValueError) as error:
            raise TokenizerError(f"the chat template failed: {error}") from error
        assert isinstance(text, str)
        return text


def _require_files(folder: Path) -> None:
    """Without its parts the library would make an empty vocabulary."""
    needed = (_WHOLE_FILE,) if (folder / _WHOLE_FILE).is_file() else _PART_FILES
    missing = [name for name in (*needed, _SETTINGS_FILE) if not (folder / name).is_file()]
    if missing:
        raise TokenizerError(f"{', '.join(missing)} missing in {folder}")
