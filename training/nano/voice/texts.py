"""Texts of the target voice: the domain's replies and everyday English.

Everyday sentences come from two free collections (chitchat-dataset, MIT; chatterbot-corpus, BSD),
read out of their wheels.
"""

from __future__ import annotations

import json
import random
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from training.nano.domain.kinds import capitalised

PLAIN = re.compile(r"[A-Za-z][a-z']*(?:,? [A-Za-z][a-z']*)*[.!?]?")
WORD = re.compile(r"[a-z']+")
ANY_WORD = re.compile(r"[A-Za-z']+")
FEWEST_WORDS, MOST_WORDS = 2, 14
RAREST_WORD = 4  # rarer words are likely to be misspelt
WORDS_PER_LIST = (1, 5)
WORDS_COUNTED_UP = (5, 14)
MOST_CHANGED = 2


def everyday_sentences(chitchat: Path, chatterbot: Path) -> list[str]:
    """Return plain English sentences of 2 to 14 common words, each once, in a fixed order."""
    said = dict.fromkeys(_plain([*_chatterbot(chatterbot), *_chitchat(chitchat)]))
    counts = Counter(word for text in said for word in WORD.findall(text.lower()))
    return [
        text
        for text in said
        if all(counts[word] >= RAREST_WORD for word in WORD.findall(text.lower()))
    ]


def word_lists(words: Sequence[str], n_lists: int, seed: int) -> list[str]:
    """Return sequences of unrelated words, every second one longer and with commas.

    They train the speech decoder to read words instead of memorising sentences, and to keep its
    place in enumerations.
    """
    chooser = random.Random(seed)

    def some(counts: tuple[int, int]) -> list[str]:
        return chooser.choices(words, k=chooser.randint(*counts))

    def counted_up() -> str:
        first, *others = some(WORDS_COUNTED_UP)
        return ", ".join([capitalised(first), *others]) + "."

    return [
        counted_up() if number % 2 else " ".join(some(WORDS_PER_LIST)) for number in range(n_lists)
    ]


def with_other_words(texts: Sequence[str], n_texts: int, seed: int) -> list[str]:
    """Return distinct new sentences: texts with one or two words replaced by those of others.

    They train the speech decoder on words in new contexts.
    """
    chooser, known = random.Random(seed), set(texts)
    short = [text for text in texts if len(text.split()) <= MOST_WORDS]
    split = [ANY_WORD.findall(text) for text in short]
    inside = {word for found in split for word in found[1:]}  # names keep their capitals
    words = sorted(inside | {found[0].lower() for found in split if found[0] not in inside})
    made: dict[str, None] = {}
    while len(made) < n_texts:
        parts = re.split(f"({ANY_WORD.pattern})", chooser.choice(short))
        places = range(1, len(parts), 2)  # of the words, between separators
        for at in chooser.sample(places, k=min(len(places), chooser.randint(1, MOST_CHANGED))):
            word = chooser.choice(words)
            parts[at] = capitalised(word) if at == 1 else word
        text = "".join(parts)
        if text not in known:
            made[text] = None
    return list(made)


def common_words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts, most frequent first."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    return [word for word, count in counts.most_common() if count >= RAREST_WORD]


def _plain(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
            n_words = len(sentence.split())
            if FEWEST_WORDS <= n_words <= MOST_WORDS and PLAIN.fullmatch(sentence):
                yield capitalised(sentence)


def _chitchat(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        conversations = json.loads(archive.read("chitchat_dataset/dataset.json"))
    for conversation in conversations.values():
        for turn in conversation["messages"]:
            for message in turn:
                yield message["text"]


def _chatterbot(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("chatterbot_corpus/data/english/") and name.endswith(".yml"):
                for conversation in yaml.safe_load(archive.read(name))["conversations"]:
                    yield from (str(line) for line in conversation)
