"""Text added to a live call: the protocol restarts the call with a prompt that contains it.

A language model of 0.5 B parameters answers a user's message, but no message quoted in its
instructions, so the prompt's quotation becomes messages again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from core.cascade.language import Line
from core.protocols.duplex_context import PREVIOUS, SPEAK_NOW
from core.protocols.duplex_units import USER_SPOKE, Speaker

SPEAKER: Final = re.compile(rf"^({'|'.join(Speaker)}): ", re.MULTILINE)


def split_suffix(suffix: str) -> tuple[str, list[Line]]:
    """Split the end of a prompt into instructions and the conversation so far.

    Notes become messages of the system, and what the model is to speak about one of the user.
    """
    quoted, *topics = suffix.split(SPEAK_NOW)
    instructions, _, said = quoted.partition(PREVIOUS)
    _, *found = SPEAKER.split(said)
    lines = [_line(Speaker(who), text) for who, text in zip(found[::2], found[1::2], strict=True)]
    lines += [Line("user", f"(Speak about this now: {topic})") for topic in topics]
    return instructions, [line for line in lines if line.content]


def with_added(heard: Sequence[Line], said: Sequence[Line]) -> list[Line]:
    """Return a conversation with the messages of `said` that followed the model's last reply.

    Args:
        heard: the conversation as the view knows it, in which speech is transcribed.
        said: the same conversation as the protocol knows it, up to the newest message.
    """
    if not heard:
        return list(said)
    replies = [number for number, line in enumerate(said) if line.role == "assistant"]
    added = [line for line in said[replies[-1] + 1 if replies else 0 :] if line.role == "user"]
    answered = list(heard)
    while added and answered and answered[-1].role == "user":
        answered.pop()  # a part of what is added
    return [*answered, *added]


def _line(who: Speaker, text: str) -> Line:
    match who:
        case Speaker.USER:
            return Line("user", text.replace(USER_SPOKE, "").strip())
        case Speaker.ASSISTANT:
            return Line("assistant", text.strip())
        case Speaker.DEVELOPER:
            return Line("system", text.strip())
