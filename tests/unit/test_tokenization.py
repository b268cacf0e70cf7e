"""Ids, control tokens and the chat template, on the tiny tokenizer and on the published one."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.tokenizer import (
    ASCII_MARKS,
    FULL_WIDTH_MARKS,
    UNK_TOKEN,
    MiniCPMOTokenizerFast,
    TokenizerError,
)
from MiniCPMO45.tiny.tokenizer import CONTROL_TOKENS, train_vocabulary
from tests.fakes.words import copy_published_words, tiny_tokenizer
from tests.goldens.places import FULL

PUBLISHED = FULL / "tiny_checkpoint"

# Source: docs/specification/model.md#3.1, #3.5, #5.4 and #6.9.
PUBLISHED_IDS = {
    "<unk>": 128_244,
    "<|endoftext|>": 151_643,
    "<|im_start|>": 151_644,
    "<|im_end|>": 151_645,
    "<tool_call>": 151_657,
    "</think>": 151_668,
    "<image>": 151_669,
    "</slice>": 151_680,
    "<image_id>": 151_681,
    "<unit>": 151_683,
    "</unit>": 151_684,
    "<focus>": 151_687,
    "</perception>": 151_692,
    "<|audio_start|>": 151_697,
    "<|audio_end|>": 151_699,
    "<|tts_bos|>": 151_703,
    "<|tts_eos|>": 151_704,
    "<|listen|>": 151_705,
    "<|speak|>": 151_706,
    "<|turn_eos|>": 151_717,
    "<|chunk_eos|>": 151_718,
    "<|chunk_tts_eos|>": 151_721,
    "<|tts_pad|>": 151_722,
    "<|timbre_7|>": 151_723,
    "<|timbre_31|>": 151_747,
}
REPLY_PREFIX = (151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271, 151703)
NEXT_USER_PREFIX = (151704, 151645, 198, 151644, 872, 198)
ASCII_MARK_IDS = (25, 2, 31, 9, 7, 8, 58, 60, 5, 14, 3)
WIDE_MARK_IDS = (5122, 24968, 2073, 854, 14009, 527, 10904, 10958, 12881, 10429, 9909, 7552)
N_PUBLISHED = 151_748
N_BAD = 6965

has_published = pytest.mark.skipif(
    not (PUBLISHED / "tokenizer_config.json").is_file(), reason="no published tokenizer here"
)


@pytest.fixture(scope="module")
def tiny() -> MiniCPMOTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def published() -> MiniCPMOTokenizerFast:
    return MiniCPMOTokenizerFast.from_pretrained(PUBLISHED)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Files as they are published, which a test may damage."""
    copy_published_words(tmp_path)
    return tmp_path


def test_all_control_tokens_exist_and_are_single_ids(tiny: MiniCPMOTokenizerFast) -> None:
    names = (UNK_TOKEN, *CONTROL_TOKENS)
    assert len(names) == len(set(names)) == 106
    ids = [tiny.token_id(name) for name in names]
    assert None not in ids
    assert [tiny.encode(name) for name in names] == [[i] for i in ids]
    assert ids[1:] == list(range(len(tiny) - 105, len(tiny)))  # added ones follow the base


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_in_composed_form(text: str) -> None:
    tokenizer = _without_controls()
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@cache
def _without_controls() -> MiniCPMOTokenizerFast:
    vocabulary = train_vocabulary()
    base = {token: i for i, token in enumerate(vocabulary.base)}
    return MiniCPMOTokenizerFast(base, list(vocabulary.merges))


def test_skipping_special_tokens_keeps_thoughts_and_tools(tiny: MiniCPMOTokenizerFast) -> None:
    ids = tiny.encode("<|im_start|><think>hm</think><|tts_bos|>Hello<tool_call><|timbre_9|>")
    assert tiny.decode(ids, skip_special_tokens=True) == "<think>hm</think>Hello<tool_call>"


