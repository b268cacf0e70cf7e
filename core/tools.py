"""Function calls as text, with their prompt and parser, and the truncation at stop sequences.

Pure, so that the gateway and the worker's machines share it. The format is the one that the
language model was trained on. Source: the chat template of Qwen3; docs/specification/model.md#3.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from core.schemas.common import Function

CALL_START: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
MARKS: Final = (CALL_START, CALL_END)

# The text before the arguments of a call, which begin with the bracket that follows.
HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
# A whole string, or one character outside of strings.
PART: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^"]', re.DOTALL)
NESTING: Final = MappingProxyType({"{": 1, "[": 1, "}": -1, "]": -1})
ARGUMENTS_DEPTH: Final = 2  # open brackets at the beginning of a call's arguments
PROMPT: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{lines}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@dataclass(frozen=True)
class Offer:
    """The functions that a reply may call."""

    functions: tuple[Function, ...] = ()  # with unique names
    must_call: bool = False  # the reply is exactly one call, which is not spoken

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def prompt(self) -> str:
        """Text appended to the system message; "" without functions."""
        if not self.functions:
            return ""
        lines = (
            {"type": "function", "function": function.model_dump(exclude_none=True)}
            for function in self.functions
        )
        return PROMPT.format(lines="\n".join(_to_json(line) for line in lines))

    @property
    def reply_start(self) -> str:
        """Forced beginning of the reply; "" if it is free."""
        if not self.must_call:
            return ""
        if len(self.functions) > 1:
            return CALL_START + '\n{"name":'
        return f'{CALL_START}\n{{"name": {_to_json(self.functions[0].name)}, "arguments":'


def call_text(name: str, arguments: str) -> str:
    """Return one call as text of an assistant's message; several are joined by line feeds."""
    inner = f'{{"name": {_to_json(name)}, "arguments": {arguments.strip() or "{}"}}}'
    return f"{CALL_START}\n{inner}\n{CALL_END}"


def outputs_text(outputs: Iterable[str]) -> str:
    """Return function outputs, in the order of the calls, as text of a user's message."""
    return "\n".join(f"<tool_response>\n{output}\n</tool_response>" for output in outputs)


@dataclass(frozen=True)
class Said:
    text: str


@dataclass(frozen=True)
class CallBegun:
    name: str


@dataclass(frozen=True)
class CallArguments:
    text: str


@dataclass(frozen=True)
class CallDone:
    name: str
    arguments: str


@dataclass(frozen=True)
class CallInvalid:
    reason: str


CallEvent = Said | CallBegun | CallArguments | CallDone | CallInvalid


