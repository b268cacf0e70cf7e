"""What the target voice says: the domain's replies and everyday English around them.

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

PLAIN = re.compile(r"[A-Za-z][a-z']*(?:,? [A-Za-z][a-z']*)*[.!?]?")
WORD = re.compile(r"[a-z']+")
FEWEST_WORDS, MOST_WORDS = 2, 14
RAREST_WORD = 4  # a word met less often is likely to be misspelt
WORDS_PER_LIST = (1, 5)


def everyday_sentences(chitchat: Path, chatterbot: Path) -> list[str]:
    """Return plain English sentences of 2 to 14 common words, each once, in a fixed order.

    Args:
        chitchat: wheel of `chitchat-dataset`.
        chatterbot: wheel of `chatterbot-corpus`.
    """
    said = dict.fromkeys(_plain([*_chatterbot(chatterbot), *_chitchat(chitchat)]))
    counts = Counter(word for text in said for word in WORD.findall(text.lower()))
    return [
        text
        for text in said
        if all(counts[word] >= RAREST_WORD for word in WORD.findall(text.lower()))
    ]


def word_lists(words: Sequence[str], n_lists: int, seed: int) -> list[str]:
    """Return sequences of one to five words that do not belong together.

    They teach the speech decoder to read words rather than to remember sentences.
    """
    chooser = random.Random(seed)
    fewest, most = WORDS_PER_LIST
    return [
        " ".join(chooser.choices(words, k=chooser.randint(fewest, most))) for _ in range(n_lists)
    ]


def common_words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts, the most frequent first."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    return [word for word, count in counts.most_common() if count >= RAREST_WORD]


def _plain(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
            n_words = len(sentence.split())
            if FEWEST_WORDS <= n_words <= MOST_WORDS and PLAIN.fullmatch(sentence):
                yield sentence[0].upper() + sentence[1:]


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