def test_several_texts_are_decoded_together(tiny: MiniCPMOTokenizerFast) -> None:
    texts = ["Hello", "one two<|tts_eos|>"]
    rows = tiny(texts)["input_ids"]
    assert tiny.batch_decode(rows) == texts
    assert tiny.batch_decode(rows, skip_special_tokens=True) == ["Hello", "one two"]
    padded = tiny(texts, padding=True, return_tensors="pt")["input_ids"]
    assert tiny.batch_decode(padded, skip_special_tokens=True) == ["Hello", "one two"]
    assert tiny.decode(rows) == texts  # as in version 5 of the library
    assert tiny.decode(rows[0][0]) + tiny.decode(tuple(rows[0][1:])) == "Hello"


def test_an_unknown_token_maps_to_unk(tiny: MiniCPMOTokenizerFast) -> None:
    assert tiny.convert_tokens_to_ids("no such token") == tiny.special.unk
    assert tiny.convert_ids_to_tokens(tiny.special.unk) == "<unk>"
    assert tiny.token_id("no such token") is None


def test_terminators(tiny: MiniCPMOTokenizerFast) -> None:
    special = tiny.special
    found = tiny.token_id("</s>")
    assert special.reply_terminators == {special.tts_eos, special.im_end, found}
    assert special.chunk_terminators == {special.listen, special.chunk_eos, special.chunk_tts_eos}
    assert special.chat_terminators == {special.im_end, special.endoftext}


def test_full_width_marks_are_forbidden_on_request(tiny: MiniCPMOTokenizerFast) -> None:
    special = tiny.special
    ascii_ids = {tiny.encode(mark)[0] for mark in ASCII_MARKS}
    wide_ids = {tiny.encode(mark)[0] for mark in FULL_WIDTH_MARKS}
    fixed = set(special.spoken_reply_forbidden())
    reference = set(special.spoken_reply_forbidden(full_width_marks_allowed=True))
    assert len(wide_ids) == len(FULL_WIDTH_MARKS) == len(special.full_width_mark_ids)
    assert ascii_ids | {special.unk} <= reference
    assert fixed - reference == wide_ids - set(special.bad_token_ids)


def test_unit_decisions_never_draw_the_chunk_end_or_padding(tiny: MiniCPMOTokenizerFast) -> None:
    special = tiny.special
    assert set(special.unit_forbidden()) == {
        *special.bad_token_ids,
        special.tts_pad,
        special.chunk_eos,
    }


def test_carried_text_leaves_out_controls(tiny: MiniCPMOTokenizerFast) -> None:
    special = tiny.special
    assert {special.unk, special.listen, special.speak, special.unit_end} <= special.non_text_ids
    assert tiny.token_id("<think>") not in special.non_text_ids