class CallParser:
    """Separates the text and the calls of a streamed reply.

    White space around calls is dropped. Without functions everything is text.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._kept = ""  # text that may be part of a mark, or precede one
        self._call: _Call | None = None
        self._has_failed = False
        self.n_calls = 0

    def feed(self, text: str) -> list[CallEvent]:
        if not self._names:
            return [Said(text)] if text else []
        events: list[CallEvent] = []
        rest = self._kept + text
        self._kept = ""
        while rest and not self._has_failed:
            rest = self._take(rest, events)
        return events

    def flush(self) -> list[CallEvent]:
        if self._has_failed:
            return []
        if self._call is not None:
            return [self._fail("the call does not end")]
        kept, self._kept = self._kept, ""
        return [Said(kept)] if kept.strip() or (kept and not self.n_calls) else []

    def _take(self, text: str, events: list[CallEvent]) -> str:
        if self._call is not None:
            return self._take_call(self._call, text, events)
        at, mark = min(
            ((text.find(mark), mark) for mark in MARKS if mark in text), default=(-1, "")
        )
        if at < 0:
            sure = text[: len(text) - max(overlap(text, mark) for mark in MARKS)].rstrip()
            self._kept = text[len(sure) :]
        else:
            sure = text[:at].rstrip()
        events += [Said(sure)] if sure else []
        if mark == CALL_START:
            self._call = _Call()
        return text[at + len(mark) :] if mark else ""

    def _take_call(self, call: _Call, text: str, events: list[CallEvent]) -> str:
        left = call.feed(text)
        if call.is_broken or (call.name is not None and call.name not in self._names):
            events.append(self._fail("it calls no function that was offered"))
            return ""
        events += call.news()
        if left is None:
            return ""
        self._call = None
        done = call.parsed()
        if done is None or done.name not in self._names:
            events.append(self._fail("it is not a name and arguments as JSON"))
            return ""
        if call.name is None:  # in an unusual order, so none of it was emitted
            events += [CallBegun(done.name), CallArguments(done.arguments)]
        events.append(done)
        self.n_calls += 1
        return left

    def _fail(self, reason: str) -> CallInvalid:
        self._has_failed, self._call, self._kept = True, None, ""
        return CallInvalid(reason)


class _Call:
    """The text of one call, with the positions of its arguments and its end."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_broken = False
        self._text = ""
        self._read_to = 0  # end of the complete parts
        self._depth = 0
        self._arguments_at = 0
        self._arguments_end: int | None = None
        self._sent = 0  # end of the part of the arguments that was emitted

    def feed(self, text: str) -> str | None:
        """Append text; return the rest after the call's object, or None before its end."""
        self._text += text
        while not self.is_broken and (part := PART.match(self._text, self._read_to)):
            self._read_to = end = part.end()
            self._depth += NESTING.get(part[0], 0)
            is_outside = self._depth == 0 and not (part[0].isspace() or part[0] == "}")
            self.is_broken = is_outside or self._depth < 0
            if self.name is None and self._depth == ARGUMENTS_DEPTH:
                self._find_head(part.start())
            if self.name is not None and self._depth == 1 and self._arguments_end is None:
                self._arguments_end = end
            if self._depth == 0 and part[0] == "}":
                left, self._text = self._text[end:], self._text[:end]
                return left
        # Outside of the object not even a string may begin.
        self.is_broken |= self._depth == 0 and self._read_to < len(self._text)
        return None

    def news(self) -> list[CallEvent]:
        """Return the events since the last call."""
        if self.name is None:
            return []
        begun: list[CallEvent] = [] if self._sent else [CallBegun(self.name)]
        start = self._sent or self._arguments_at
        self._sent = self._arguments_end or len(self._text)
        fresh = self._text[start : self._sent]
        return [*begun, CallArguments(fresh)] if fresh else begun

    def parsed(self) -> CallDone | None:
        try:
            value = json.loads(self._text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return None
        name, arguments = value.get("name"), value.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        if self.name is None:
            return CallDone(name, _to_json(arguments))
        if self.name != name:
            return None
        return CallDone(name, self._text[self._arguments_at : self._arguments_end])

    def _find_head(self, index: int) -> None:
        """Check whether the arguments begin at the bracket at `index`."""
        head = HEAD.match(self._text)
        if head is not None and head.end() == index:
            self.name, self._arguments_at = head[1], index


def _no_constant(constant: str) -> None:
    """Refuse NaN and Infinity, which Python would accept."""
    raise ValueError(constant)


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class StopFilter:
    """Passes text through, holding back an end that may begin a stop sequence."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self.has_stopped = False  # a sequence was found; later text is dropped
        self._sequences = tuple(sequences)
        self._kept = ""

    def feed(self, text: str) -> str:
        """Return the text that cannot belong to a sequence."""
        if self.has_stopped:
            return ""
        text = self._kept + text
        found = [at for sequence in self._sequences if (at := text.find(sequence)) >= 0]
        if found:
            self.has_stopped, self._kept = True, ""
            return text[: min(found)]
        kept = max((overlap(text, sequence) for sequence in self._sequences), default=0)
        self._kept = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        kept, self._kept = self._kept, ""
        return kept


def overlap(text: str, sequence: str) -> int:
    """Return the length of the longest end of a text that begins a sequence."""
    longest = min(len(text), len(sequence) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(sequence[:n])), 0)
