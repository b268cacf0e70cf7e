"""Selection of the texts of the target voice."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
import yaml

from core.packages import AssetsError
from training.nano.domain.catalogue import reply_texts, words_of
from training.nano.voice.stages import (
    CHANGED_REPLIES,
    HELD_OUT_IN,
    WORD_LISTS,
    choose_texts,
    fetch_texts,
    is_held_out,
)
from training.nano.voice.texts import (
    RAREST_WORD,
    common_words,
    everyday_sentences,
    with_other_words,
    word_lists,
)

PLAIN = ["Red blue.", "Blue red.", "Red red blue!", "Blue blue, red?"]
REFUSED = ["Red zyzzyva.", "Call 555 now!", "Red (blue).", "Red", "red blue " * 8]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    chitchat, chatterbot = folder / "chitchat.whl", folder / "chatterbot.whl"
    dialogue = {"messages": [[{"text": text} for text in [" ".join(PLAIN), *REFUSED]]]}
    with zipfile.ZipFile(chitchat, "w") as archive:
        archive.writestr("chitchat_dataset/dataset.json", json.dumps({"a": dialogue}))
    lines = {"conversations": [["red blue blue", "red blue blue"]]}
    with zipfile.ZipFile(chatterbot, "w") as archive:
        archive.writestr("chatterbot_corpus/data/english/ai.yml", yaml.safe_dump(lines))
        archive.writestr("chatterbot_corpus/data/french/ai.yml", "conversations: [[Bonjour]]")
    return chitchat, chatterbot


def test_sentences_have_common_words_only(wheels: tuple[Path, Path]) -> None:
    assert everyday_sentences(*wheels) == ["Red blue blue", *PLAIN]


def test_word_lists_have_common_words_only() -> None:
    words = common_words(["red blue"] * RAREST_WORD + ["green"])
    assert sorted(words) == ["blue", "red"]
    lists = word_lists(words, 50, seed=1)
    assert lists == word_lists(words, 50, seed=1)
    assert {word for text in lists for word in re.findall(r"\w+", text.lower())} == {"red", "blue"}
    spoken, counted = lists[::2], lists[1::2]
    assert {len(text.split()) for text in spoken} == {1, 2, 3, 4, 5}
    assert all(re.fullmatch(r"[RB]\w+(, \w+){4,13}\.", text) for text in counted)


def test_texts_include_every_reply_of_the_domain(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    choose_texts(*wheels, tmp_path / "texts.json")
    texts = json.loads((tmp_path / "texts.json").read_text(encoding="utf8"))
    assert set(reply_texts()) <= set(texts)
    n_made = WORD_LISTS + CHANGED_REPLIES
    assert len(texts) == len(reply_texts()) + 1 + len(PLAIN) + n_made


def test_some_words_are_replaced() -> None:
    texts = ["A hen has two legs.", "Today is Monday.", "Red, blue, green."]
    made = with_other_words(texts, 40, seed=1)
    assert made == with_other_words(texts, 40, seed=1)
    assert len(set(made)) == 40 and not set(made) & set(texts)
    known = {word for text in texts for word in words_of(text)}
    for text in made:
        assert set(words_of(text)) <= known
        assert text[0].isupper() and text.endswith(".")
        changes = [
            sum(a != b for a, b in zip(words_of(text), words_of(origin), strict=True))
            for origin in texts
            if len(words_of(origin)) == len(words_of(text))
        ]
        assert 1 <= min(changes) <= 2


def test_a_small_share_of_the_texts_is_held_out() -> None:
    replies = reply_texts()
    share = sum(map(is_held_out, replies)) / len(replies)
    assert 0.5 / HELD_OUT_IN < share < 2 / HELD_OUT_IN


def test_package_with_another_digest_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "chitchat_dataset-0.9.0-py3-none-any.whl").write_bytes(b"another one")
    with pytest.raises(AssetsError):
        fetch_texts(tmp_path, tmp_path / "texts.json")
