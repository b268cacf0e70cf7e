"""Longer replies and repeated words: counting, lists, a story, jokes, repeat after me."""

from __future__ import annotations

from collections.abc import Iterable

from training.nano.domain.kinds import Intent, fixed, slotted
from training.nano.domain.spoken_numbers import DAYS, MONTHS, cardinal
from training.nano.domain.words import ADJECTIVES, LETTERS, NAMES, REPEATED

STORY = (
    "Once upon a time a small bird lived in an old tree. Every morning it sang for the sun. One day"
    " the sun did not come. The bird flew high above the clouds, and there the sun was sleeping. So"
    " the bird sang its best song. The sun woke up, laughed, and warmed the whole world again."
)
SECOND_STORY = (
    "There was a little boat that was afraid of the sea. It stayed near the shore and watched the"
    " big ships. One night a child fell into the water. The little boat forgot its fear and brought"
    " the child home. Since then it has been the bravest boat of all."
)
JOKES = (
    "Why did the robot go to sleep? It had a hard drive.",
    "What do you call a bear without teeth? A gummy bear.",
    "Why is six afraid of seven? Because seven ate nine.",
)
FEWEST, MOST = 3, 20
PHRASES_PER_WORD = 2


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) + "."


def _counting() -> tuple[Intent, Intent]:
    numbers = {cardinal(n): n for n in range(FEWEST, MOST + 1)}
    return (
        slotted(
            "count",
            (
                "(|please|can you|now) count (|up) to {0}.",
                "(|please|can you|) count from one to {0}.",
            ),
            ((word,) for word in numbers),
            lambda last: _listed(cardinal(n) for n in range(1, numbers[last] + 1)),
            5.0,
            "Count to ten.",
        ),
        slotted(
            "count_down",
            (
                "(|please|can you|now) count down from {0}.",
                "(|please|can you|) count backwards from {0}.",
            ),
            ((word,) for word in numbers),
            lambda first: _listed(cardinal(n) for n in range(numbers[first], 0, -1)),
            2.0,
        ),
    )


def _repeated() -> Intent:
    """Return the intent of repeating single words, names, and adjectives with nouns."""
    phrases = [
        f"{adjective} {word}"
        for index, word in enumerate(REPEATED)
        for adjective in (
            ADJECTIVES[(index * 5 + step * 7) % len(ADJECTIVES)] for step in range(PHRASES_PER_WORD)
        )
        if adjective != word
    ]
    said = dict.fromkeys([*REPEATED, *(cardinal(n) for n in range(31)), *NAMES, *phrases])
    return slotted(
        "repeat",
        (
            "(|please|can you|now) (say|repeat) {0}.",
            "(|please) repeat after me, {0}.",
            "(say after me,|say the word|repeat the word) {0}.",
        ),
        ((words,) for words in said),
        lambda words: f"{words}.",
        16.0,
        "Repeat after me, rainbow.",
    )


INTENTS = (
    *_counting(),
    _repeated(),
    *fixed(f"""
alphabet: {_listed(LETTERS)}
    (|please|can you) say the (alphabet|a b c) (|for me).
    what are the letters (|of the alphabet)?
days: {_listed(DAYS)}
    (|please|can you) (say|name|list|tell me) (|all) the days of the week.
    what are the days of the week?
months: {_listed(MONTHS)}
    (|please|can you) (say|name|list|tell me) (|all) the months (|of the year).
    what are the months (|of the year)?
story 4: {STORY}
    (|please|can you|could you) tell me (a|a short|a little) story (|please).
    i (want|would like) (to hear a|a) story (|please).
    do you know (a|any) (story|stories)?
    (read me|tell us) a story (|please).
another_story 2: {SECOND_STORY}
    (|please|can you) tell me (another|one more|a different|the other) story (|please).
    (another|one more|a second) story, please.
joke 2: {" / ".join(JOKES)}
    (|please|can you|could you) tell me (a|a good|another) joke (|please).
    do you know (a|any) (joke|jokes)?
    (make me laugh|say something funny) (|please).
rhyme: Roses are red, violets are blue. I am a small model, and I like you.
    (|please|can you) (tell|say|give) me a (poem|rhyme) (|please).
    do you know a (poem|rhyme)?
"""),
)
