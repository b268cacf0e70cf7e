"""The language model's prompt, and predefined answers to questions that it gets wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from core.cascade.arithmetic import computed
from core.cascade.language import Line
from core.errors import ContextFullError

# A model of 0.5 B parameters follows examples better than rules.
STYLE: Final = (
    "You are a friendly voice assistant who talks with people. "
    "Answer in one or two short sentences that sound natural when spoken aloud. No lists."
)
EXAMPLES: Final = (
    Line("user", "Hello, who are you?"),
    Line(
        "assistant",
        "Hi! I'm a small voice assistant that runs on this computer: three little models that "
        "listen, think and speak. I'm only a stand-in for MiniCPM-o.",
    ),
    Line("user", "What's the weather today? And what's in the news?"),
    Line(
        "assistant",
        "I'm sorry, I can't look things up, so I don't know the weather or the news.",
    ),
    Line("user", "I didn't sleep well."),
    Line("assistant", "Oh, I'm sorry to hear that. Is something on your mind?"),
)
COMPUTED: Final = "(A calculator says: {}. Say this result.)"
CONTEXT_TOKENS: Final = 3_000  # ours: leaves room for a long reply in llama.cpp's context
BYTES_PER_TOKEN: Final = 3  # ours, conservative: English has four or more
TOKENS_PER_LINE: Final = 5  # of the chat template


def count_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, for any language model."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def tokens_of(lines: Sequence[Line]) -> int:
    return sum(count_tokens(line.content) + TOKENS_PER_LINE for line in lines)


def fit_context(lines: list[Line]) -> list[Line]:
    """Return the system's lines and the newest others that fit into the context.

    Truncation leaves half of the context free, so that the cached prompt serves several turns.

    Raises:
        ContextFullError: the newest line alone is too long.
    """
    if tokens_of(lines) <= CONTEXT_TOKENS:
        return lines
    system = [line for line in lines if line.role == "system"]
    said = [line for line in lines if line.role != "system"]
    while len(said) > 1 and tokens_of([*system, *said]) > CONTEXT_TOKENS // 2:
        del said[0]
    if tokens_of([*system, *said]) > CONTEXT_TOKENS:
        raise ContextFullError(
            f"The message and its instructions have more than {CONTEXT_TOKENS} tokens, "
            "the most that this model reads at once."
        )
    return [*system, *said]


def prompt_of(lines: Sequence[Line], began: datetime) -> list[Line]:
    """Return the prompt: style and the client's instructions, examples, then the conversation.

    Args:
        lines: of the conversation; system lines are the client's instructions.
        began: start of the conversation; constant, so that its prompts share a cached prefix.
    """
    system = " ".join(line.content for line in lines if line.role == "system")
    date = f"It is {began:%A}, {began.day} {began:%B %Y}, {began.hour}:{began:%M}."
    said: list[Line] = []
    for line in lines:
        if line.role == "system":
            continue
        if line.role == "user" and (fact := computed(line.content)):
            line = Line(line.role, f"{line.content} {COMPUTED.format(fact)}")
        if said and said[-1].role == line.role:
            line = Line(line.role, f"{said.pop().content} {line.content}")
        said.append(line)
    return [Line("system", f"{STYLE} {date} {system}".strip()), *EXAMPLES, *said]


ABOUT_PICTURE: Final = re.compile(
    r"\b(do|can|could|did) you see\b|\bwhat(?: i|')s (this|that|it)\b|\blook at\b|\bdescribe\b"
    r"|\b(what|which) (colou?r|shape|number|digit)\b|\bam i (holding|showing|wearing)\b"
    r"|\bhow many (are there|fingers|things|of them)\b|\b(picture|image|photo|camera)\b"
)
# Without a picture: questions that knowledge cannot answer.
ABOUT_MISSING_PICTURE: Final = re.compile(
    r"\b(do|can|could|did) you see (me|my|this|that|it|anything|what|now|here|the \w+)\b"
    r"|\bwhat do you see\b|\bam i (holding|showing|wearing)\b"
    r"|\b(what|which) (colou?r|shape|number|digit) (is (this|that|it|my \w+)|am i|do you see)\b"
    r"|\b(the|this|that|my) (picture|image|photo|camera)\b"
)
PICTURE_MARK: Final = "(Of the picture: "
UNRECOGNIZED: Final = "you cannot make out what is on it. Say so."
LOOKING_UP: Final = re.compile(
    r"\b(weather|forecast|news|headlines|traffic|stock price)\b.*"
    r"\b(today|tonight|now|tomorrow|this week|in|for|like|latest|here)\b"
    r"|\b(what|how|tell)\b.{0,24}\b(weather|news|headlines|forecast|traffic)\b"
    r"|\bis it (raining|snowing|cold|hot|warm)\b"
    r"|\bwho won\b.*\b(today|yesterday|last night)\b"
)
IDENTITY: Final = re.compile(
    r"\b(who|what) are you\b|\b(what|which) (\w+ )?(model|ai) are you\b"
    r"|\bare you (an? |the )?(\w+ )?"
    r"(chatgpt|gpt|ai|human|person|robot|bot|real|minicpm|qwen|siri|alexa|model)\b"
    r"|\byour name\b|\bwho (made|built|created) you\b"
)
MY_NAME: Final = re.compile(
    r"\bwho am i\b|\b(what's|what is|what was|know|remember|say|forgotten|forget) my name\b"
)
NAMED: Final = re.compile(r"\b(?:[Mm]y name is|[Mm]y name's|[Cc]all me) ([A-Z][a-z]+)")
CANNOT_LOOK_UP: Final = "I'm sorry, I can't look things up, so I don't know that."
NO_PICTURE: Final = "I can't see anything: there is no picture, so perhaps the camera is off."


def asks_about_picture(question: str) -> bool:
    return ABOUT_PICTURE.search(question.lower()) is not None


def predefined_answer(lines: Sequence[Line], names: Sequence[str]) -> str | None:
    """Return the answer to a question that a small model would answer with inventions, or None.

    Args:
        lines: of the conversation; the last is the question.
        names: display names of transcriber, language model and synthesizer.
    """
    question, asked = lines[-1].content, lines[-1].content.lower().replace("’", "'")
    if LOOKING_UP.search(asked):
        return CANNOT_LOOK_UP
    if IDENTITY.search(asked):
        return (
            "I'm a stand-in of three small models, not MiniCPM-o: "
            f"{names[0]} hears you, {names[1]} thinks, and {names[2]} speaks."
        )
    if ABOUT_MISSING_PICTURE.search(asked) and PICTURE_MARK not in question:
        return NO_PICTURE
    said = " ".join(line.content for line in lines if line.role == "user")
    if MY_NAME.search(asked) and (known := NAMED.findall(said)):
        return f"Your name is {known[-1]}."  # the model says "My name is Anna"
    return None
