"""Random messages of a client and random JSON; and what a server may say to them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import settings
from pydantic import TypeAdapter

from core.errors import ErrorCode
from core.schemas.export.message_schemas import definitions_of, messages_of
from core.schemas.export.sockets import CHAT, DUPLEX, HALF_DUPLEX, STREAMING, Side, Socket
from tests.fakes.samples import Json, sample

ROUNDS = settings().max_examples // 2
MESSAGES = 8  # of a session at most
KINDS = {"streaming": STREAMING, "chat": CHAT, "half_duplex": HALF_DUPLEX, "duplex": DUPLEX}
UNEXPECTED = {ErrorCode.INTERNAL, ErrorCode.GENERATION_FAILED, ErrorCode.WORKER_LOST}
# Known ones, for most of what is made up at random would be refused before it is looked at.
WORDS = ("", "user", "assistant", "abcd", "AAAA", "AAAAAAAA", "../../etc/passwd", "\ud800", "汉字")
NUMBERS = (0, -1, 1, 2**31, -(2**63), 2**70, 0.5, -0.0, 1e308, float("nan"), float("inf"))


def junk(random: Random, depth: int = 3) -> Json:
    kind = random.randrange(7 if depth else 5)
    match kind:
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2:
            return random.choice(NUMBERS)
        case 3:
            return random.choice(WORDS)
        case 4:
            return "".join(map(chr, random.choices(range(1, 0xD800), k=random.randrange(40))))
        case 5:
            return [junk(random, depth - 1) for _ in range(random.randrange(4))]
    return {random.choice(WORDS): junk(random, depth - 1) for _ in range(random.randrange(4))}


def spoiled(value: Json, random: Random) -> Json:
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        match random.randrange(5):
            case 0:
                return {key: inner for key, inner in value.items() if key != name}
            case 1:
                return {**value, random.choice(WORDS): junk(random)}
        return {**value, name: spoiled(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], spoiled(value[at], random), *value[at + 1 :]]
    return junk(random)


@functools.cache
def right_messages(kind: str) -> list[Json]:
    """Return each message of a client with all its fields, and with as few as may be."""
    definitions = definitions_of()
    return [
        sample(told.schema, definitions, is_full=is_full)
        for told in messages_of(KINDS[kind], Side.CLIENT)
        for is_full in (False, True)
    ]


def messages(kind: str, random: Random) -> Iterator[str | bytes]:
    """Yield what a client says, without end: mostly right, in any order."""
    while True:
        message = random.choice(right_messages(kind))
        text = json.dumps(message if random.random() < 0.5 else spoiled(message, random))
        match random.randrange(12):
            case 0:
                yield text[: random.randrange(len(text))]
            case 1:
                yield text.encode()
            case 2:
                yield random.choice(("", "[]", "null", "[" * 500, '"type"'))
            case _:
                yield text


def check_words(socket: Socket, heard: list[dict[str, Any]]) -> None:
    """Every message is one of the protocol, and an error is the last and expected."""
    for message in heard:
        TypeAdapter(socket.server).validate_python(message)
    errors = [message["code"] for message in heard if message["type"] == "error"]
    assert len(errors) <= 1 and (not errors or heard[-1]["type"] == "error"), heard
    assert not UNEXPECTED & set(errors), heard[-1]
