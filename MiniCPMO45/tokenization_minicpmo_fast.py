"""The tokenizer of a checkpoint folder: byte-level BPE, added tokens, chat template.

It executes nothing of the folder: the template runs in a sandbox and Python files are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from MiniCPMO45.special_tokens import SpecialTokens

__all__ = ["MiniCPMOTokenizerFast", "SpecialTokens", "TokenizerError", "byte_level_tokenizer"]

# How text is cut before byte-pair merging. Source: the published Qwen2 tokenizer.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UNK_TOKEN = "<unk>"


class TokenizerError(ValueError):
    """A checkpoint folder's tokenizer files are missing or contradict each other."""


@dataclass(frozen=True)
class AddedTokenEntry:
    """One row of `added_tokens_decoder`."""

    id: int
    content: str
    is_special: bool


def byte_level_tokenizer(model: models.BPE) -> Tokenizer:
    """Wrap a byte-pair model the way Qwen2 does: NFC, its split pattern, byte level, no BOS."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class MiniCPMOTokenizerFast:
    """Text to ids and back, control tokens by name, chat template."""

    def __init__(
        self,
        backend: Tokenizer,
        chat_template: str | None = None,
        bad_token_ids: Iterable[int] = (),
    ) -> None:
        """Wrap a ready tokenizer.

        Args:
            backend: a tokenizer with its added tokens.
            chat_template: Jinja source, or None if the folder has none.
            bad_token_ids: ids that must never be spoken.
        """
        self._backend = backend
        self.chat_template = chat_template
        self.bad_token_ids = tuple(bad_token_ids)
        self.special_ids = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._unk_id = backend.token_to_id(UNK_TOKEN)

    @classmethod
    def from_folder(cls, folder: Path) -> MiniCPMOTokenizerFast:
        """Read the tokenizer files of a checkpoint.

        Args:
            folder: holds `tokenizer.json`, or `vocab.json` and `merges.txt`; and
                `tokenizer_config.json`, optionally `added_tokens.json`.

        Raises:
            TokenizerError: files are missing or unreadable, or ids contradict each other.
        """
        settings = _read_json(folder / "tokenizer_config.json")
        backend = _read_backend(folder)
        _add_tokens(backend, _added_tokens(folder, settings))
        template = settings.get("chat_template")
        template_file = folder / "chat_template.jinja"
        if template is None and template_file.is_file():
            template = template_file.read_text(encoding="utf8")
        return cls(backend, template, settings.get("bad_token_ids") or ())

    def __len__(self) -> int:
        """Number of ids, added tokens included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special(self) -> SpecialTokens:
        """Every control token by name."""
        return SpecialTokens.look_up(self)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; control tokens spelled out in it become their ids."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids; bytes that form no character become U+FFFD.

        Args:
            ids: token ids.
            skip_special_tokens: leave out tokens flagged special.
        """
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """Return the id of an exact vocabulary entry, or None."""
        return self._backend.token_to_id(token)

    def convert_token_to_id(self, token: str) -> int:
        """Return the id of an exact vocabulary entry, `<unk>`'s if there is none.

        Raises:
            TokenizerError: neither the entry nor `<unk>` exists.
        """
        found = self._backend.token_to_id(token)
        if found is not None:
            return found
        if self._unk_id is None:
            raise TokenizerError(f"{token!r} is not in the vocabulary and there is no {UNK_TOKEN}")
        return self._unk_id

    def convert_id_to_token(self, token_id: int) -> str | None:
        """Return the vocabulary entry of an id, or None."""
        return self._backend.id_to_token(token_id)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render messages with the folder's template.

        Args:
            messages: each with `role` and `content`, media already replaced by markers.
            add_generation_prompt: end with the start of a reply.
            enable_thinking: leave the thought to the model.
            use_tts_template: ask for a reply that can be spoken.
            tools: function descriptions for the template.

        Raises:
            TokenizerError: the folder has no template, or rendering failed.
        """
        if self._template is None:
            raise TokenizerError("the checkpoint has no chat template")
        try:
            return self._template.render(
                messages=list(messages),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                use_tts_template=use_tts_template,
            )
        except TemplateError as error:
            raise TokenizerError(f"the chat template failed: {error}") from error

    @cached_property
    def _template(self) -> Any:  # Any: jinja2 compiles to a class of the environment
        if self.chat_template is None:
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _plain_json
        environment.globals["raise_exception"] = _refuse
        return environment.from_string(self.chat_template)


def _plain_json(value: object, indent: int | None = None) -> str:
    """JSON without the HTML escapes of Jinja's own filter, which templates do not expect."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: str) -> str:
    raise TemplateError(reason)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8")
    except FileNotFoundError as error:
        raise TokenizerError(f"{path.name} is missing in {path.parent}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8 text: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise TokenizerError(f"{path} does not hold a JSON object")
    return values


def _read_backend(folder: Path) -> Tokenizer:
    whole = folder / "tokenizer.json"
    if whole.is_file():
        backend = Tokenizer.from_str(json.dumps(_read_json(whole)))
        backend.no_truncation()
        backend.no_padding()
        return backend
    vocab = _read_json(folder / "vocab.json")
    return byte_level_tokenizer(models.BPE(vocab, _read_merges(folder / "merges.txt", vocab)))


def _read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise TokenizerError(f"{path}, line {number}: {line!r} is no pair of the vocabulary")
        merges.append((left, right))
    return merges


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> list[AddedTokenEntry]:
    entries = {
        int(i): AddedTokenEntry(int(i), row["content"], bool(row.get("special", False)))
        for i, row in (settings.get("added_tokens_decoder") or {}).items()
    }
    plain = folder / "added_tokens.json"
    if plain.is_file():
        for content, i in _read_json(plain).items():
            entries.setdefault(int(i), AddedTokenEntry(int(i), content, False))
    return [entries[i] for i in sorted(entries)]


def _add_tokens(backend: Tokenizer, entries: Sequence[AddedTokenEntry]) -> None:
    """Add tokens in id order, so that new ones get the ids their files say."""
    backend.add_tokens(
        [AddedToken(e.content, normalized=False, special=e.is_special) for e in entries]
    )
    wrong = [e for e in entries if backend.token_to_id(e.content) != e.id]
    if wrong:
        first = wrong[0]
        raise TokenizerError(
            f"{len(wrong)} added tokens cannot have the ids their files say, first {first.content}:"
            f" {first.id} wanted, {backend.token_to_id(first.content)} found"
        )
