"""What the model is asked: the items of a Realtime conversation as messages, and how to answer.

Pure. Equal keys stand for equal messages, so that a cache that holds one need not be fed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from core.protocols.realtime_items import Content, Item, Role
from core.protocols.realtime_session import OutputConfig
from core.schemas.realtime_session import FunctionChoice
from core.schemas.tools import Function
from core.tools import Offer, call_text, outputs_text

Key = tuple[str, int]
MOST_TOKENS: Final = 1_024  # ours: of a response without a limit


@dataclass(frozen=True)
class Turn:
    """One message for the model."""

    key: Key  # what it is, and how often that was changed
    role: Role  # whose it is
    # What it says; calls and outputs are words by now.
    content: tuple[Content, ...] = field(repr=False)


@dataclass(frozen=True)
class TurnRequest:
    """One response that is to be made."""

    system: str = field(repr=False)  # the system prompt
    # The conversation, oldest first, without the system's.
    turns: tuple[Turn, ...] = field(repr=False)
    output: OutputConfig  # how it is made and sounds
    reply_key: Key  # what the reply is called when it is one of the turns
    reply_start: str = ""  # what the reply has to begin with
    is_outside: bool = False  # it is no part of the conversation
    is_beside_units: bool = False  # the duplex engine has the conversation, and keeps it meanwhile

    @property
    def has_own_view(self) -> bool:
        """It is made in a conversation of its own, which ends with the reply."""
        return self.is_outside or self.is_beside_units

    @property
    def max_tokens(self) -> int:
        limit = self.output.max_output_tokens
        return limit if isinstance(limit, int) else MOST_TOKENS

    @property
    def input_audio_ms(self) -> int:
        parts = [part for turn in self.turns for part in turn.content]
        return sum(part.sound.duration_ms for part in parts if part.sound and part.sound.pcm)


def offer_of(output: OutputConfig) -> Offer:
    choice, tools = output.tool_choice, output.tools
    if choice == "none":
        return Offer()
    if isinstance(choice, FunctionChoice):
        tools = tuple(tool for tool in tools if tool.name == choice.name)
    functions = tuple(
        Function(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in tools
    )
    return Offer(functions, must_call=choice != "auto" and bool(functions))


def request_of(
    items: Iterable[Item], output: OutputConfig, response_id: str, *, is_outside: bool
) -> TurnRequest:
    """Return what the model is asked about a conversation, oldest item first."""
    offer, known = offer_of(output), list(items)
    texts = [item.text for item in known if item.role == "system"]
    system = "\n\n".join(text for text in (output.instructions, *texts, offer.prompt) if text)
    turns = _turns(item for item in known if item.role != "system")
    return TurnRequest(
        system, tuple(turns), output, (response_id, 0), offer.reply_start, is_outside
    )


def _turns(items: Iterable[Item]) -> list[Turn]:
    """Return items as messages; what one response made is one message."""
    turns: list[Turn] = []
    for item in items:
        turn = _turn(item)
        if item.response_id and turns and turns[-1].key[0] == item.response_id:
            before = turns.pop()
            revisions = before.key[1] + item.revision
            content = (*before.content, Content("output_text", "\n"), *turn.content)
            turn = Turn((item.response_id, revisions), "assistant", content)
        turns.append(turn)
    return [turn for turn in turns if turn.content]


def _turn(item: Item) -> Turn:
    key = (item.response_id or item.id, item.revision)
    match item.kind:
        case "function_call":
            call = Content("output_text", call_text(item.name, item.arguments))
            return Turn(key, "assistant", (call,))
        case "function_call_output":
            return Turn(key, "user", (Content("input_text", outputs_text([item.output])),))
        case _:
            assert item.role is not None, "a message has a role"
            return Turn(key, item.role, item.content)
