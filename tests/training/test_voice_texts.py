"""What the voice says is plain English of words that several people used."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import yaml

from training.nano.domain.catalogue import reply_texts
from training.nano.inputs import InputError
from training.nano.voice.stages import (
    CHITCHAT,
    HELD_OUT_IN,
    WORD_LISTS,
    choose_texts,
    fetch_texts,
    is_held_out,
)
from training.nano.voice.texts import RAREST_WORD, common_words, everyday_sentences, word_lists

PLAIN = ["Red blue.", "Blue red.", "Red red blue!", "Blue blue, red?"]
REFUSED = ["Red zyzzyva.", "Call 555 now!", "Red (blue).", "Red", "red blue " * 8]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The two collections in the form of their packages, in small."""
    folder = tmp_path_factory.mktemp("wheels")
    chitchat, chatterbot = folder / "chitchat.whl", folder / "chatterbot.whl"
    talk = {"messages": [[{"text": text} for text in [" ".join(PLAIN), *REFUSED]]]}
    with zipfile.ZipFile(chitchat, "w") as archive:
        archive.writestr("chitchat_dataset/dataset.json", json.dumps({"a": talk}))
    lines = {"conversations": [["red blue blue", "red blue blue"]]}
    with zipfile.ZipFile(chatterbot, "w") as archive:
        archive.writestr("chatterbot_corpus/data/english/ai.yml", yaml.safe_dump(lines))
        archive.writestr("chatterbot_corpus/data/french/ai.yml", "conversations: [[Bonjour]]")
    return chitchat, chatterbot


def test_sentences_are_plain_and_their_words_common(wheels: tuple[Path, Path]) -> None:
    assert everyday_sentences(*wheels) == ["Red blue blue", *PLAIN]


def test_lists_take_common_words_only() -> None:
    words = common_words(["red blue"] * RAREST_WORD + ["green"])
    assert sorted(words) == ["blue", "red"]
    lists = word_lists(words, 50, seed=1)
    assert lists == word_lists(words, 50, seed=1)
    assert {word for text in lists for word in text.split()} == {"red", "blue"}
    assert {len(text.split()) for text in lists} == {1, 2, 3, 4, 5}


def test_every_reply_of_the_domain_is_among_the_texts(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    choose_texts(*wheels, tmp_path / "texts.json")
    texts = json.loads((tmp_path / "texts.json").read_text(encoding="utf8"))
    assert set(reply_texts()) <= set(texts)
    assert len(texts) == len(reply_texts()) + 1 + len(PLAIN) + WORD_LISTS


def test_a_small_share_of_the_texts_is_held_out() -> None:
    replies = reply_texts()
    share = sum(map(is_held_out, replies)) / len(replies)
    assert 0.5 / HELD_OUT_IN < share < 2 / HELD_OUT_IN


def test_a_collection_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / CHITCHAT.file).write_bytes(b"another one")
    with pytest.raises(InputError):
        fetch_texts(tmp_path, tmp_path / "texts.json")