def test_missing_control_tokens_are_one_error_that_lists_all(copied: Path) -> None:
    config = json.loads((copied / "tokenizer_config.json").read_text(encoding="utf8"))
    rows = config["added_tokens_decoder"]
    dropped = ["<|chunk_tts_eos|>", "<|tts_pad|>"]
    last = min(int(i) for i, row in rows.items() if row["content"] == dropped[0])
    config["added_tokens_decoder"] = {i: row for i, row in rows.items() if int(i) < last}
    config["additional_special_tokens"] = []
    (copied / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf8")
    (copied / "added_tokens.json").unlink()
    with pytest.raises(TokenizerError) as error:
        _ = MiniCPMOTokenizerFast.from_pretrained(copied).special
    assert all(token in str(error.value) for token in dropped)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(TokenizerError, match=name):
        MiniCPMOTokenizerFast.from_pretrained(copied)


def test_damaged_files_are_refused(copied: Path) -> None:
    merges = copied / "merges.txt"
    merges.write_text(merges.read_text(encoding="utf8") + "nonsense pair\n", encoding="utf8")
    with pytest.raises(TokenizerError, match="cannot be read"):
        MiniCPMOTokenizerFast.from_pretrained(copied)
    (copied / "vocab.json").write_text("[", encoding="utf8")
    with pytest.raises(TokenizerError, match="cannot be read"):
        MiniCPMOTokenizerFast.from_pretrained(copied)


def test_contradicting_added_ids_are_refused(copied: Path) -> None:
    config = json.loads((copied / "tokenizer_config.json").read_text(encoding="utf8"))
    rows = config["added_tokens_decoder"]
    first, second = sorted(rows, key=int)[-2:]
    rows[first], rows[second] = rows[second], rows[first]
    (copied / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf8")
    swapped = MiniCPMOTokenizerFast.from_pretrained(copied)  # ids follow the file, in id order
    assert swapped.token_id(rows[first]["content"]) == int(first)
    rows[str(int(second) + 7)] = rows.pop(second)
    (copied / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf8")
    (copied / "added_tokens.json").unlink()
    with pytest.raises(TokenizerError, match="wanted"):
        MiniCPMOTokenizerFast.from_pretrained(copied)


def test_tokenizer_json_is_read_first(copied: Path) -> None:
    parts = MiniCPMOTokenizerFast.from_pretrained(copied)
    parts.backend_tokenizer.save(str(copied / "tokenizer.json"))
    for name in ("vocab.json", "merges.txt"):
        (copied / name).unlink()
    whole = MiniCPMOTokenizerFast.from_pretrained(copied)
    text = "<|im_start|>Hello, 12 birds!<unit>"
    assert whole.encode(text) == parts.encode(text)
    assert whole.special == parts.special


def test_a_template_cannot_reach_out_of_its_sandbox(tiny: MiniCPMOTokenizerFast) -> None:
    evil = MiniCPMOTokenizerFast(chat_template="{{ messages.__class__.__mro__ }}")
    message = {"role": "user", "content": "a"}
    with pytest.raises(TokenizerError, match="template failed.*unsafe"):
        evil.render_chat([message])
    with pytest.raises(TokenizerError, match="template failed"):
        MiniCPMOTokenizerFast().render_chat([message])


def test_the_tiny_template_drops_old_thoughts(tiny: MiniCPMOTokenizerFast) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    expected = "".join(
        prompts.message_text(role, text)
        for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))
    )
    assert tiny.render_chat(messages) == expected


@has_published
def test_published_ids(published: MiniCPMOTokenizerFast) -> None:
    assert len(published) == N_PUBLISHED
    for token, expected in PUBLISHED_IDS.items():
        assert published.convert_tokens_to_ids(token) == expected
    names = (UNK_TOKEN, *CONTROL_TOKENS)
    assert [published.token_id(n) for n in names[1:]] == list(range(151_643, N_PUBLISHED))
    special = published.special
    assert tuple(published.encode(prompts.reply_prefix())) == REPLY_PREFIX
    opening = prompts.user_chunk("", prompts.TurnOpening.AFTER_REPLY)
    assert tuple(published.encode(opening)) == NEXT_USER_PREFIX
    assert tuple(published.encode(prompts.duplex_suffix())) == (151_699, 151_645)
    assert tuple(published.encode(prompts.CONTEXT_MARKER)) == (271, 19_702, 25, 220)
    assert special.ascii_mark_ids == ASCII_MARK_IDS
    assert special.full_width_mark_ids == WIDE_MARK_IDS
    assert special.reply_terminators == {151_704, 151_645, 128_247}
    assert len(special.bad_token_ids) == N_BAD
    assert special.bad_token_ids[:4] == (7, 8, 94, 95)


@has_published
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (prompts.duplex_prefix(), [151_644, 8948, 198, 76_509, 85_225, 50_830, 624, 151_697]),
        (
            prompts.duplex_prefix(prompts.SERVICE_DUPLEX_SYSTEM_PROMPT),
            [151_644, 8948, 198, 2610, 525, 264, 10_950, 17_847, 624, 151_697],
        ),
        (prompts.duplex_suffix(), [151_699, 151_645]),
    ],
)
def test_published_duplex_ids(published: MiniCPMOTokenizerFast, text: str, ids: list[int]) -> None:
    assert published.encode(text) == ids


@has_published
def test_special_flags_equal_the_published_ones(
    published: MiniCPMOTokenizerFast, tiny: MiniCPMOTokenizerFast
) -> None:
    for name in (UNK_TOKEN, *CONTROL_TOKENS):
        flags = [t.token_id(name) in t.special_ids for t in (published, tiny)]
        assert flags[0] == flags[1], name
