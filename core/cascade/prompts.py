"""The language model's prompt: style, date, examples, and as much of the conversation as fits."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import SequenceMatcher
from itertools import chain, repeat
from typing import Final, Literal

from core.cascade.arithmetic import computed
from core.cascade.language import Line
from core.errors import ContextFullError
from core.protocols.duplex_context import PREVIOUS, SPEAK_NOW
from core.protocols.duplex_units import Speaker

# A model of 0.5 B parameters follows examples better than rules.
STYLE: Final = (
    "You are a friendly voice assistant who talks with people. "
    "Answer in one or two short sentences that sound natural when spoken aloud. No lists."
)
EXAMPLES: Final = (
    Line("user", "Hello, how are you?"),
    Line("assistant", "Hi! I'm fine, thank you. How about you?"),
    Line("user", "My name is Tom."),
    Line("assistant", "Nice to meet you, Tom! What would you like to talk about?"),
    Line("user", "I didn't sleep well."),
    Line("assistant", "Oh, I'm sorry to hear that. Is something on your mind?"),
)
COMPUTED: Final = "(A calculator says: {}. Say this result.)"
CONTEXT_TOKENS: Final = 3_000  # ours: leaves room for a long reply in llama.cpp's context
BYTES_PER_TOKEN: Final = 3  # ours, conservative: English has four or more
TOKENS_PER_LINE: Final = 5  # of the chat template
ROLES: Final[Mapping[Speaker, Literal["system", "user", "assistant"]]] = {
    Speaker.USER: "user",
    Speaker.ASSISTANT: "assistant",
    Speaker.DEVELOPER: "system",
}
# Speech without a transcript, as the protocols note it.
SPOKEN: Final = re.compile(r"\[the user spoke(?: for [\d.]+ s)?\]")
REPLY_WORDS: Final = 3  # ours: enough to recognize a reply by
SPEAKER: Final = re.compile(rf"^({'|'.join(Speaker)}): ", re.MULTILINE)


def count_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, for any language model."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def tokens_of(lines: Sequence[Line]) -> int:
    return sum(count_tokens(line.content) + TOKENS_PER_LINE for line in lines)


def fit_context(lines: list[Line]) -> list[Line]:
    """Return the system's lines and the newest others that fit into the context.

    Truncation leaves half of the context free, so that the cached prompt serves several turns.
    Raises `ContextFullError` if the newest line alone is too long.
    """
    tokens = tokens_of(lines)
    if tokens <= CONTEXT_TOKENS:
        return lines
    system = [line for line in lines if line.role == "system"]
    said = deque(line for line in lines if line.role != "system")
    while len(said) > 1 and tokens > CONTEXT_TOKENS // 2:
        tokens -= tokens_of([said.popleft()])
    if tokens > CONTEXT_TOKENS:
        raise ContextFullError(
            f"The message and its instructions have more than {CONTEXT_TOKENS} tokens, "
            "the most that this model reads at once."
        )
    return [*system, *said]


def prompt_of(
    lines: Sequence[Line], began: datetime, examples: Sequence[Line] = EXAMPLES
) -> list[Line]:
    """Return the prompt: style and the client's instructions, examples, then the conversation.

    The date is when the conversation `began`, so that its prompts share a cached prefix.
    """
    system = " ".join(line.content for line in lines if line.role == "system")
    date = f"It is {day_of(began)} {began.year}, {time_of(began)}."
    said: list[Line] = []
    for line in lines:
        if line.role == "system":
            continue
        if line.role == "user" and (fact := computed(line.content)):
            line = Line(line.role, f"{line.content} {COMPUTED.format(fact)}")
        if said and said[-1].role == line.role:
            line = Line(line.role, f"{said.pop().content} {line.content}")
        said.append(line)
    return [Line("system", f"{STYLE} {date} {system}".strip()), *examples, *said]


def day_of(now: datetime) -> str:
    return f"{now:%A}, {now.day} {now:%B}"


def time_of(now: datetime) -> str:
    return f"{now.hour % 12 or 12}:{now:%M %p}"


def split_suffix(suffix: str) -> tuple[str, list[Line]]:
    """Split the end of a prompt into instructions and the conversation so far.

    Text added to a live call restarts it with a prompt that quotes the conversation, but a model of
    0.5 B parameters answers no message quoted in its instructions. Notes become messages of the
    system, and what the model is to speak about one of the user. Marks stay for `with_added`.
    """
    quoted, *topics = suffix.split(SPEAK_NOW)
    instructions, _, said = quoted.partition(PREVIOUS)
    _, *found = SPEAKER.split(said)
    lines = [
        Line(ROLES[Speaker(who)], text.strip())
        for who, text in zip(found[::2], found[1::2], strict=True)
    ]
    lines += [Line("user", f"(Speak about this now: {topic})") for topic in topics]
    return instructions, [line for line in lines if line.content]


def with_added(heard: Sequence[Line], said: Sequence[Line]) -> list[Line]:
    """Return the conversation `said`, as the protocol knows it, with transcripts from `heard`.

    `heard` is the same conversation as the view knows it; what was deleted is still in there.
    """
    has_notes = any(line.role == "system" or SPOKEN.search(line.content) for line in said)
    if not heard or has_notes or said[-1].role != "user":
        return _with_transcripts(heard, said)
    # Without voice activity detection the protocol knows only replies and typed text.
    *_, added = _exchanges(said)
    *answered, waiting = _exchanges(heard)
    typed = " ".join(line.content for line in added)
    waiting = [line for line in waiting if line.content not in typed]
    return [*chain.from_iterable(answered), *waiting, *added]


def _with_transcripts(heard: Sequence[Line], said: Sequence[Line]) -> list[Line]:
    """Replace marks of the user's speech by the transcripts that the same reply follows."""
    known, wanted = _exchanges(heard), _exchanges(said)
    same = SequenceMatcher(None, [*map(_reply, wanted)], [*map(_reply, known)], autojunk=False)
    found: dict[int, list[Line]] = {}
    for first, first_known, length in same.get_matching_blocks():
        found |= {first + number: known[first_known + number] for number in range(length)}
    filled = (_filled(each, found.get(number, ())) for number, each in enumerate(wanted))
    return [*chain.from_iterable(filled)]


def _filled(exchange: Sequence[Line], heard: Sequence[Line]) -> list[Line]:
    typed = " ".join(line.content for line in exchange)
    spoken = [line.content for line in heard if line.role == "user" and line.content not in typed]
    texts = chain([" ".join(spoken)], repeat(""))  # the first mark stands for all
    lines = [
        Line(line.role, SPOKEN.sub(lambda _: next(texts), line.content).strip())
        for line in exchange
    ]
    return [line for line in lines if line.content]


def _exchanges(lines: Sequence[Line]) -> list[list[Line]]:
    """Split a conversation behind each reply; the last part has none."""
    parts: list[list[Line]] = [[]]
    for line in lines:
        parts[-1].append(line)
        if line.role == "assistant":
            parts.append([])
    return parts


def _reply(exchange: Sequence[Line]) -> tuple[str, ...]:
    """Return the first words of its reply, which may have been cut off."""
    replies = [line.content for line in exchange if line.role == "assistant"]
    return tuple(replies[0].split()[:REPLY_WORDS]) if replies else ()
